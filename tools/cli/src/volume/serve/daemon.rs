//! `uringfs serve --config`: serves what a file names, and changes to what the file names later without a stop.
//!
//! A change has two parts. The first opens all that is new; if that fails, it is closed again, and nothing has changed. The second
//! ends what the file no longer has, and starts what is new.

use super::super::quoting::for_message;
use super::super::service::{at_signals, notify};
use super::config::{Config, Source};
use super::disks::{Disk, close_all};
use super::metrics::{Kind, Metric, Observed, Page, metric};
use super::metrics_server::{MetricsOptions, MetricsServer};
use super::mount::ServedMount;
use super::nbd::{self, NbdServer};
use super::problem::Problem;
use super::service::{Context, Service, log_started};
use super::vhost_user_blk::VhostDisk;
use crate::output::{print, print_error, print_warning};
use sd_notify::NotifyState;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use uringfs_fuse::control::{ControlSocket, ReloadServer};
use uringfs_lab::Error;

/// Serves until a signal asks to stop. Returns the exit code.
pub(super) fn run(path: &Path) -> Result<u8, Error> {
    let mut daemon = Daemon::default();
    daemon.context.targets.registry.insert(&daemon.status);
    let lines = daemon.load(path)?;
    let served = daemon.serve(path, &lines);
    let ended = daemon.end();
    served.and(ended).map(|()| 0)
}

/// Something that the daemon is asked to do.
enum Event {
    Stop,
    /// With a receiver of the result, unless a signal asks.
    Reload(Option<Sender<Result<(), String>>>),
}

/// The servers of the process.
#[derive(Default)]
struct Daemon {
    context: Context,
    servers: Servers,
    metrics: Option<MetricsServer>,
    /// Whether the last reload was one.
    status: Arc<ReloadStatus>,
    /// Mounts that are unmounted, and that programs may still use.
    ending: Vec<Service>,
}

#[derive(Default)]
struct ReloadStatus {
    has_failed: AtomicBool,
}

const SUCCESSFUL: Metric = metric(
    "uringfs_config_last_reload_successful",
    Kind::Gauge,
    "1 if what is served is what the file named when it was last read, 0 if that was refused.",
);

impl Observed for ReloadStatus {
    fn observe(&self, page: &mut Page) {
        page.add(&SUCCESSFUL, &[], (!self.has_failed.load(Ordering::Relaxed)).into());
    }
}

#[derive(Default)]
struct Servers {
    nbd: Vec<(NbdServer, Service)>,
    vhost: Vec<(VhostDisk, Service)>,
    mounts: Vec<(ServedMount, Service)>,
}

/// What a configuration keeps, by its place among those that run, and what it adds.
#[derive(Default)]
struct Plan {
    kept_nbd: Vec<(usize, nbd::Options, Vec<Disk>)>,
    kept_vhost: Vec<usize>,
    kept_mounts: Vec<usize>,
    new: Servers,
    /// `None`: as before.
    metrics: Option<Option<MetricsServer>>,
}

impl Daemon {
    fn serve(&mut self, path: &Path, lines: &str) -> Result<(), Error> {
        let (sender, events) = channel();
        let send = |event: fn() -> Event| {
            let sender = sender.clone();
            move || {
                let _ = sender.send(event());
            }
        };
        at_signals([SIGINT, SIGTERM], send(|| Event::Stop))?;
        at_signals([SIGHUP], send(|| Event::Reload(None)))?;
        let control = match ControlSocket::bind() {
            Ok(socket) => socket,
            // Signals are heard all the same.
            Err(error) => {
                print_warning(&format!("no control socket: {error}"));
                None
            }
        };
        let ask = move || {
            let (reply, result) = channel();
            let _ = sender.send(Event::Reload(Some(reply)));
            result.recv().unwrap_or_else(|_| Err("the server is ending".into()))
        };
        let failed = |error: io::Error| Error::run("cannot serve").because(error);
        let control = control.map(|socket| ReloadServer::start(socket, ask)).transpose();
        let control = control.map_err(failed)?;
        print(lines)?;
        notify(&[NotifyState::Ready]);
        self.handle(path, events);
        notify(&[NotifyState::Stopping]);
        drop(control);
        Ok(())
    }

    /// Does what it is asked to do until it is asked to stop.
    fn handle(&mut self, path: &Path, events: Receiver<Event>) {
        while let Ok(Event::Reload(reply)) = events.recv() {
            // Newer versions of systemd want to know when.
            let now = NotifyState::monotonic_usec_now().ok();
            let reloading: Vec<_> = [NotifyState::Reloading].into_iter().chain(now).collect();
            notify(&reloading);
            let reloaded = self.load(path).and_then(|lines| print(&lines));
            self.status.has_failed.store(reloaded.is_err(), Ordering::Relaxed);
            let shown = for_message(path);
            match &reloaded {
                Ok(()) => tracing::info!(event = "reloaded", "{shown}: reloaded"),
                Err(error) => {
                    tracing::error!(event = "reload_failed", "{error}; nothing has changed");
                }
            }
            notify(&[NotifyState::Ready]);
            if let Some(reply) = reply {
                let _ = reply.send(reloaded.map_err(|error| error.to_string()));
            }
        }
    }

    /// Serves what a file names, and nothing else. Returns the lines of what is new.
    ///
    /// # Errors
    /// Nothing has changed.
    fn load(&mut self, path: &Path) -> Result<String, Error> {
        let source = Source::read(path)?;
        let planned = source.parse().and_then(|config| self.plan(&source, &config));
        match planned {
            Ok(plan) => Ok(self.carry_out(plan)),
            Err(error) => {
                // What was opened is closed again.
                report(self.context.targets.close_unused());
                Err(error)
            }
        }
    }

    /// Opens what is new.
    fn plan(&mut self, source: &Source, config: &Config) -> Result<Plan, Error> {
        let mut plan = Plan::default();
        let Daemon { context, servers, metrics: old_metrics, .. } = self;
        // A target that is also written is opened for that first.
        for is_read_only in [false, true] {
            for entry in &config.nbd {
                let (options, span) = (entry.get_ref(), entry.span());
                if options.read_only == is_read_only {
                    let added = plan.add_nbd(options, servers, context);
                    added.map_err(|problem| source.locate(&span, problem))?;
                }
            }
            for entry in &config.vhost_user_blk {
                let (options, span) = (entry.get_ref(), entry.span());
                if options.read_only != is_read_only {
                    continue;
                }
                let mut running = servers.vhost.iter();
                let is_it = |(disk, service): &(VhostDisk, Service)| {
                    disk.options == *options && service.is_running()
                };
                match running.position(is_it) {
                    Some(place) => plan.kept_vhost.push(place),
                    None => {
                        let new = VhostDisk::prepare(options, context);
                        let new = new.map_err(|problem| source.locate(&span, problem))?;
                        plan.new.vhost.push(new);
                    }
                }
            }
        }
        let (metrics, old) = (config.metrics(), old_metrics.as_ref());
        if old.map_or_else(MetricsOptions::default, |old| old.options.clone()) != metrics {
            let prepared = MetricsServer::prepare(&metrics, context);
            plan.metrics = Some(prepared.map_err(|problem| source.locate(&(0..0), problem))?);
        }
        for entry in &config.mount {
            let (options, span) = (entry.get_ref(), entry.span());
            let is_it = |(mount, service): &(ServedMount, Service)| {
                mount.options == *options && mount.is_mounted() && service.is_running()
            };
            match servers.mounts.iter().position(is_it) {
                Some(place) => plan.kept_mounts.push(place),
                None => {
                    let new = ServedMount::prepare(options, &context.targets.registry);
                    let new = new.map_err(|problem| source.locate(&span, problem))?;
                    plan.new.mounts.push(new);
                }
            }
        }
        Ok(plan)
    }

    /// Ends what is not kept, and starts what is new. Returns its lines.
    fn carry_out(&mut self, plan: Plan) -> String {
        let Plan { kept_nbd, kept_vhost, kept_mounts, new, metrics } = plan;
        let nbd_places: Vec<usize> = kept_nbd.iter().map(|(place, ..)| *place).collect();
        let gone = Servers {
            nbd: take_others(&mut self.servers.nbd, &nbd_places),
            vhost: take_others(&mut self.servers.vhost, &kept_vhost),
            mounts: take_others(&mut self.servers.mounts, &kept_mounts),
        };
        report(self.end_servers(gone));
        self.servers.vhost.iter().for_each(|(disk, _)| disk.update_size());
        let mut lines = String::new();
        // Those that are left are in the order of their places.
        let mut kept_nbd = kept_nbd;
        kept_nbd.sort_by_key(|(place, ..)| *place);
        for ((server, _), (_, options, disks)) in self.servers.nbd.iter_mut().zip(kept_nbd) {
            let (new_lines, gone) = server.replace_disks(&options, disks);
            lines += &log_started("nbd", new_lines);
            report(close_all(gone));
        }
        for (server, mut service) in new.nbd {
            lines += &log_started("nbd", server.lines());
            report_io(service.start());
            self.servers.nbd.push((server, service));
        }
        for (disk, mut service) in new.vhost {
            lines += &log_started("vhost-user-blk", disk.lines());
            report_io(service.start());
            self.servers.vhost.push((disk, service));
        }
        for (mut mount, mut service) in new.mounts {
            lines += &log_started("fuse", mount.lines());
            report_io(service.start());
            mount.has_started();
            self.servers.mounts.push((mount, service));
        }
        if let Some(metrics) = metrics {
            // The thread of the old one ends first: they may share a socket.
            self.metrics = None;
            self.metrics = metrics;
            if let Some(metrics) = &mut self.metrics {
                lines += &log_started("metrics", metrics.line());
                report_io(metrics.start(&self.context.targets.registry));
            }
        }
        report(self.context.targets.close_unused());
        lines
    }

    /// Ends servers, all at the same time, and closes their disks. Mounts end when no program uses them.
    fn end_servers(&mut self, servers: Servers) -> Result<(), Error> {
        let Servers { nbd, vhost, mounts } = servers;
        let services = nbd.iter().map(|(_, it)| it).chain(vhost.iter().map(|(_, it)| it));
        let services = services.chain(mounts.iter().map(|(_, it)| it));
        services.filter(|service| service.is_running()).for_each(|service| (service.stop())());
        self.ending.extend(mounts.into_iter().map(|(_, service)| service));
        let mut ended = Ok(());
        for service in self.ending.extract_if(.., |service| !service.is_running()) {
            ended = ended.and(service.join());
        }
        let mut disks = Vec::new();
        for (server, service) in nbd {
            ended = ended.and(service.join());
            disks.extend(server.into_disks());
        }
        for (disk, service) in vhost {
            ended = ended.and(service.join());
            disks.extend(disk.disks);
        }
        let closed = close_all(disks);
        ended.and(closed)
    }

    fn end(mut self) -> Result<(), Error> {
        let servers = std::mem::take(&mut self.servers);
        let ended = self.end_servers(servers);
        let mounts = std::mem::take(&mut self.ending).into_iter().map(Service::join);
        let mounts: Vec<_> = mounts.collect();
        let unmounted: Result<(), Error> = mounts.into_iter().collect();
        let closed = self.context.targets.close_unused();
        ended.and(unmounted).and(closed)
    }
}

impl Plan {
    fn add_nbd(
        &mut self,
        options: &nbd::Options,
        servers: &Servers,
        context: &mut Context,
    ) -> Result<(), Problem> {
        for (place, (server, service)) in servers.nbd.iter().enumerate() {
            if service.is_running()
                && let Some(disks) = server.prepare_disks(options, context)?
            {
                self.kept_nbd.push((place, options.clone(), disks));
                return Ok(());
            }
        }
        self.new.nbd.push(NbdServer::prepare(options, context)?);
        Ok(())
    }
}

/// Takes those out whose places are not among these.
fn take_others<T>(all: &mut Vec<T>, kept: &[usize]) -> Vec<T> {
    let places = std::mem::take(all).into_iter().enumerate();
    let (stay, go): (Vec<_>, Vec<_>) = places.partition(|(place, _)| kept.contains(place));
    *all = stay.into_iter().map(|(_, it)| it).collect();
    go.into_iter().map(|(_, it)| it).collect()
}

fn report(result: Result<(), Error>) {
    if let Err(error) = result {
        print_error(&error.to_string());
    }
}

fn report_io(result: io::Result<()>) {
    report(result.map_err(|error| Error::run("cannot serve").because(error)));
}

//! `uringfs serve --config`: serves what a file names, and changes to what the file names later without a stop.
//!
//! A change has two parts. The first opens all that is new; if that fails, it is closed again, and nothing has changed. The second
//! ends what the file no longer has, and starts what is new.

use super::super::quoting::for_message;
use super::super::service::{at_signals, notify, start_control};
use super::config::{Config, Source};
use super::disks::close_all;
use super::metrics::{Kind, Metric, Observed, Page, metric};
use super::metrics_server::{MetricsOptions, MetricsServer};
use super::mount::ServedMount;
use super::nbd::{self, NbdServer};
use super::problem::Problem;
use super::service::{Context, Service, log_started};
use super::ublk::{self, BlockDevice, PreparedDevice};
use super::vhost_user_blk::VhostDisk;
use crate::output::{print, print_error};
use sd_notify::NotifyState;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use uringfs_fuse::control::{ControlServer, Reload};
use uringfs_lab::Error;
use uringfs_ublk::DeviceUse;

/// Serves until a signal asks to stop. Returns the exit code.
pub(super) fn run(path: &Path) -> Result<u8, Error> {
    let (sender, events) = channel();
    let mut daemon = Daemon::new(sender);
    // First: clients are served before everything is loaded.
    daemon.watch_signals()?;
    let (lines, started) = daemon.load(path)?;
    daemon.status.has_failed.store(started.is_err(), Ordering::Relaxed);
    report(started);
    let served = daemon.serve(path, &lines, &events);
    let ended = daemon.end(&events);
    // A client that still waits for a reload sees that there is none.
    drop(events);
    let served = served.map(drop);
    served.and(ended).map(|()| 0)
}

/// Something that the daemon is asked to do.
enum Event {
    Stop,
    /// With a receiver of the result, unless a signal asks.
    Reload(Option<Sender<Result<(), String>>>),
    /// A server has ended.
    Ended,
}

/// The servers of the process.
struct Daemon {
    sender: Sender<Event>,
    context: Context,
    servers: Servers,
    metrics: Option<MetricsServer>,
    /// Whether the last reload was one.
    status: Arc<ReloadStatus>,
    /// Mounts and devices that are to end, and that programs may still use.
    ending: Vec<Ending>,
}

/// A server that ends when no program uses it any more.
struct Ending {
    service: Service,
    /// `None`: a mount.
    device: Option<BlockDevice>,
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
    ublk: Vec<(BlockDevice, Service)>,
    mounts: Vec<(ServedMount, Service)>,
}

/// What a configuration keeps, by its place among those that run, and what it adds.
#[derive(Default)]
struct Plan {
    kept_nbd: Vec<(usize, nbd::Update)>,
    kept_vhost: Vec<usize>,
    kept_ublk: Vec<usize>,
    kept_mounts: Vec<usize>,
    new: Servers,
    /// Deleted again if the plan is not carried out.
    new_ublk: Vec<PreparedDevice>,
    /// `None`: as before.
    metrics: Option<Option<MetricsServer>>,
}

impl Daemon {
    fn new(sender: Sender<Event>) -> Daemon {
        let daemon = Daemon {
            sender,
            context: Context::default(),
            servers: Servers::default(),
            metrics: None,
            status: Arc::default(),
            ending: Vec::new(),
        };
        daemon.context.targets.registry.insert(&daemon.status);
        daemon
    }

    /// Makes events of signals.
    fn watch_signals(&self) -> Result<(), Error> {
        let send = |event: fn() -> Event| {
            let sender = self.sender.clone();
            move || {
                let _ = sender.send(event());
            }
        };
        let (stop, volumes) = (send(|| Event::Stop), self.context.targets.control.clone());
        at_signals([SIGINT, SIGTERM], move || {
            // Requests that are under way may wait for a thaw, and a reload for these requests.
            volumes.close();
            stop();
        })?;
        at_signals([SIGHUP], send(|| Event::Reload(None)))
    }

    /// Serves until a signal asks to stop. Returns the server of its control socket.
    fn serve(
        &mut self,
        path: &Path,
        lines: &str,
        events: &Receiver<Event>,
    ) -> Result<Option<ControlServer>, Error> {
        let sender = self.sender.clone();
        let reload: Reload = Arc::new(move || {
            let (reply, result) = channel();
            let _ = sender.send(Event::Reload(Some(reply)));
            result.recv().unwrap_or_else(|_| Err("the server is ending".into()))
        });
        let control = start_control(&self.context.targets.control, Some(reload));
        print(lines)?;
        notify(&[NotifyState::Ready]);
        self.handle(path, events);
        notify(&[NotifyState::Stopping]);
        // Of volumes that were opened after the signal.
        self.context.targets.control.close();
        Ok(control)
    }

    /// Does what it is asked to do until it is asked to stop.
    fn handle(&mut self, path: &Path, events: &Receiver<Event>) {
        loop {
            match events.recv() {
                Ok(Event::Reload(reply)) => {
                    let reloaded = self.reload(path);
                    if let Some(reply) = reply {
                        let _ = reply.send(reloaded.map_err(|error| error.to_string()));
                    }
                }
                Ok(Event::Ended) => {
                    report(self.join_ended());
                    report(self.context.targets.close_unused());
                }
                Ok(Event::Stop) | Err(_) => return,
            }
        }
    }

    /// Reads the file again.
    fn reload(&mut self, path: &Path) -> Result<(), Error> {
        // Newer versions of systemd want to know when.
        let now = NotifyState::monotonic_usec_now().ok();
        let reloading: Vec<_> = [NotifyState::Reloading].into_iter().chain(now).collect();
        notify(&reloading);
        let loaded = self.load(path);
        let shown = for_message(path);
        let reloaded = match loaded {
            Ok((lines, started)) => {
                report(print(&lines));
                match &started {
                    Ok(()) => tracing::info!(event = "reloaded", "{shown}: reloaded"),
                    Err(error) => {
                        tracing::error!(
                            event = "reload_failed",
                            "{error}; all else of {shown} is served"
                        );
                    }
                }
                started
            }
            Err(error) => {
                tracing::error!(event = "reload_failed", "{error}; nothing has changed");
                Err(error)
            }
        };
        self.status.has_failed.store(reloaded.is_err(), Ordering::Relaxed);
        notify(&[NotifyState::Ready]);
        reloaded
    }

    /// Serves what a file names, and nothing else. Returns the lines of what is new, and the first error of what does not start.
    ///
    /// # Errors
    /// Nothing has changed.
    fn load(&mut self, path: &Path) -> Result<(String, Result<(), Error>), Error> {
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
        let Daemon { context, servers, metrics: old_metrics, ending, .. } = self;
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
            for entry in &config.ublk {
                let (options, span) = (entry.get_ref(), entry.span());
                if options.read_only == is_read_only {
                    let added = plan.add_ublk(options, servers, ending, context);
                    added.map_err(|problem| source.locate(&span, problem))?;
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
                    let new = ServedMount::prepare(options, &context.targets);
                    let new = new.map_err(|problem| source.locate(&span, problem))?;
                    plan.new.mounts.push(new);
                }
            }
        }
        Ok(plan)
    }

    /// Ends what is not kept, and starts what is new. Returns its lines, and the first error of what does not start.
    fn carry_out(&mut self, plan: Plan) -> (String, Result<(), Error>) {
        let Plan { kept_nbd, kept_vhost, kept_ublk, kept_mounts, new, new_ublk, metrics } = plan;
        let nbd_places: Vec<usize> = kept_nbd.iter().map(|(place, ..)| *place).collect();
        let gone = Servers {
            nbd: take_others(&mut self.servers.nbd, &nbd_places),
            vhost: take_others(&mut self.servers.vhost, &kept_vhost),
            ublk: take_others(&mut self.servers.ublk, &kept_ublk),
            mounts: take_others(&mut self.servers.mounts, &kept_mounts),
        };
        report(self.end_servers(gone));
        self.servers.vhost.iter().for_each(|(disk, _)| disk.update_size());
        let (mut lines, mut started) = (String::new(), Ok(()));
        // Those that are left are in the order of their places.
        let mut kept_nbd = kept_nbd;
        kept_nbd.sort_by_key(|(place, ..)| *place);
        for ((server, _), (_, update)) in self.servers.nbd.iter_mut().zip(kept_nbd) {
            let (new_lines, gone) = server.update(update);
            lines += &log_started("nbd", new_lines);
            report(close_all(gone));
        }
        for (server, mut service) in new.nbd {
            lines += &log_started("nbd", server.lines());
            note(&mut started, service.start(self.on_end()).map_err(not_started));
            self.servers.nbd.push((server, service));
        }
        for (disk, mut service) in new.vhost {
            lines += &log_started("vhost-user-blk", disk.lines());
            note(&mut started, service.start(self.on_end()).map_err(not_started));
            self.servers.vhost.push((disk, service));
        }
        for device in new_ublk {
            match device.start() {
                Ok((device, mut service)) => {
                    lines += &log_started("ublk", device.lines());
                    note(&mut started, service.start(self.on_end()).map_err(not_started));
                    self.servers.ublk.push((device, service));
                }
                Err(error) => note(&mut started, Err(error)),
            }
        }
        for (mut mount, mut service) in new.mounts {
            lines += &log_started("fuse", mount.lines());
            note(&mut started, service.start(self.on_end()).map_err(not_started));
            mount.has_started();
            self.servers.mounts.push((mount, service));
        }
        if let Some(metrics) = metrics {
            // The thread of the old one ends first: they may share a socket.
            self.metrics = None;
            self.metrics = metrics;
            if let Some(metrics) = &mut self.metrics {
                lines += &log_started("metrics", metrics.line());
                let served = metrics.start(&self.context.targets.registry);
                note(&mut started, served.map_err(not_started));
            }
        }
        report(self.context.targets.close_unused());
        (lines, started)
    }

    /// Reports the end of a server to this thread.
    fn on_end(&self) -> impl FnOnce() + Send + 'static {
        let sender = self.sender.clone();
        move || {
            let _ = sender.send(Event::Ended);
        }
    }

    /// Ends servers, all at the same time, and closes their disks. Mounts, and devices that are in use, end when no program uses
    /// them.
    fn end_servers(&mut self, servers: Servers) -> Result<(), Error> {
        let Servers { nbd, vhost, ublk, mounts } = servers;
        let services = nbd.iter().map(|(_, it)| it).chain(vhost.iter().map(|(_, it)| it));
        let services = services.chain(mounts.iter().map(|(_, it)| it));
        services.filter(|service| service.is_running()).for_each(|service| (service.stop())());
        let (used, ublk): (Vec<_>, Vec<_>) = ublk.into_iter().partition(|(device, service)| {
            service.is_running() && device.stop() == DeviceUse::InUse
        });
        let mounts = mounts.into_iter().map(|(_, service)| Ending { service, device: None });
        self.ending.extend(mounts);
        let used = used.into_iter();
        let used = used.map(|(device, service)| Ending { service, device: Some(device) });
        self.ending.extend(used);
        let mut ended = self.join_ended();
        let mut disks = Vec::new();
        for (server, service) in nbd {
            note(&mut ended, service.join());
            disks.extend(server.into_disks());
        }
        for (disk, service) in vhost {
            note(&mut ended, service.join());
            disks.extend(disk.disks);
        }
        for (device, service) in ublk {
            note(&mut ended, service.join());
            disks.extend(device.disks);
        }
        note(&mut ended, close_all(disks));
        ended
    }

    /// Closes the disks of those of the ending servers that have ended.
    fn join_ended(&mut self) -> Result<(), Error> {
        let mut ended = Ok(());
        for Ending { service, device } in
            self.ending.extract_if(.., |ending| !ending.service.is_running())
        {
            note(&mut ended, service.join());
            note(&mut ended, close_all(device.into_iter().flat_map(|device| device.disks)));
        }
        ended
    }

    /// Ends all servers. Devices that are in use end at another signal to stop.
    fn end(mut self, events: &Receiver<Event>) -> Result<(), Error> {
        let servers = std::mem::take(&mut self.servers);
        let mut ended = self.end_servers(servers);
        while !self.ending.is_empty() {
            match events.recv() {
                Ok(Event::Stop) => {
                    self.ending.iter().flat_map(|it| &it.device).for_each(|device| {
                        device.stop();
                    })
                }
                // A client sees that there is no reload any more.
                Ok(Event::Reload(_) | Event::Ended) | Err(_) => {}
            }
            note(&mut ended, self.join_ended());
        }
        note(&mut ended, self.context.targets.close_unused());
        ended
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
                && let Some(update) = server.prepare_update(options, context)?
            {
                self.kept_nbd.push((place, update));
                return Ok(());
            }
        }
        self.new.nbd.push(NbdServer::prepare(options, context)?);
        Ok(())
    }

    fn add_ublk(
        &mut self,
        options: &ublk::Options,
        servers: &Servers,
        ending: &[Ending],
        context: &mut Context,
    ) -> Result<(), Problem> {
        let running =
            servers.ublk.iter().enumerate().filter(|(_, (_, service))| service.is_running());
        let mut same = running.clone().filter(|(_, (device, _))| device.options == *options);
        if let Some((place, _)) = same.find(|(place, _)| !self.kept_ublk.contains(place)) {
            self.kept_ublk.push(place);
            return Ok(());
        }
        if let Some(name) = options.name()? {
            // The next server finds the device by the name.
            let mut running = running.map(|(_, (device, _))| device.name.as_deref());
            let mut others = self.new_ublk.iter().map(PreparedDevice::name);
            let mut ending = ending.iter().flat_map(|it| &it.device);
            let ends = ending.any(|device| device.name.as_ref() == Some(&name));
            Problem::first(&[
                (
                    "target",
                    others.any(|other| other == Some(&name)),
                    "another entry has it; a disk is one device",
                ),
                (
                    "target",
                    running.any(|other| other == Some(&name)),
                    "its device has other options; remove the entry, reload, and add it again",
                ),
                ("target", ends, "its device is still in use; unmount it, and reload again"),
            ])?;
        }
        self.new_ublk.push(PreparedDevice::prepare(options, context)?);
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

/// Keeps the first error, and reports further ones.
fn note(first: &mut Result<(), Error>, result: Result<(), Error>) {
    match first {
        Ok(()) => *first = result,
        Err(_) => report(result),
    }
}

fn not_started(error: io::Error) -> Error {
    Error::run("a server cannot start").because(error)
}

//! `uringfs serve`: serves files as disks, and what a configuration names.

// Serves a configuration, and its changes.
mod daemon;

// The file that names what is served.
mod config;

// The protocols.
mod mount;
mod nbd;
mod ublk;
mod vhost_user_blk;

// What servers have in common.
mod metrics_server;
mod service;
mod disks;
mod socket;
mod activation;
mod targets;
mod metrics;
mod problem;

use super::service::{at_stop_signal, notify, start_control};
use crate::log::{Log, LogFormat};
use crate::output::print;
use disks::{Disk, close_all};
use metrics_server::{MetricsOptions, MetricsServer};
use problem::Problem;
use sd_notify::NotifyState;
use service::{Context, Service, log_started};
use std::io;
use std::path::PathBuf;
use uringfs_lab::Error;

/// The arguments of the command.
#[derive(clap::Args)]
#[command(subcommand_negates_reqs = true, args_conflicts_with_subcommands = true)]
pub struct Arguments {
    /// Serve what this file names: disks over NBD and vhost-user-blk, block devices, and mounts. SIGHUP, or uringfs ctl reload, reads it again
    #[arg(long, value_name = "FILE", required = true)]
    config: Option<PathBuf>,

    /// How events are written to standard error, one a line: clients that come, go and fail, reloads, and errors
    #[arg(long, value_name = "FORMAT", default_value = "text", global = true)]
    log_format: LogFormat,

    #[command(subcommand)]
    protocol: Option<Protocol>,
}

/// The protocols.
#[derive(clap::Subcommand)]
enum Protocol {
    /// Serve disks to NBD clients: QEMU, nbdcopy, nbdkit, and the kernel's nbd.
    ///
    /// The command stays in the foreground and prints the URI of each disk. Ctrl-C, SIGTERM and SIGHUP end it: requests that are
    /// under way are answered, and all is durable when it returns.
    ///
    /// Examples: nbdinfo URI; nbdcopy URI disk.raw; qemu-system-x86_64 -drive file=URI,format=raw,if=virtio
    Nbd(NbdArguments),
    /// Serve a disk to a virtual machine over vhost-user: QEMU, cloud-hypervisor and other monitors.
    ///
    /// The command stays in the foreground and prints the path of the socket. Ctrl-C, SIGTERM and SIGHUP end it: requests that it
    /// has taken are answered, and all is durable when it returns. When it is killed, the guest waits for the next server at the socket.
    ///
    /// Example: qemu-system-x86_64 -m 2G -object memory-backend-memfd,id=mem,size=2G,share=on -machine memory-backend=mem -chardev socket,id=disk,path=SOCK,reconnect=1 -device vhost-user-blk-pci,chardev=disk
    VhostUserBlk(VhostArguments),
    /// Make a block device of this machine, /dev/ublkbN, by the kernel's driver ublk.
    ///
    /// The command stays in the foreground and prints the path of the device. Ctrl-C, SIGTERM and SIGHUP end it as soon as the
    /// device is not in use: all is durable when it returns. When it is killed, the requests wait until the same command is run again.
    ///
    /// Example: mkfs.ext4 /dev/ublkb0
    Ublk(UblkArguments),
}

#[derive(clap::Args)]
struct NbdArguments {
    #[command(flatten)]
    options: nbd::Options,

    /// Serve metrics to Prometheus over HTTP, on an address of this machine (port 10810 if none is given), or on a Unix socket, whose path has a slash
    #[arg(long, value_name = "ADDR|SOCK")]
    metrics: Option<String>,
}

#[derive(clap::Args)]
struct VhostArguments {
    #[command(flatten)]
    options: vhost_user_blk::Options,

    /// Serve metrics to Prometheus over HTTP, on an address of this machine (port 10810 if none is given), or on a Unix socket, whose path has a slash
    #[arg(long, value_name = "ADDR|SOCK")]
    metrics: Option<String>,

    /// Let --metrics listen on an address that other machines reach
    #[arg(long, requires = "metrics")]
    insecure: bool,
}

#[derive(clap::Args)]
struct UblkArguments {
    #[command(flatten)]
    options: ublk::Options,

    /// Remove a device whose server was killed, instead of serving it again. Its requests fail
    #[arg(long, value_name = "DEVICE", conflicts_with_all = ["target", "queues", "read_only", "unprivileged", "metrics"])]
    remove: Option<PathBuf>,

    /// Serve metrics to Prometheus over HTTP, on an address of this machine (port 10810 if none is given), or on a Unix socket, whose path has a slash
    #[arg(long, value_name = "ADDR|SOCK")]
    metrics: Option<String>,

    /// Let --metrics listen on an address that other machines reach
    #[arg(long, requires = "metrics")]
    insecure: bool,
}

/// Returns the exit code.
pub fn run(arguments: Arguments) -> Result<u8, Error> {
    let Arguments { config, log_format, protocol } = arguments;
    let log = Log::start(log_format)?;
    Ok(log.end(run_protocol(protocol, config)))
}

fn run_protocol(protocol: Option<Protocol>, config: Option<PathBuf>) -> Result<u8, Error> {
    let context = Context::default();
    match (protocol, config) {
        (Some(Protocol::Nbd(NbdArguments { options, metrics })), _) => {
            let metrics = MetricsOptions { metrics, insecure: options.insecure };
            let prepare = |context: &mut Context| nbd::NbdServer::prepare(&options, context);
            let lines = |server: &nbd::NbdServer| log_started("nbd", server.lines());
            serve(context, &metrics, prepare, lines, |server| server.into_disks())
        }
        (Some(Protocol::VhostUserBlk(arguments)), _) => {
            let VhostArguments { options, metrics, insecure } = arguments;
            let metrics = MetricsOptions { metrics, insecure };
            let prepare =
                |context: &mut Context| vhost_user_blk::VhostDisk::prepare(&options, context);
            let lines =
                |disk: &vhost_user_blk::VhostDisk| log_started("vhost-user-blk", disk.lines());
            serve(context, &metrics, prepare, lines, |disk| disk.disks)
        }
        (Some(Protocol::Ublk(UblkArguments { remove: Some(device), .. })), _) => {
            ublk::remove(&device).map(|()| 0)
        }
        (Some(Protocol::Ublk(UblkArguments { options, remove: None, metrics, insecure })), _) => {
            let metrics = MetricsOptions { metrics, insecure };
            let start = |context: &mut Context| {
                let device = ublk::PreparedDevice::prepare(&options, context)?;
                device.start().map_err(Problem::of("target"))
            };
            let lines = |device: &ublk::BlockDevice| log_started("ublk", device.lines());
            serve(context, &metrics, start, lines, |device| device.disks)
        }
        (None, Some(config)) => daemon::run(&config),
        (None, None) => unreachable!("one of them is required"),
    }
}

/// Serves on this thread until a signal asks to stop, and closes the disks.
fn serve<S>(
    mut context: Context,
    metrics: &MetricsOptions,
    prepare: impl FnOnce(&mut Context) -> Result<(S, Service), Problem>,
    lines: impl FnOnce(&S) -> String,
    into_disks: impl FnOnce(S) -> Vec<Disk>,
) -> Result<u8, Error> {
    // First: a wrong option must not end a device that has waited for its server.
    let metrics = MetricsServer::prepare(metrics, &mut context);
    let served = metrics.map_err(Error::from).and_then(|metrics| {
        let (server, service) = prepare(&mut context)?;
        let served = serve_until_stopped(&context, metrics, service, lines(&server));
        let closed = close_all(into_disks(server));
        served.and(closed)
    });
    let closed = context.targets.close_unused();
    served.and(closed).map(|()| 0)
}

fn serve_until_stopped(
    context: &Context,
    mut metrics: Option<MetricsServer>,
    service: Service,
    mut lines: String,
) -> Result<(), Error> {
    let failed = |error: io::Error| Error::run("cannot serve").because(error);
    if let Some(metrics) = &mut metrics {
        metrics.start(&context.targets.registry).map_err(failed)?;
        lines += &log_started("metrics", metrics.line());
    }
    let (stop, volumes) = (service.stop(), context.targets.control.clone());
    let _control = start_control(&volumes, None);
    at_stop_signal(move || {
        notify(&[NotifyState::Stopping]);
        // Requests that are under way may wait for a thaw.
        volumes.close();
        stop();
    })?;
    print(&lines)?;
    notify(&[NotifyState::Ready]);
    service.run().map_err(failed)
}

//! `uringfs mount`: mounts a volume on a directory.
//!
//! Without -f the command starts itself once more, with -f, and returns when that process reports on its standard output that
//! the volume is mounted. The process must be new, not forked: a volume's rings do not survive a fork.

use super::bounded::Bounded;
use super::exit_codes::{refused, with_io_code};
use super::mounts::{advice, volume_on};
use super::open_volume::open;
use super::quoting::for_message;
use super::service::{at_stop_signal, notify, start_control};
use super::target::{canonical, with_take_over};
use super::whole_volume::whole_volume;
use crate::log::{Log, LogFormat, server_started};
use crate::output::{print_error, print_warning};
use crate::suggestions::Suggestions;
use rustix::io::Errno;
use sd_notify::NotifyState;
use serde::Deserialize;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
use uringfs::device::Access;
use uringfs::volume::Holder;
use uringfs_fuse::control::ControlVolumes;
use uringfs_fuse::{Mount, MountCache, MountOptions, unmount};
use uringfs_lab::Error;

/// The arguments of the command.
#[derive(clap::Args)]
pub struct Arguments {
    #[command(flatten)]
    options: Options,

    /// Stay in the foreground. Ctrl-C, SIGTERM and SIGHUP unmount, and the command returns when the volume is closed
    #[arg(short, long)]
    foreground: bool,

    /// Take an image of Ceph's RBD from the client that has it open for writing, and shut that client out of the cluster: for ten
    /// years, or for LIFE (20s to 50y). It must have ended before LIFE has: see uringfs ctl blocklist
    #[arg(long, value_name = "LIFE", num_args = 0..=1, require_equals = true, default_missing_value = "")]
    take_over: Option<String>,

    /// How events are written to standard error, one a line: that it is mounted, and errors
    #[arg(long, value_name = "FORMAT", default_value = "text", requires = "foreground")]
    log_format: LogFormat,

    /// Write a line to standard output once the volume is mounted, then leave the terminal
    #[arg(long, hide = true)]
    detach: bool,
}

/// The options of the command, and the keys of the tables `[[mount]]` of a configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Options {
    /// The file or block device with the volume
    pub(super) target: PathBuf,

    /// The directory to mount it on
    pub(super) directory: PathBuf,

    /// Options, separated by commas: ro, allow_other (other users may use the mount), noatime, noexec, commit=SECONDS (changes are
    /// durable after that time even without fsync; 5), cache=kernel|volume|none (where bytes of files are cached; kernel),
    /// writeback (the kernel gathers writes), io_uring=on|off (requests come over io_uring where root has
    /// turned on enable_uring of the module fuse; on), spin=on|off (threads spin for the next request for up to 50 us before they
    /// sleep; on), and for root suid and dev. Options of fstab that ask nothing of a
    /// mount are accepted, too, such as defaults, nofail and x-...
    #[arg(short = 'o', value_name = "OPTION,...", value_delimiter = ',')]
    #[arg(value_parser = Suggestions::new(OPTIONS), hide_possible_values = true)]
    options: Vec<String>,

    /// The same as -o ro
    #[arg(short, long)]
    read_only: bool,

    /// Threads that serve requests [default: one a processor, at most 8]
    #[arg(long, value_name = "NUMBER")]
    threads: Option<Bounded<64>>,
}

impl Arguments {
    /// Those of a mount in the background.
    pub(super) fn new(target: OsString, directory: PathBuf, options: Vec<String>) -> Arguments {
        let target = target.into();
        let options = Options { target, directory, options, ..Options::default() };
        let log_format = LogFormat::Text;
        Arguments { options, foreground: false, take_over: None, log_format, detach: false }
    }
}

/// The words after -o that completions offer.
pub(super) const OPTIONS: [&str; 15] = [
    "ro",
    "allow_other",
    "noatime",
    "noexec",
    "commit=",
    "cache=kernel",
    "cache=volume",
    "cache=none",
    "writeback",
    "io_uring=on",
    "io_uring=off",
    "spin=on",
    "spin=off",
    "suid",
    "dev",
];

/// Returns the exit code.
pub fn run(mut arguments: Arguments) -> Result<u8, Error> {
    // In the background, too: a wrong word is reported by this process.
    let words = arguments.options.words()?;
    if let Some(life) = &arguments.take_over {
        if words.read_only {
            return Err(Error::input(
                "--take-over: a mount that only reads takes no image; leave out --take-over or ro",
            ));
        }
        arguments.options.target = with_take_over(&arguments.options.target, life)?;
    }
    match (arguments.foreground, arguments.detach) {
        (false, _) => start(&arguments),
        // It prints until it leaves the terminal, and the log would come too late.
        (true, true) => serve(&arguments),
        (true, false) => {
            let log = Log::start(arguments.log_format)?;
            Ok(log.end(serve(&arguments)))
        }
    }
}

impl Options {
    /// What -o asks for.
    pub(super) fn words(&self) -> Result<Words, Error> {
        let mut words = Words::parse(&self.options)?;
        words.read_only |= self.read_only;
        Ok(words)
    }
}

/// What -o asks for.
pub(super) struct Words {
    read_only: bool,
    allow_other: bool,
    access_times: bool,
    executable: bool,
    set_id: bool,
    devices: bool,
    cache: MountCache,
    writeback: bool,
    commit_interval: Duration,
    io_uring: bool,
    spin: bool,
}

impl Words {
    fn parse(words: &[String]) -> Result<Words, Error> {
        let mut options = Words {
            read_only: false,
            allow_other: false,
            access_times: true,
            executable: true,
            set_id: false,
            devices: false,
            cache: MountCache::Kernel,
            writeback: false,
            commit_interval: Duration::from_secs(5),
            io_uring: true,
            spin: true,
        };
        for word in words {
            let (name, value) = word.split_once('=').unwrap_or((word, ""));
            match (name, value) {
                ("", "") => {}
                ("ro", "") => options.read_only = true,
                ("rw", "") => options.read_only = false,
                ("allow_other", "") => options.allow_other = true,
                ("noatime", "") => options.access_times = false,
                ("atime" | "relatime", "") => options.access_times = true,
                ("suid", "") => options.set_id = true,
                ("nosuid", "") => options.set_id = false,
                ("dev", "") => options.devices = true,
                ("nodev", "") => options.devices = false,
                ("remount", _) => {
                    let what = "-o remount: unmount it, and mount it again with the other options";
                    return Err(refused(what));
                }
                // An fstab line with `user` or `users` means noexec too, unless `exec` follows: see mount(8).
                ("noexec" | "user" | "users", "") => options.executable = false,
                ("exec", "") => options.executable = true,
                ("writeback", "") => options.writeback = true,
                ("cache", "kernel") => options.cache = MountCache::Kernel,
                ("cache", "volume") => options.cache = MountCache::Volume,
                ("cache", "none") => options.cache = MountCache::None,
                ("io_uring", "on") => options.io_uring = true,
                ("io_uring", "off") => options.io_uring = false,
                ("spin", "on") => options.spin = true,
                ("spin", "off") => options.spin = false,
                ("commit", seconds) => {
                    let seconds =
                        seconds.parse().ok().filter(|seconds| (1..=3600).contains(seconds));
                    let wrong = || Error::input(format!("-o {word}: seconds from 1 to 3600"));
                    options.commit_interval = Duration::from_secs(seconds.ok_or_else(wrong)?);
                }
                // What every mount has, and what mount(8) adds from /etc/fstab.
                (
                    "default_permissions"
                    | "async"
                    | "defaults"
                    | "auto"
                    | "noauto"
                    | "nouser"
                    | "owner"
                    | "group"
                    | "diratime"
                    | "nodiratime"
                    | "lazytime"
                    | "nolazytime"
                    | "silent"
                    | "loud"
                    | "comment"
                    | "nofail"
                    | "_netdev",
                    _,
                ) => {}
                _ if name.starts_with("x-") => {}
                ("strictatime", _) => {
                    let what = "access times follow relatime; leave the option out";
                    return Err(Error::input(format!("-o {word}: {what}")));
                }
                ("discard", _) => {
                    let what =
                        "a mount does not discard freed blocks on the device; leave the option out";
                    return Err(Error::input(format!("-o {word}: {what}")));
                }
                ("sync" | "dirsync", _) => {
                    let what = "a mount does not do this; changes are durable after fsync, or after commit=SECONDS";
                    return Err(Error::input(format!("-o {word}: {what}")));
                }
                _ => {
                    let what = "the options are ro, allow_other, noatime, noexec, commit=SECONDS, cache=kernel|volume|none, \
                                writeback, io_uring=on|off, spin=on|off, and for root suid and dev";
                    return Err(Error::input(format!("-o {word}: {what}")));
                }
            }
        }
        if options.writeback && options.cache != MountCache::Kernel {
            return Err(Error::input(
                "-o writeback: only with cache=kernel, in whose pages writes wait",
            ));
        }
        Ok(options)
    }

    fn mount_options(&self) -> MountOptions {
        MountOptions::new()
            .read_only(self.read_only)
            .allow_other(self.allow_other)
            .access_times(self.access_times)
            .executable(self.executable)
            .set_id(self.set_id)
            .devices(self.devices)
            .cache(self.cache)
            .writeback(self.writeback)
            .commit_interval(self.commit_interval)
            .io_uring(self.io_uring)
            .spin(self.spin)
    }
}

/// Mounts the volume. Requests wait until it is served. An error has the option that it is about.
pub(super) fn prepare(options: &Options) -> Result<Mount, (&'static str, Error)> {
    let about = |option: &'static str| move |error: Error| (option, error);
    let words = options.words().map_err(about("options"))?;
    let target = whole_volume(options.target.as_os_str(), "is mounted").map_err(about("target"))?;
    let access = if words.read_only { Access::Read } else { Access::ReadWrite };
    let directory = &options.directory;
    make_way(directory).map_err(about("directory"))?;
    refuse_second_mount(Path::new(&target)).map_err(about("target"))?;
    // The kernel then never waits for this process to write pages back while it looks for memory for this process itself.
    // Threads that start later inherit this. It needs CAP_SYS_RESOURCE; an ordinary user has to do without.
    let _ = rustix::process::configure_io_flusher_behavior(true);
    let volume = open(&target, access).map_err(about("target"))?;
    let mut mount = words.mount_options().source(source(&target));
    if let Some(threads) = options.threads {
        mount = mount.threads(threads.get());
    }
    let mounted = Mount::new(volume, directory, &mount);
    mounted.map_err(|error| ("directory", in_directory(directory, error)))
}

/// The error of a mount.
pub(super) fn in_directory(directory: &Path, error: io::Error) -> Error {
    with_io_code(Error::run(format!("{}: {error}", for_message(directory))), &error)
}

fn serve(arguments: &Arguments) -> Result<u8, Error> {
    let directory = &arguments.options.directory;
    let mut mount = prepare(&arguments.options).map_err(|(_, error)| error)?;
    let volumes = ControlVolumes::default();
    let unmounter = mount.unmounter();
    mount = mount.control(&volumes).map_err(|error| {
        let _ = unmounter.unmount();
        in_directory(directory, error)
    })?;
    let _control = start_control(&volumes, None);
    let shown = directory.clone();
    // Programs that use the mount keep it until they end.
    let watched = at_stop_signal(move || {
        notify(&[NotifyState::Stopping]);
        // A program that waits for a thaw would keep it.
        volumes.close();
        if let Err(error) = unmounter.unmount_lazily() {
            print_error(&in_directory(&shown, error).to_string());
        }
    });
    let detached = watched.and_then(|()| if arguments.detach { detach() } else { Ok(()) });
    if let Err(error) = detached {
        let _ = mount.unmounter().unmount();
        return Err(error);
    }
    server_started("fuse", &directory.to_string_lossy());
    notify(&[NotifyState::Ready]);
    mount.serve().map_err(|error| in_directory(directory, error))?;
    Ok(0)
}

/// Refuses a directory on which nothing can be mounted without harm. Unmounts what a server that is gone has left there.
fn make_way(directory: &Path) -> Result<(), Error> {
    let shown = for_message(directory);
    // The directory of a mount whose server is gone has a path, too.
    let Ok(path) = directory.canonicalize() else { return Ok(()) };
    if path == Path::new("/") {
        return Err(refused(format!("{shown}: a mount there would hide the whole system")));
    }
    let Ok(Some(mounted)) = volume_on(&path) else { return Ok(()) };
    match rustix::fs::statfs(&path) {
        Err(Errno::NOTCONN | Errno::CONNABORTED) => {
            print_warning(&format!(
                "{shown}: unmounted what a killed server had left mounted there"
            ));
            unmount(&path, true).map_err(|error| Error::run(format!("{shown}: {error}")))
        }
        _ => Err(Error::in_use(format!(
            "{shown}: {} is mounted there",
            for_message(&mounted.source)
        ))),
    }
}

/// Refuses a block device that is mounted, also where both mounts only read.
fn refuse_second_mount(target: &Path) -> Result<(), Error> {
    let is_block = target.metadata().is_ok_and(|target| target.file_type().is_block_device());
    match is_block.then(|| advice(target, b"/")).flatten() {
        Some(advice) => {
            let server = Holder::find(target).map(|server| server.process());
            let served = server.map_or_else(
                || "its server was killed".to_owned(),
                |process| {
                    format!("another program has the volume open (uringfs, process {process})")
                },
            );
            Err(Error::in_use(format!("{}: {served}; {advice}", for_message(target))))
        }
        None => Ok(()),
    }
}

/// What `/proc/mounts` shows, and what `umount` waits for.
fn source(target: &OsStr) -> OsString {
    canonical(Path::new(target)).map_or_else(|| target.to_owned(), PathBuf::into_os_string)
}

/// Starts the process that serves the mount.
fn start(arguments: &Arguments) -> Result<u8, Error> {
    let failed =
        |error| Error::run("cannot start the process that serves the mount").because(error);
    let mut command = Command::new(std::env::current_exe().map_err(failed)?);
    command.args(["mount", "-f", "--detach"]);
    let options = &arguments.options;
    if !options.options.is_empty() {
        command.arg("-o").arg(options.options.join(","));
    }
    command.args(options.read_only.then_some("-r"));
    if let Some(threads) = options.threads {
        command.arg(format!("--threads={threads}"));
    }
    // By its arguments the mount of a process is found, which leaves this directory.
    let directory = options.directory.canonicalize();
    let directory = directory.unwrap_or_else(|_| options.directory.clone());
    command.arg("--").arg(&options.target).arg(directory);
    let mut server = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().map_err(failed)?;
    let mut ready = server.stdout.take().expect("its output is a pipe");
    match ready.read(&mut [0]).map_err(failed)? {
        // It has printed why.
        0 => {
            let status = server.wait().map_err(failed)?;
            Ok(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1))
        }
        _ => Ok(0),
    }
}

/// Reports that the volume is mounted, and leaves the terminal and the working directory.
fn detach() -> Result<(), Error> {
    let failed = |error: std::io::Error| Error::run("cannot leave the terminal").because(error);
    let null = File::options().read(true).write(true).open("/dev/null").map_err(failed)?;
    std::env::set_current_dir("/").map_err(failed)?;
    // It fails in the leader of a process group, which is no terminal's then.
    let _ = rustix::process::setsid();
    std::io::stdout().write_all(b"\n").and_then(|()| std::io::stdout().flush()).map_err(failed)?;
    let redirected = rustix::stdio::dup2_stdin(&null)
        .and_then(|()| rustix::stdio::dup2_stdout(&null))
        .and_then(|()| rustix::stdio::dup2_stderr(&null));
    redirected.map_err(|errno| failed(errno.into()))
}

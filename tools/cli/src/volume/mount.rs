//! `uringfs mount`: mounts a volume on a directory.
//!
//! Without -f the command starts itself once more, with -f, and returns when that process reports on its standard output that
//! the volume is mounted. The process must be new, not forked: a volume's rings do not survive a fork.

use super::exit_codes::{refused, with_io_code};
use super::open_volume::open;
use super::volume_path::VolumePath;
use signal_hook::consts::{SIGINT, SIGTERM};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use uringfs::device::Access;
use uringfs_fuse::{Mount, MountOptions, Unmounter};
use uringfs_lab::Error;

/// The arguments of the command.
#[derive(clap::Args)]
pub struct Arguments {
    /// The file or block device with the volume
    target: OsString,

    /// The directory to mount it on
    directory: PathBuf,

    /// Options, separated by commas: ro, rw, allow_other
    #[arg(short = 'o', value_name = "OPTION,...", value_delimiter = ',')]
    options: Vec<String>,

    /// Stay in the foreground. Ctrl-C and SIGTERM unmount, and the command returns when the volume is closed
    #[arg(short, long)]
    foreground: bool,

    /// Threads that serve requests [default: one a processor, at most 8]
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u16).range(1..=64))]
    threads: Option<u16>,

    /// Write a line to standard output once the volume is mounted, then leave the terminal
    #[arg(long, hide = true)]
    detach: bool,
}

/// Returns the exit code.
pub fn run(arguments: Arguments) -> Result<u8, Error> {
    let options = Options::parse(&arguments.options)?;
    match arguments.foreground {
        true => serve(&arguments, &options),
        false => start(&arguments),
    }
}

/// What -o asks for.
#[derive(Default)]
struct Options {
    read_only: bool,
    allow_other: bool,
}

impl Options {
    fn parse(words: &[String]) -> Result<Options, Error> {
        let mut options = Options::default();
        for word in words {
            match &word[..] {
                "ro" => options.read_only = true,
                "rw" => options.read_only = false,
                "allow_other" => options.allow_other = true,
                // What every mount has, and what mount(8) adds from /etc/fstab.
                "default_permissions"
                | "nosuid"
                | "nodev"
                | "defaults"
                | "auto"
                | "noauto"
                | "user"
                | "users"
                | "nofail"
                | "_netdev" => {}
                _ => {
                    let what = format!("-o {word}: the options are ro, rw and allow_other");
                    return Err(Error::input(what));
                }
            }
        }
        Ok(options)
    }
}

fn serve(arguments: &Arguments, options: &Options) -> Result<u8, Error> {
    let target = target(&arguments.target)?;
    let access = if options.read_only { Access::Read } else { Access::ReadWrite };
    let volume = open(&target, access)?;
    let directory = &arguments.directory;
    let in_directory = |error: std::io::Error| {
        with_io_code(Error::run(format!("{}: {error}", directory.display())), &error)
    };
    let mut mount = MountOptions::new()
        .source(source(&target))
        .read_only(options.read_only)
        .allow_other(options.allow_other);
    if let Some(threads) = arguments.threads {
        mount = mount.threads(threads.into());
    }
    let mount = Mount::new(volume, directory, &mount).map_err(in_directory)?;
    let unmounted = unmount_at_signal(mount.unmounter());
    let detached = unmounted.and_then(|()| if arguments.detach { detach() } else { Ok(()) });
    if let Err(error) = detached {
        let _ = mount.unmounter().unmount();
        return Err(error);
    }
    mount.serve().map_err(in_directory)?;
    Ok(0)
}

/// The path of a target that may be written as its root directory.
fn target(argument: &OsStr) -> Result<OsString, Error> {
    if Path::new(argument).exists() {
        return Ok(argument.to_owned());
    }
    match VolumePath::parse(argument) {
        Ok(path) if path.bytes.iter().all(|byte| *byte == b'/') => Ok(path.target),
        Ok(path) => Err(refused(format!("{path}: only a whole volume is mounted"))),
        Err(_) => Ok(argument.to_owned()),
    }
}

/// What `/proc/mounts` shows, and what `umount` waits for.
fn source(target: &OsStr) -> OsString {
    match Path::new(target).canonicalize() {
        Ok(path) => path.into(),
        Err(_) => target.to_owned(),
    }
}

/// Unmounts when a signal asks to stop. Programs that use the mount keep it until they end.
fn unmount_at_signal(unmounter: Unmounter) -> Result<(), Error> {
    let failed = |error| Error::run("cannot watch for signals").because(error);
    let (mut read, write) = std::io::pipe().map_err(failed)?;
    for signal in [SIGINT, SIGTERM] {
        let write = write.try_clone().map_err(failed)?;
        signal_hook::low_level::pipe::register(signal, write).map_err(failed)?;
    }
    std::thread::spawn(move || {
        let mut byte = [0];
        while matches!(read.read(&mut byte), Ok(1)) {
            if let Err(error) = unmounter.unmount_lazily() {
                eprintln!("uringfs: mount: {error}");
            }
        }
    });
    Ok(())
}

/// Starts the process that serves the mount.
fn start(arguments: &Arguments) -> Result<u8, Error> {
    let failed =
        |error| Error::run("cannot start the process that serves the mount").because(error);
    let mut command = Command::new(std::env::current_exe().map_err(failed)?);
    command.args(["mount", "-f", "--detach"]);
    if !arguments.options.is_empty() {
        command.arg("-o").arg(arguments.options.join(","));
    }
    if let Some(threads) = arguments.threads {
        command.arg(format!("--threads={threads}"));
    }
    command.arg("--").arg(&arguments.target).arg(&arguments.directory);
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

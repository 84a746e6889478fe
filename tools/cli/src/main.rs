//! The program `uringfs`: one file per command. Exit codes: 0 success, 1 the run failed, 2 the
//! arguments cannot be used, or a benchmark's disk is full or its target gone, 130 stopped by Ctrl-C. The commands on volumes tell more causes apart
//! (`volume::exit_codes`); `check` has exit codes of its own, and so has the program under the name `fsck.uringfs`.

mod generate;
mod other_names;
mod other_options;
mod info;
mod udev;
mod bench_compare;
mod bench_gate;
mod bench_sweep;
mod bench_experiment;
mod bench_sides;
mod command_line;
mod volume;
mod bench_run;
mod bench_vm;
mod fio_keys;
mod guest_options;
mod help;
mod json;
mod output;
mod log;
mod path_option;
mod progress;
mod suggestions;

use clap::error::ErrorKind;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use other_names::Request;
use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;
use uringfs_lab::Error;

/// The meaning of the arguments of most commands.
const TARGETS: &str = "A TARGET is a file, a block device, the URI of an NBD server's export, nbd+unix:///NAME?socket=PATH \
                       or nbd://HOST[:PORT]/NAME, or an image of Ceph's RBD, rbd:POOL/IMAGE. TARGET:/path is a path in the volume there.";

/// Named files on a block device or in one ordinary file, at the device's own speed.
#[derive(Parser)]
#[command(name = "uringfs", version, subcommand_required = true, arg_required_else_help = true)]
#[command(after_help = TARGETS)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Show the properties of a target, and how this machine can access it.
    Info(info::Arguments),
    /// Run benchmarks.
    #[command(subcommand)]
    Bench(Bench),
    /// Create a volume.
    ///
    /// Its root directory belongs to the user who runs the command.
    Mkfs(volume::mkfs::Arguments),
    /// Check and repair a volume.
    ///
    /// The check verifies the metadata: names, inodes, extents and free space, by their checksums and against
    /// each other. With --deep it also reads every block that files use. It does not verify the contents of
    /// files: there are no checksums of file data.
    ///
    /// Exit codes, as those of fsck: 0 no errors; 1 all errors were repaired; 4 errors are left, or there is no volume;
    /// 8 the device failed; 2 the arguments cannot be used; 3 the target does not exist; 5 a permission is missing; 6
    /// another program has the volume open.
    Check(volume::check::Arguments),
    /// Enlarge a volume.
    Resize(volume::resize::Arguments),
    /// Show or change the label of a volume.
    ///
    /// As e2label. Without a new label it prints the current one, also of a volume that a program has open.
    Label(volume::label::Arguments),
    /// Remove a volume from a device or a file.
    ///
    /// As wipefs -a: it erases the superblocks, also the backup, so that no program takes the target for a volume. It
    /// asks nothing, and refuses a target in use. The rest stays as it is; blkdiscard erases a whole device.
    Wipe(volume::wipe::Arguments),
    /// Show the sizes of volumes and their free space.
    Df(volume::df::Arguments),
    /// Mount a volume on a directory, so that every program can use its files.
    ///
    /// The command returns when the volume is mounted. fsync makes data durable, and so does umount. The commands on files,
    /// and info, counters, df, resize and ctl, work on a mounted volume, too.
    Mount(volume::mount::Arguments),
    /// Unmount a volume, and return when it is closed.
    Umount(volume::umount::Arguments),
    /// Serve files and devices as disks, or all that a configuration names.
    ///
    /// With --config one process serves disks and mounts, stays in the foreground, and prints a line for each that it serves: a
    /// URI, a socket, a device or a directory. The commands on files, and info, counters, df, resize and ctl, work on a volume that
    /// is served, too. Ctrl-C and SIGTERM end it. SIGHUP, or uringfs ctl reload FILE, reads the file again: new entries
    /// are served, removed ones end, and nothing else notices.
    Serve(volume::serve::Arguments),
    /// Show what the server of a volume has counted.
    ///
    /// The counters of its reactors have the names of docs/tuning.md; those of the volume begin with `volume`.
    Counters(volume::counters::Arguments),
    /// Control the server of a volume, or of a configuration.
    #[command(subcommand)]
    Ctl(volume::ctl::Arguments),
    /// Copy files and directories into a volume.
    ///
    /// Existing names: a directory is merged into an existing directory, or into the directory that an existing
    /// symbolic link leads to. Otherwise a directory is never replaced, and never replaces anything. A file or a
    /// symbolic link (the link itself, not its target) is replaced once the new file is complete. A device, FIFO or
    /// socket is replaced only by one of the same type, or with -f. With -n, nothing that exists is changed. A command
    /// never replaces a file that it has written itself, and never copies the volume's own image into the volume.
    ///
    /// If a file cannot be copied, the command prints an error, continues with the others and exits with 1. If nothing
    /// was copied and there is only one error, the exit code tells its cause. When the volume is full, it stops and says
    /// how many files are left.
    Put(volume::put::Arguments),
    /// Copy files and directories out of a volume.
    ///
    /// Existing names: a directory is merged into an existing directory. Otherwise a directory is never replaced, and
    /// never replaces anything. A file or a symbolic link (the link itself, not its target) is replaced once the new
    /// file is complete. A device, FIFO or socket is replaced only by one of the same type, or with -f. With -n,
    /// nothing that exists is changed. A command never replaces a file that it has created itself, or the image that
    /// it reads.
    ///
    /// Modes, times and extended attributes are copied; owners only when run as root. The set-user-ID bit is
    /// kept if the copy has the same user, the set-group-ID bit if it has the same group. Use --no-privileges
    /// for images that you do not trust.
    ///
    /// If a file cannot be copied, the command prints an error, continues with the others and exits with 1. If nothing
    /// was copied and there is only one error, the exit code tells its cause. If a pattern of --glob matches nothing, it copies nothing.
    Get(volume::get::Arguments),
    /// List directories of a volume.
    ///
    /// As ls of coreutils in the locale C.UTF-8, except that it prints one name per line on a terminal, too, and paths without
    /// the target.
    Ls(volume::ls::Arguments),
    /// Show directories of a volume as trees.
    Tree(volume::tree::Arguments),
    /// Write files of a volume to standard output.
    Cat(volume::cat::Arguments),
    /// Show the attributes of files in a volume.
    ///
    /// As stat of coreutils, without the numbers of the device that a mounted file is on.
    #[command(after_help = volume::stat_format::HELP)]
    Stat(volume::stat::Arguments),
    /// Create directories in a volume.
    Mkdir(volume::mkdir::Arguments),
    /// Remove files from a volume, and directories with -r.
    Rm(volume::rm::Arguments),
    /// Move or rename files in a volume.
    ///
    /// Existing names: a directory replaces an empty directory. Otherwise a directory is never replaced, and never
    /// replaces anything. A file or a symbolic link (the link itself, not its target) is replaced. A device, FIFO
    /// or socket is replaced only by one of the same type, or with -f. With -n, nothing is moved if the new name
    /// exists.
    Mv(volume::mv::Arguments),
    /// Copy files and directories inside a volume, or from one volume to another.
    ///
    /// Existing names: a directory is merged into an existing directory, or into the directory that an existing
    /// symbolic link leads to. Otherwise a directory is never replaced, and never replaces anything. A file or a
    /// symbolic link (the link itself, not its target) is replaced once the new file is complete. A device, FIFO or
    /// socket is replaced only by one of the same type, or with -f. With -n, nothing that exists is changed.
    ///
    /// As cp of coreutils, except that an existing file is replaced by a new one, not overwritten: its other hard links
    /// keep the old data. Without -p, a new file has the mode of its source without set-ID bits and what the umask forbids; a file that
    /// replaces another one has the owner and the mode of that.
    Cp(volume::cp::Arguments),
    /// Create hard links or symbolic links in a volume.
    Ln(volume::ln::Arguments),
    /// Change the times of files in a volume, or create empty files.
    ///
    /// As touch of coreutils, except that it reads fewer forms of dates.
    Touch(volume::touch::Arguments),
    /// Remove empty directories from a volume.
    Rmdir(volume::rmdir::Arguments),
    /// Find files in a volume.
    ///
    /// As find of findutils, with the tests and actions below. It follows no links, and has no -exec: use -print0 and
    /// xargs -0. Unless it prints on a terminal or deletes, it prints when it has found all and has closed the volume, which the
    /// reader of a pipe may then change.
    #[command(after_help = volume::find_expression::HELP)]
    Find(volume::find::Arguments),
    /// Change the permissions of files in a volume.
    Chmod(volume::chmod::Arguments),
    /// Change the owner of files in a volume.
    Chown(volume::chown::Arguments),
    /// Change the group of files in a volume.
    Chgrp(volume::chgrp::Arguments),
    /// List, read, set and remove extended attributes in a volume.
    #[command(subcommand)]
    Xattr(volume::xattr::Arguments),
    /// Shrink or extend files in a volume.
    Truncate(volume::truncate::Arguments),
    /// Show the space that files in a volume use.
    Du(volume::du::Arguments),
    /// Print completions for a shell.
    ///
    /// For bash: uringfs completions bash > /usr/share/bash-completion/completions/uringfs
    Completions(generate::CompletionArguments),
    /// Write man pages into a folder.
    #[command(hide = true)]
    Man(generate::ManArguments),
}

#[derive(Subcommand)]
enum Bench {
    /// Run fio job files, or fio keys given as --KEY=VALUE.
    ///
    /// Keys before the first --name are defaults for all jobs; a job overrides them. Keys after --name=JOB belong to
    /// that job. The key filename
    /// names the target: a file, a block device, TARGET:/path for a file in a volume, memory:SIZE, null:SIZE or
    /// sim:SIZE,OPTION=VALUE... The key volume=TARGET puts all files of a job into the volume on TARGET. Without
    /// filename, a file of the job's size is created in the working directory, or in the volume.
    ///
    /// Example: uringfs bench run --name=read --volume=disk.img --rw=randread --bs=4k --size=64m --iodepth=32
    Run(bench_run::Arguments),
    /// Compare two ways of running the same jobs in interleaved runs, with a verdict.
    ///
    /// Each pair runs side a, side a again for the noise, side b, and a bare io_uring loop as control, in random order. It ends
    /// when the interval of every job's rate is no wider than --effect, after 30 pairs, or by --max-time. The
    /// verdict is on the rate: faster, slower, no difference shown, or too noisy to say.
    #[command(after_help = bench_compare::help())]
    Compare(bench_compare::Arguments),
    /// Record a baseline for `bench gate`.
    ///
    /// Each pair runs the jobs, and a bare io_uring loop on the same targets, in random order. The baseline keeps the jobs and
    /// their figures beside those of the loop, so that it carries from one machine to another. An older FILE is replaced.
    #[command(after_help = bench_gate::RECORD_HELP)]
    Record(bench_gate::RecordArguments),
    /// Compare with a baseline: what got slower, and which counters changed.
    ///
    /// Runs the jobs of the baseline as they were recorded. The gate fails if a rate or the CPU time per I/O got worse, as
    /// a multiple of a bare io_uring loop's, or if a counter changed its kind: a lock, a thread, or a fallback where none was. A
    /// figure that got worse is measured twice, and has to be worse both times.
    #[command(after_help = bench_gate::GATE_HELP)]
    Gate(bench_gate::GateArguments),
    /// Run the same jobs with each combination of some values, and print tables.
    ///
    /// Each --over KEY=VALUE,VALUE... is a list of values; the cells are their product. The values of the last
    /// list are the columns of the tables, those of the others the rows. Each round runs every cell once, in random order. A gain is
    /// the ratio to the first column, with its 95 % interval over the rounds.
    #[command(after_help = bench_sweep::help())]
    Sweep(bench_sweep::Arguments),
    /// Compare one of the five mechanisms with itself switched off, beside what its authors published.
    ///
    /// Each case is a comparison as of `bench compare`: interleaved pairs in random order, a verdict on the rate, and a bare
    /// io_uring loop as control. Where the mechanism does not show, the report says why.
    #[command(after_help = bench_experiment::HELP)]
    Experiment(bench_experiment::Arguments),
    /// Count instructions in a Linux guest under QEMU.
    Vm(bench_vm::Arguments),
}

fn main() -> ExitCode {
    let arguments = match Request::parse(std::env::args_os().collect()) {
        Ok(Request::Uringfs(arguments)) => arguments,
        Ok(Request::Mkfs(arguments)) => return run_mkfs(arguments),
        Ok(Request::Fsck(arguments)) => return ExitCode::from(volume::fsck::run(arguments)),
        Ok(Request::Mount(arguments)) => {
            return mount_exit(volume::mount_helper::run_mount(arguments));
        }
        Ok(Request::Umount(arguments)) => {
            return mount_exit(volume::mount_helper::run_umount(&arguments));
        }
        Err(error) => return print_usage(&error, volume::fsck::EXIT_USAGE),
    };
    let arguments = match path_option::join(arguments) {
        Ok(arguments) => arguments,
        Err(error) => return fail(&error),
    };
    let definition = command();
    let arguments = match fio_keys::wrap_keys(&definition, arguments) {
        Ok(arguments) => arguments,
        Err(error) => return fail(&error),
    };
    let name = arguments.get(1).and_then(|command| command.to_str()).unwrap_or_default().to_owned();
    let arguments = match parse::<Arguments>(definition, arguments, &name) {
        Ok(arguments) => arguments,
        Err(error) => return print_usage(&error, EXIT_USAGE),
    };
    let result = match arguments.command {
        Command::Info(arguments) => info::run(arguments),
        Command::Bench(bench) => run_bench(bench),
        Command::Mkfs(arguments) => volume::mkfs::run(arguments),
        Command::Check(arguments) => volume::check::run(arguments),
        Command::Resize(arguments) => volume::resize::run(arguments),
        Command::Label(arguments) => volume::label::run(arguments),
        Command::Wipe(arguments) => volume::wipe::run(arguments),
        Command::Df(arguments) => volume::df::run(arguments),
        Command::Mount(arguments) => volume::mount::run(arguments),
        Command::Umount(arguments) => volume::umount::run(arguments),
        Command::Serve(arguments) => volume::serve::run(arguments),
        Command::Counters(arguments) => volume::counters::run(arguments),
        Command::Ctl(arguments) => volume::ctl::run(arguments),
        Command::Put(arguments) => volume::put::run(arguments),
        Command::Get(arguments) => volume::get::run(arguments),
        Command::Ls(arguments) => volume::ls::run(arguments),
        Command::Tree(arguments) => volume::tree::run(arguments),
        Command::Cat(arguments) => volume::cat::run(arguments),
        Command::Stat(arguments) => volume::stat::run(arguments),
        Command::Mkdir(arguments) => volume::mkdir::run(arguments),
        Command::Rm(arguments) => volume::rm::run(arguments),
        Command::Mv(arguments) => volume::mv::run(arguments),
        Command::Cp(arguments) => volume::cp::run(arguments),
        Command::Ln(arguments) => volume::ln::run(arguments),
        Command::Touch(arguments) => volume::touch::run(arguments),
        Command::Rmdir(arguments) => volume::rmdir::run(arguments),
        Command::Find(arguments) => volume::find::run(arguments),
        Command::Chmod(arguments) => volume::chmod::run(arguments),
        Command::Chown(arguments) => volume::chown::run(arguments),
        Command::Chgrp(arguments) => volume::chgrp::run(arguments),
        Command::Xattr(arguments) => volume::xattr::run(arguments),
        Command::Truncate(arguments) => volume::truncate::run(arguments),
        Command::Du(arguments) => volume::du::run(arguments),
        Command::Completions(arguments) => generate::completions(&arguments, command()),
        Command::Man(arguments) => generate::man(&arguments, command()),
    };
    exit(result)
}

/// The arguments cannot be used.
const EXIT_USAGE: u8 = 2;

/// Runs a benchmark. A full disk is no result of it.
fn run_bench(bench: Bench) -> Result<u8, Error> {
    let result = match bench {
        Bench::Run(arguments) => bench_run::run(arguments),
        Bench::Compare(arguments) => bench_compare::run(arguments),
        Bench::Record(arguments) => bench_gate::record(arguments),
        Bench::Gate(arguments) => bench_gate::gate(arguments),
        Bench::Sweep(arguments) => bench_sweep::run(arguments),
        Bench::Experiment(arguments) => bench_experiment::run(arguments),
        Bench::Vm(arguments) => bench_vm::run(arguments),
    };
    result.map_err(|error| match error.is_disk_full() {
        true => error.exiting_with(EXIT_USAGE),
        false => error,
    })
}

/// Runs `mkfs.uringfs`.
fn run_mkfs(arguments: Vec<OsString>) -> ExitCode {
    let [definition, _] = other_names::commands(&commands());
    match parse::<volume::mkfs::Arguments>(definition, arguments, "mkfs") {
        Ok(arguments) => exit(volume::mkfs::run(arguments)),
        Err(error) => print_usage(&error, EXIT_USAGE),
    }
}

fn exit(result: Result<u8, Error>) -> ExitCode {
    match result {
        Ok(code) => ExitCode::from(code),
        Err(error) => fail(&error),
    }
}

/// Prints help that was asked for, or why a command line cannot be used.
fn print_usage(error: &clap::Error, code: u8) -> ExitCode {
    let printed = error.print().and_then(|()| std::io::stdout().flush());
    match printed {
        _ if error.use_stderr() => ExitCode::from(code),
        Err(failed) => exit(output::written(Err(failed)).map(|()| 0)),
        Ok(()) => ExitCode::SUCCESS,
    }
}

/// The exit codes of mount(8) and umount(8): 0, or 32 for any failure.
fn mount_exit(result: Result<u8, Error>) -> ExitCode {
    const FAILED: u8 = 32;
    match result {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::from(FAILED),
        Err(error) => {
            fail(&error);
            ExitCode::from(FAILED)
        }
    }
}

/// Parses a command line. `command` is the name of the command in it.
fn parse<T: FromArgMatches>(
    definition: clap::Command,
    arguments: Vec<OsString>,
    command: &str,
) -> Result<T, clap::Error> {
    let matches = definition.try_get_matches_from(arguments).map_err(|mut error| {
        match error.kind() {
            ErrorKind::UnknownArgument => other_options::explain(&mut error, command),
            ErrorKind::InvalidSubcommand => other_options::suggest_command(&mut error, command),
            ErrorKind::MissingRequiredArgument => {
                other_options::name_destination(&mut error, command)
            }
            _ => {}
        }
        error
    })?;
    T::from_arg_matches(&matches)
}

/// The command line, with the commands in groups.
fn command() -> clap::Command {
    help::group(commands())
}

/// The command line, with the exit codes in the help of each command on volumes.
fn commands() -> clap::Command {
    let mut command = path_option::define(Arguments::command());
    // As in coreutils, the last one holds. In cp -f does not end -i.
    command = command.mut_subcommand("mv", |mv| {
        mv.mut_arg("interactive", |interactive| interactive.overrides_with("force"))
    });
    let names: Vec<String> =
        command.get_subcommands().map(|inner| inner.get_name().to_owned()).collect();
    for name in names.iter().filter(|name| !OTHER_EXIT_CODES.contains(&name.as_str())) {
        command = command.mut_subcommand(name, |inner| {
            let help = match inner.get_after_help() {
                Some(help) => format!("{help}\n\n{}", volume::exit_codes::HELP),
                None => volume::exit_codes::HELP.to_owned(),
            };
            inner.after_help(help)
        });
    }
    command
}

/// The commands that describe their own exit codes.
const OTHER_EXIT_CODES: [&str; 5] = ["info", "bench", "check", "completions", "man"];

fn fail(error: &Error) -> ExitCode {
    output::print_error(&error.to_string());
    error.details().iter().for_each(|line| output::print_error(line));
    ExitCode::from(error.exit_code())
}

//! The program `uringfs`: one file a command. Exit codes: 0 done, 1 the run failed, 2 what was
//! given cannot be used, 130 stopped by Ctrl-C; `check` has some of its own.

mod info;
mod volume;
mod bench_experiment;
mod bench_run;
mod bench_vm;
mod fio_keys;
mod output;
mod progress;

use clap::{CommandFactory, Parser, Subcommand};
use std::process::ExitCode;
use uringfs_lab::Error;

/// Named files on a raw block device, at the device's own speed.
#[derive(Parser)]
#[command(name = "uringfs", version, subcommand_required = true, arg_required_else_help = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Say what a target is like, and what this machine gives to reach it.
    Info(info::Arguments),
    /// Measure.
    #[command(subcommand)]
    Bench(Bench),
    /// Make a volume, which holds files under names.
    Mkfs(volume::mkfs::Arguments),
    /// Say whether a volume is sound, and mend it.
    ///
    /// Verified are the metadata: names, inodes, extents and free space, by their checksums and against each
    /// other; with --deep also that every block of the files can be read. Whether files hold the bytes that
    /// were written to them is not: there are no checksums of those.
    ///
    /// Exit codes: 0 it is sound; 1 everything that was wrong is repaired; 4 something is wrong, and
    /// left; 8 the device failed; 2 what was given cannot be used.
    Check(volume::check::Arguments),
    /// Make a volume larger.
    Resize(volume::resize::Arguments),
    /// Say how much room a volume has.
    Df(volume::df::Arguments),
    /// Put files and directories into a volume.
    ///
    /// What is there: a directory goes into a directory that is there, and nothing else takes the place of
    /// one. A file or a link is replaced when the new one is whole, the link itself and not what it leads to.
    /// A device, a FIFO or a socket is replaced only by its like, or with -f. With -n all that is there stays
    /// as it is. What the same command has just put is never replaced, and the volume's own image is not put
    /// into it.
    ///
    /// What cannot be put is named, and the others have their turn; the exit code is 1 then.
    Put(volume::put::Arguments),
    /// Get files and directories out of a volume.
    ///
    /// What is there: a directory goes into a directory that is there, and nothing else takes the place of
    /// one. A file or a link is replaced when the new one is whole, the link itself and not what it leads to.
    /// A device, a FIFO or a socket is replaced only by its like, or with -f. With -n all that is there stays
    /// as it is. What the same command has just made is never replaced, nor the image that is read.
    ///
    /// Modes, times and extended attributes are the volume's; owners, too, if root gets them. Set-ID bits are
    /// kept where owner and group are. Images of strangers are best got with --no-privileges.
    ///
    /// What cannot be got is named, and the others have their turn; the exit code is 1 then.
    Get(volume::get::Arguments),
    /// List names in a volume.
    Ls(volume::ls::Arguments),
    /// Show what is below a directory of a volume.
    Tree(volume::tree::Arguments),
    /// Write a volume's files to standard output.
    Cat(volume::cat::Arguments),
    /// Say what is known of a volume's files.
    Stat(volume::stat::Arguments),
    /// Make directories in a volume.
    Mkdir(volume::mkdir::Arguments),
    /// Remove files, and with -r directories, from a volume.
    Rm(volume::rm::Arguments),
    /// Move or rename in a volume.
    ///
    /// What is there: a directory takes the place of an empty one, and nothing else takes that of a directory.
    /// A file or a link is replaced, the link itself and not what it leads to. A device, a FIFO or a socket is
    /// replaced only by its like, or with -f. With -n what is there stays as it is, and nothing is moved.
    Mv(volume::mv::Arguments),
    /// Give a volume's file one more name, or make a symbolic link.
    Ln(volume::ln::Arguments),
    /// Set permissions in a volume.
    Chmod(volume::chmod::Arguments),
    /// Give a volume's files to another user or group.
    Chown(volume::chown::Arguments),
    /// Read and set extended attributes in a volume.
    #[command(subcommand)]
    Xattr(volume::xattr::Arguments),
    /// Cut files in a volume off, or make them longer.
    Truncate(volume::truncate::Arguments),
    /// Say how much room files in a volume take.
    Du(volume::du::Arguments),
}

#[derive(Subcommand)]
enum Bench {
    /// Run fio job files, or fio keys given as --key=value.
    Run(bench_run::Arguments),
    /// Compare the two sides of a mechanism, interleaved, beside the bare ring.
    Experiment(bench_experiment::Arguments),
    /// Count instructions in a Linux guest under QEMU.
    Vm(bench_vm::Arguments),
}

fn main() -> ExitCode {
    let arguments = match fio_keys::wrap_keys(&Arguments::command(), std::env::args_os().collect())
    {
        Ok(arguments) => Arguments::parse_from(arguments),
        Err(error) => return fail(&error),
    };
    let result = match arguments.command {
        Command::Info(arguments) => info::run(arguments),
        Command::Bench(Bench::Run(arguments)) => bench_run::run(arguments),
        Command::Bench(Bench::Experiment(arguments)) => bench_experiment::run(arguments),
        Command::Bench(Bench::Vm(arguments)) => bench_vm::run(arguments),
        Command::Mkfs(arguments) => volume::mkfs::run(arguments),
        Command::Check(arguments) => volume::check::run(arguments),
        Command::Resize(arguments) => volume::resize::run(arguments),
        Command::Df(arguments) => volume::df::run(arguments),
        Command::Put(arguments) => volume::put::run(arguments),
        Command::Get(arguments) => volume::get::run(arguments),
        Command::Ls(arguments) => volume::ls::run(arguments),
        Command::Tree(arguments) => volume::tree::run(arguments),
        Command::Cat(arguments) => volume::cat::run(arguments),
        Command::Stat(arguments) => volume::stat::run(arguments),
        Command::Mkdir(arguments) => volume::mkdir::run(arguments),
        Command::Rm(arguments) => volume::rm::run(arguments),
        Command::Mv(arguments) => volume::mv::run(arguments),
        Command::Ln(arguments) => volume::ln::run(arguments),
        Command::Chmod(arguments) => volume::chmod::run(arguments),
        Command::Chown(arguments) => volume::chown::run(arguments),
        Command::Xattr(arguments) => volume::xattr::run(arguments),
        Command::Truncate(arguments) => volume::truncate::run(arguments),
        Command::Du(arguments) => volume::du::run(arguments),
    };
    match result {
        Ok(code) => ExitCode::from(code),
        Err(error) => fail(&error),
    }
}

fn fail(error: &Error) -> ExitCode {
    output::print_error(&error.to_string());
    ExitCode::from(error.exit_code())
}

//! The program `uringfs`: one file a command. Exit codes: 0 done, 1 the run failed, 2 what was
//! given cannot be used, 130 stopped by Ctrl-C.

mod bench_experiment;
mod bench_run;
mod bench_vm;
mod fio_keys;
mod info;
mod output;
mod progress;

use clap::{Parser, Subcommand};
use std::io::Write;
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
    let arguments = match fio_keys::gather(std::env::args_os().collect()) {
        Ok(arguments) => Arguments::parse_from(arguments),
        Err(error) => return fail(&error),
    };
    let done = match arguments.command {
        Command::Info(arguments) => info::run(arguments),
        Command::Bench(Bench::Run(arguments)) => bench_run::run(arguments),
        Command::Bench(Bench::Experiment(arguments)) => bench_experiment::run(arguments),
        Command::Bench(Bench::Vm(arguments)) => bench_vm::run(arguments),
    };
    match done {
        Ok(code) => ExitCode::from(code),
        Err(error) => fail(&error),
    }
}

fn fail(error: &Error) -> ExitCode {
    complain(&error.to_string());
    ExitCode::from(error.exit_code())
}

/// Says a line on standard error; if nobody hears it, the exit code has to do. Names and what other
/// programs said stand in it as they came: their control characters are shown, not sent.
fn complain(words: &str) {
    let mut line = String::with_capacity(words.len());
    for character in words.chars() {
        if character.is_control() {
            line.extend(character.escape_default());
        } else {
            line.push(character);
        }
    }
    let _ = writeln!(std::io::stderr(), "uringfs: {line}");
}

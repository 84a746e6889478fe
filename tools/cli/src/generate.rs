//! `uringfs completions` and the hidden `uringfs man`, by which packages get their files.

use crate::other_names;
use crate::output::print_bytes;
use clap::{Arg, Command, ValueEnum};
use clap_mangen::Man;
use std::path::PathBuf;
use uringfs_lab::Error;

/// The arguments of `completions`.
#[derive(clap::Args)]
pub struct CompletionArguments {
    /// The shell
    shell: Shell,
    /// The program's name: uringfs, mkfs.uringfs or fsck.uringfs
    #[arg(value_enum, default_value_t = Name::Uringfs)]
    name: Name,
}

#[derive(ValueEnum, Clone, Copy)]
enum Shell {
    Bash,
    Zsh,
    Fish,
}

#[derive(ValueEnum, Clone, Copy)]
enum Name {
    #[value(name = "uringfs")]
    Uringfs,
    #[value(name = other_names::MKFS)]
    Mkfs,
    #[value(name = other_names::FSCK)]
    Fsck,
}

/// The arguments of `man`.
#[derive(clap::Args)]
pub struct ManArguments {
    /// An existing folder
    folder: PathBuf,
}

/// Prints a shell's completions of one of the program's names. Returns the exit code.
pub fn completions(arguments: &CompletionArguments, command: Command) -> Result<u8, Error> {
    let shell = match arguments.shell {
        Shell::Bash => clap_complete::Shell::Bash,
        Shell::Zsh => clap_complete::Shell::Zsh,
        Shell::Fish => clap_complete::Shell::Fish,
    };
    let [mkfs, fsck] = other_names::commands(&command);
    let (mut command, name) = match arguments.name {
        Name::Uringfs => (command, "uringfs"),
        Name::Mkfs => (mkfs, other_names::MKFS),
        Name::Fsck => (fsck, other_names::FSCK),
    };
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut command, name, &mut text);
    print_bytes(&text)?;
    Ok(0)
}

/// Writes a page for each command and each other name of the program: `uringfs.1`, `uringfs-ls.1`, `fsck.uringfs.8`.
/// Returns the exit code.
pub fn man(arguments: &ManArguments, command: Command) -> Result<u8, Error> {
    let folder = &arguments.folder;
    let others = other_names::commands(&command).into_iter();
    let mut others = others.chain(other_names::mount_commands());
    let mut command = without_help_commands(command);
    command.build();
    clap_mangen::generate_to(with_synopsis(command), folder)
        .and_then(|()| {
            others.try_for_each(|other| {
                let mut other = other.disable_help_subcommand(true);
                other.build();
                let page = Man::new(with_synopsis(other)).section("8");
                page.generate_to(folder).map(drop)
            })
        })
        .map_err(|error| {
            let what = format!("{}: the pages cannot be written", folder.display());
            Error::input(what).because(error)
        })?;
    Ok(0)
}

/// Hides `help` among the commands, and among those of each command: it would have a page for each other one.
fn without_help_commands(command: Command) -> Command {
    command.mut_subcommands(|inner| match inner.get_name() {
        "help" => inner.hide(true),
        _ => without_help_commands(inner),
    })
}

/// Adds a synopsis with the names of values, which `clap_mangen` leaves out, to each command without commands.
fn with_synopsis(command: Command) -> Command {
    if command.has_subcommands() {
        return command.mut_subcommands(with_synopsis);
    }
    let name = command.get_bin_name().unwrap_or(command.get_name());
    let is_shown = |argument: &&Arg| !argument.is_hide_set();
    let options = command.get_opts().chain(command.get_arguments().filter(|it| is_flag(it)));
    let words = options.chain(command.get_positionals()).filter(is_shown).map(synopsis_of);
    let usage = [name.to_owned()].into_iter().chain(words).collect::<Vec<_>>().join(" ");
    command.override_usage(usage)
}

fn is_flag(argument: &Arg) -> bool {
    !argument.is_positional() && !argument.get_action().takes_values()
}

/// `[-f|--force]`, `[--size SIZE]`, `[--color[=WHEN]]`, `PATH...`
fn synopsis_of(argument: &Arg) -> String {
    let short = argument.get_short().map(|short| format!("-{short}"));
    let long = argument.get_long().map(|long| format!("--{long}"));
    let option = short.into_iter().chain(long).collect::<Vec<_>>().join("|");
    let values = argument.get_value_names().unwrap_or_default().join(" ");
    let takes_values = argument.is_positional() || argument.get_action().takes_values();
    let count = argument.get_num_args().unwrap_or_default();
    let text = match (argument.is_positional(), takes_values) {
        (true, _) if count.max_values() > 1 => format!("{values}..."),
        (true, _) => values,
        (false, true) if count.min_values() == 0 => format!("{option}[={values}]"),
        (false, true) => format!("{option} {values}"),
        (false, false) => option,
    };
    if argument.is_required_set() { text } else { format!("[{text}]") }
}

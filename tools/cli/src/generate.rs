//! `uringfs completions` and the hidden `uringfs man`, by which packages get their files.

use crate::other_names;
use crate::output::print_bytes;
use clap::{Command, ValueEnum};
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
    clap_mangen::generate_to(without_help_commands(command), folder)
        .and_then(|()| {
            others.try_for_each(|other| {
                let page = Man::new(other.disable_help_subcommand(true)).section("8");
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

//! `uringfs completions` and the hidden `uringfs man`, by which packages get their files.

use crate::output::print_bytes;
use clap::{Command, ValueEnum};
use std::path::PathBuf;
use uringfs_lab::Error;

/// The arguments of `completions`.
#[derive(clap::Args)]
pub struct CompletionArguments {
    /// The shell
    shell: Shell,
}

#[derive(ValueEnum, Clone, Copy)]
enum Shell {
    Bash,
    Zsh,
    Fish,
}

/// The arguments of `man`.
#[derive(clap::Args)]
pub struct ManArguments {
    /// An existing folder
    folder: PathBuf,
}

/// Prints the completions of a shell. Returns the exit code.
pub fn completions(arguments: &CompletionArguments, mut command: Command) -> Result<u8, Error> {
    let shell = match arguments.shell {
        Shell::Bash => clap_complete::Shell::Bash,
        Shell::Zsh => clap_complete::Shell::Zsh,
        Shell::Fish => clap_complete::Shell::Fish,
    };
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut command, "uringfs", &mut text);
    print_bytes(&text)?;
    Ok(0)
}

/// Writes a page for each command: `uringfs.1`, `uringfs-ls.1`. Returns the exit code.
pub fn man(arguments: &ManArguments, command: Command) -> Result<u8, Error> {
    clap_mangen::generate_to(command, &arguments.folder).map_err(|error| {
        let folder = arguments.folder.display();
        Error::input(format!("{folder}: the pages cannot be written")).because(error)
    })?;
    Ok(0)
}

//! `--path PATH` after a TARGET: the path in its volume, whatever colons the names have. Before clap parses, both become one
//! argument with a NUL between them, which no argument of a process can have.

use clap::{Arg, Command};
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use uringfs_lab::Error;

/// Between a target and a path.
pub const SEPARATOR: u8 = 0;

/// The commands on paths in volumes.
const COMMANDS: [&str; 22] = [
    "cat", "chgrp", "chmod", "chown", "cp", "df", "du", "find", "get", "ln", "ls", "mkdir", "mv",
    "put", "rm", "rmdir", "serve", "stat", "touch", "tree", "truncate", "xattr",
];

const HELP: &str =
    "The path in the volume of the TARGET before it, instead of TARGET:/path: for names with ':/'";

/// Describes the option in the help of the commands that have it. No match has it: [`join`] takes it before.
pub fn define(mut command: Command) -> Command {
    for name in COMMANDS {
        command = command.mut_subcommand(name, define_in);
    }
    command
}

fn define_in(command: Command) -> Command {
    if command.has_subcommands() {
        return command.mut_subcommands(define_in);
    }
    command.arg(Arg::new("path of target").long("path").value_name("PATH").help(HELP))
}

/// Joins each PATH with its TARGET.
///
/// # Errors
/// There is no TARGET before it, or no PATH.
pub fn join(arguments: Vec<OsString>) -> Result<Vec<OsString>, Error> {
    let command = arguments.get(1).and_then(|name| name.to_str());
    if !command.is_some_and(|name| COMMANDS.contains(&name)) {
        return Ok(arguments);
    }
    let mut rest = arguments.into_iter();
    let mut joined: Vec<OsString> = rest.by_ref().take(2).collect();
    let words = joined.len();
    while let Some(argument) = rest.next() {
        if argument == "--" {
            joined.push(argument);
            joined.extend(rest);
            break;
        }
        let path = match argument.as_bytes().strip_prefix(b"--path") {
            Some([]) => rest.next().map(OsString::into_vec),
            Some([b'=', path @ ..]) => Some(path.to_vec()),
            _ => {
                joined.push(argument);
                continue;
            }
        };
        let path = path.ok_or_else(|| Error::input("--path needs a path in a volume"))?;
        let is_target = |name: &OsString| {
            !name.as_bytes().starts_with(b"-") && !name.as_bytes().contains(&SEPARATOR)
        };
        let target =
            if joined.len() > words { joined.pop_if(|last| is_target(last)) } else { None };
        let Some(target) = target else {
            let what = "--path follows the TARGET of its volume: TARGET --path PATH";
            return Err(Error::input(what));
        };
        let slash: &[u8] = if path.starts_with(b"/") { b"" } else { b"/" };
        let target = target.as_bytes();
        joined.push(OsString::from_vec([target, &[SEPARATOR], slash, &path].concat()));
    }
    Ok(joined)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn joined(line: &[&str]) -> Result<Vec<String>, String> {
        let line = [&["uringfs"], line].concat().iter().map(OsString::from).collect();
        let joined = join(line).map_err(|error| error.to_string())?;
        Ok(joined.into_iter().skip(1).map(|argument| argument.into_string().unwrap()).collect())
    }

    #[test]
    fn a_path_joins_the_target_before_it() {
        for (line, expected) in [
            (&["ls", "v", "--path", "/a:/b"][..], &["ls", "v\0/a:/b"][..]),
            (&["ls", "-l", "v", "--path=a", "-r"], &["ls", "-l", "v\0/a", "-r"]),
            (&["cp", "v", "--path", "/a", "w", "--path", "/b"], &["cp", "v\0/a", "w\0/b"]),
            (&["xattr", "list", "v", "--path="], &["xattr", "list", "v\0/"]),
            (&["rm", "--", "v", "--path", "/a"], &["rm", "--", "v", "--path", "/a"]),
            (&["info", "v", "--path", "/a"], &["info", "v", "--path", "/a"]),
            (&["ls", "v", "--paths"], &["ls", "v", "--paths"]),
        ] {
            assert_eq!(joined(line).unwrap(), expected, "{line:?}");
        }
    }

    #[test]
    fn a_path_without_a_target_is_refused() {
        for line in
            [&["ls", "--path", "/a"][..], &["ls", "-l", "--path=/a"], &["ls", "v", "--path"]]
        {
            assert!(joined(line).unwrap_err().contains("--path"), "{line:?}");
        }
        assert!(joined(&["ls", "v", "--path", "/a", "--path", "/b"]).is_err());
    }
}

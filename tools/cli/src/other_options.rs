//! Options and commands of the neighbouring programs that `uringfs` does not have: their errors say what to use instead.

use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue};
use uringfs::device::backend::parse_size;

/// Options of coreutils by command, each with what does the same.
const OPTIONS: [(&str, &[&str], &str); 10] = [
    ("ls", &["-C", "-x", "-m", "-w"], "names have a line each; pipe them to column for columns"),
    ("ls", &["-v"], "to sort by version numbers, pipe the names to sort -V"),
    ("ls", &["-L", "-H"], "uringfs stat -L shows the file that a link leads to"),
    ("ls", &["-f"], "use -aU, which does not sort"),
    ("ls", &["-I", "-B"], "uringfs find has tests of names: ! -name GLOB"),
    ("ls", &["-Z"], "uringfs xattr get security.selinux shows the security context"),
    ("df", &["-i"], "a volume has no fixed number of inodes; uringfs find lists the files"),
    ("du", &["-L", "-D", "-H"], "links are counted themselves; name the directories they lead to"),
    ("du", &["-x"], "a volume has no mounts in it, so -x would change nothing"),
    (
        "tree",
        &["-h", "-s", "-p", "-u", "-g", "-D"],
        "uringfs find -ls, ls -lhR and du -h show sizes",
    ),
];

/// The commands on files of the host, whose names may begin with a hyphen. No path in a volume does.
const HOST_COMMANDS: [&str; 4] = ["put", "get", "mkfs", "bench"];

/// Adds what to use instead of an unknown option. Otherwise takes away the tip to write `-- -X`, unless -X may be a path.
pub fn explain(error: &mut clap::Error, command: &str) {
    if !HOST_COMMANDS.contains(&command) {
        error.remove(ContextKind::Suggested);
    }
    let Some(ContextValue::String(option)) = error.get(ContextKind::InvalidArg) else { return };
    if command == "mkfs" && parse_size(option).is_ok() {
        let tip = format!("--size {option} sets the size of the volume");
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
        return;
    }
    let is_meant = |(name, options, _): &&(&str, &[&str], &str)| {
        *name == command && options.contains(&option.as_str())
    };
    if let Some((_, _, instead)) = OPTIONS.iter().find(is_meant) {
        let tip = ContextValue::StyledStrs(vec![StyledStr::from(*instead)]);
        error.insert(ContextKind::Suggested, tip);
    }
}

/// Names of other programs, each with the command that does the same.
const NEIGHBOURS: [(&str, &str); 8] = [
    ("create", "mkfs"),
    ("format", "mkfs"),
    ("fsck", "check"),
    ("repair", "check"),
    ("unmount", "umount"),
    ("destroy", "wipe"),
    ("wipefs", "wipe"),
    ("remove", "rm"),
];

/// Suggests the command that is meant by another program's name.
pub fn suggest_command(error: &mut clap::Error, command: &str) {
    if let Some((_, suggested)) = NEIGHBOURS.iter().find(|(name, _)| *name == command) {
        let suggested = ContextValue::Strings(vec![(*suggested).to_owned()]);
        error.insert(ContextKind::SuggestedSubcommand, suggested);
    }
}

/// If a single path is given, clap takes it for the destination, which is last, and misses the sources.
pub fn name_destination(error: &mut clap::Error, command: &str) {
    let destination = match command {
        "put" => "<TARGET:/path>",
        "get" => "<DEST>",
        _ => return,
    };
    if let Some(ContextValue::Strings(missing)) = error.get(ContextKind::InvalidArg)
        && missing.len() == 1
    {
        let missing = ContextValue::Strings(vec![destination.to_owned()]);
        error.insert(ContextKind::InvalidArg, missing);
    }
}

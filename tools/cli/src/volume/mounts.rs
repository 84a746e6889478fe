//! The volumes that are mounted, by `/proc/self/mounts`, and the processes that serve them. A file may have lost the name
//! that a mount shows, or have others: the process that has the volume open leads to its mount.

use super::host::file_id;
use super::quoting::for_message;
use super::target::{canonical, is_uri};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use uringfs::volume::Holder;

/// A mounted volume.
pub(super) struct Mounted {
    /// The file or device of the volume.
    pub(super) source: PathBuf,
    pub(super) directory: PathBuf,
}

/// The volumes that can be seen at their directories, in the order in which they were mounted. A mount under another one is
/// none of them.
pub(super) fn mounted_volumes() -> io::Result<Vec<Mounted>> {
    Ok(parse(&fs::read("/proc/self/mounts")?))
}

/// The volume on a directory, whose path is absolute.
pub(super) fn volume_on(directory: &Path) -> io::Result<Option<Mounted>> {
    Ok(mounted_volumes()?.into_iter().find(|mounted| mounted.directory == directory))
}

/// The mounted volume of a target, also if it was mounted by another name of that file.
pub(super) fn mounted_from(target: &Path) -> Option<Mounted> {
    let mut volumes = mounted_volumes().ok()?;
    let named = Holder::find(target).map_or(Vec::new(), |server| directories_of(server.process()));
    let is_served = |mounted: &Mounted| named.contains(&mounted.directory);
    let at = volumes.iter().position(is_served);
    let at = at.or_else(|| volumes.iter().position(|it| is_same_file(&it.source, target)))?;
    Some(volumes.swap_remove(at))
}

/// Whether two targets are one file, or one export.
fn is_same_file(one: &Path, other: &Path) -> bool {
    let file = |path: &Path| path.metadata().ok().map(|found| file_id(&found));
    match is_uri(one) || is_uri(other) {
        true => canonical(one).is_some_and(|one| Some(one) == canonical(other)),
        false => file(one).is_some_and(|one| Some(one) == file(other)),
    }
}

/// The process that serves the mount on a directory.
pub(super) fn server_of(directory: &Path) -> Option<u32> {
    processes().find(|process| {
        serves_a_mount(*process) && directories_of(*process).iter().any(|it| it == directory)
    })
}

/// The process that serves a configuration, by the absolute path of its file.
pub(super) fn server_of_config(config: &Path) -> Option<u32> {
    processes().find(|process| {
        let arguments = arguments_of(*process);
        arguments.get(1).is_some_and(|command| command == "serve")
            && paths_of(*process, &arguments).iter().any(|path| path == config)
    })
}

/// A process in whose mount namespace the volume of a server is mounted, though it is not in this one.
pub(super) fn user_in_another_namespace(server: u32) -> Option<u32> {
    let directories = directories_of(server);
    processes().find(|process| {
        let mounts = fs::read(format!("/proc/{process}/mounts")).unwrap_or_default();
        parse(&mounts).iter().any(|mounted| directories.contains(&mounted.directory))
    })
}

fn processes() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Whether a process is `uringfs mount`.
pub(super) fn serves_a_mount(process: u32) -> bool {
    arguments_of(process).get(1).is_some_and(|command| command == "mount")
}

/// The paths that the arguments of a process name. The server of a mount names its directory there.
fn directories_of(process: u32) -> Vec<PathBuf> {
    paths_of(process, &arguments_of(process))
}

fn paths_of(process: u32, arguments: &[OsString]) -> Vec<PathBuf> {
    // The directory of another user's process cannot be read. A server in the background is in `/`.
    let current = fs::read_link(format!("/proc/{process}/cwd")).unwrap_or_else(|_| "/".into());
    let value = |argument: &OsString| match argument.as_bytes().strip_prefix(b"--config=") {
        Some(path) => OsStr::from_bytes(path).to_owned(),
        None => argument.clone(),
    };
    let paths = arguments.iter().map(|argument| current.join(value(argument)));
    paths.filter_map(|path| path.canonicalize().ok()).collect()
}

/// Empty for a process that is ending.
pub(super) fn arguments_of(process: u32) -> Vec<OsString> {
    let line = fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
    let words = line.split(|byte| *byte == 0).filter(|word| !word.is_empty());
    words.map(|word| OsStr::from_bytes(word).to_owned()).collect()
}

/// The advice about a target whose volume is mounted, instead of a command on a path in it. None if it is not mounted.
pub(super) fn advice(target: &Path, path: &[u8]) -> Option<String> {
    let directory = mounted_from(target)?.directory;
    let shown = for_message(&directory);
    let below = &path[path.iter().take_while(|byte| **byte == b'/').count()..];
    let what = match below.is_empty() {
        true => "its files there".to_owned(),
        false => for_message(&directory.join(OsStr::from_bytes(below))).to_string(),
    };
    Some(format!("it is mounted on {shown}: use {what}, or run uringfs umount {shown} first"))
}

fn parse(mounts: &[u8]) -> Vec<Mounted> {
    let mut seen: Vec<(OsString, Mounted)> = Vec::new();
    for line in mounts.split(|byte| *byte == b'\n') {
        let mut words = line.split(|byte| *byte == b' ').map(unescape);
        if let (Some(source), Some(directory), Some(kind)) =
            (words.next(), words.next(), words.next())
        {
            let mounted = Mounted { source: source.into(), directory: directory.into() };
            seen.retain(|(_, under)| under.directory != mounted.directory);
            seen.push((kind, mounted));
        }
    }
    seen.retain(|(kind, _)| kind == "fuse.uringfs" || kind == "fuseblk.uringfs");
    seen.into_iter().map(|(_, mounted)| mounted).collect()
}

/// A word of `/proc/mounts`: space, tab, newline and backslash are written in octal.
fn unescape(word: &[u8]) -> OsString {
    let (mut bytes, mut rest) = (Vec::new(), word);
    while let Some((first, after)) = rest.split_first() {
        let code = after.get(..3).filter(|_| *first == b'\\');
        let code = code.and_then(|code| u8::from_str_radix(str::from_utf8(code).ok()?, 8).ok());
        match code {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[3..];
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    OsString::from_vec(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_proc_mounts_are_unescaped() {
        assert_eq!(unescape(b"/a\\040b"), "/a b");
        assert_eq!(unescape(b"/a\\"), "/a\\");
        assert_eq!(unescape(b"/a\\0"), "/a\\0");
        assert_eq!(unescape(b"\\134"), "\\");
    }

    #[test]
    fn the_last_mount_on_a_directory_is_seen() {
        let mounts = b"/a.img /m fuse.uringfs rw 0 0\n/dev/b /n\\040o fuseblk.uringfs rw 0 0\ntmpfs /m tmpfs rw 0 0\n";
        let volumes = parse(mounts);
        let shown: Vec<_> =
            volumes.iter().map(|v| (v.source.to_str(), v.directory.to_str())).collect();
        assert_eq!(shown, [(Some("/dev/b"), Some("/n o"))]);
    }
}

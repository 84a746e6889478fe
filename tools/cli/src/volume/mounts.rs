//! The volumes that are mounted, by `/proc/self/mounts`.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// A mounted volume.
pub(super) struct Mounted {
    /// The file or device of the volume.
    pub(super) source: PathBuf,
    pub(super) directory: PathBuf,
}

/// The volumes that can be seen at their directories, in the order in which they were mounted. A mount under another one is
/// none of them.
pub(super) fn mounted_volumes() -> io::Result<Vec<Mounted>> {
    Ok(parse(&std::fs::read("/proc/self/mounts")?))
}

/// The volume on a directory, whose path is absolute.
pub(super) fn volume_on(directory: &Path) -> io::Result<Option<Mounted>> {
    Ok(mounted_volumes()?.into_iter().find(|mounted| mounted.directory == directory))
}

/// The directory that the volume of a target is mounted on.
pub(super) fn directory_of(target: &Path) -> Option<PathBuf> {
    let target = target.canonicalize().ok()?;
    let volumes = mounted_volumes().ok()?;
    volumes.into_iter().find(|mounted| mounted.source == target).map(|mounted| mounted.directory)
}

/// What to do about a target whose volume is mounted. None if it is not.
pub(super) fn advice(target: &Path) -> Option<String> {
    let directory = directory_of(target)?;
    let shown = directory.display();
    Some(format!(
        "it is mounted on {shown}: use its files there, or run uringfs umount {shown} first"
    ))
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
    seen.retain(|(kind, _)| kind == "fuse.uringfs");
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
        let mounts = b"/a.img /m fuse.uringfs rw 0 0\n/b.img /n\\040o fuse.uringfs rw 0 0\ntmpfs /m tmpfs rw 0 0\n";
        let volumes = parse(mounts);
        let shown: Vec<_> =
            volumes.iter().map(|v| (v.source.to_str(), v.directory.to_str())).collect();
        assert_eq!(shown, [(Some("/b.img"), Some("/n o"))]);
    }
}

//! `uringfs umount`: unmounts a volume, and returns when it is closed.

use super::exit_codes::{not_found, with_io_code};
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use uringfs_fuse::unmount;
use uringfs_lab::Error;

/// The arguments of the command.
#[derive(clap::Args)]
pub struct Arguments {
    /// The directory that the volume is mounted on
    directory: PathBuf,

    /// Free the directory at once. Programs that use the mount keep it until they end
    #[arg(short, long)]
    lazy: bool,
}

/// Returns the exit code.
pub fn run(arguments: Arguments) -> Result<u8, Error> {
    let shown = arguments.directory.display();
    let failed = |error: io::Error| with_io_code(Error::run(format!("{shown}: {error}")), &error);
    let directory = arguments.directory.canonicalize().map_err(failed)?;
    let Some(source) = mounted_source(&directory).map_err(failed)? else {
        return Err(not_found(format!("{shown}: no volume is mounted there")));
    };
    unmount(&directory, arguments.lazy).map_err(failed)?;
    if !arguments.lazy {
        wait_until_closed(&source).map_err(failed)?;
    }
    Ok(0)
}

/// The volume that is mounted on a directory.
fn mounted_source(directory: &Path) -> io::Result<Option<PathBuf>> {
    let mounts = std::fs::read("/proc/self/mounts")?;
    let mut found = None;
    for line in mounts.split(|byte| *byte == b'\n') {
        let mut words = line.split(|byte| *byte == b' ').map(unescape);
        if let (Some(source), Some(at), Some(kind)) = (words.next(), words.next(), words.next())
            && at == directory.as_os_str()
        {
            // The last mount on a directory is the one that is seen.
            found = (kind == "fuse.uringfs").then(|| source.into());
        }
    }
    Ok(found)
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

/// Waits until the process that served the volume has let it go: until its lock is free.
fn wait_until_closed(source: &Path) -> io::Result<()> {
    File::open(source)?.lock()
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
}

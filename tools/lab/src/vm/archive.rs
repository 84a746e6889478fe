//! Writes the initial file system of a Linux guest: a cpio archive in the "newc" format, which the kernel
//! unpacks at boot (Documentation/driver-api/early-userspace/buffer-format.rst). All files belong to root
//! and have no times, so that equal content gives equal bytes.

use std::io::{self, Write};

/// A writer of an archive.
pub struct Archive<W> {
    out: W,
    entries: u32,
}

/// The kinds of files, as in `st_mode`.
const FOLDER: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;
const DATA: u32 = 0o100_644;
const LINK: u32 = 0o120_777;

impl<W: Write> Archive<W> {
    /// Begins an archive, written to `out`.
    pub fn new(out: W) -> Self {
        Self { out, entries: 0 }
    }

    /// Adds a directory; its parent must come first.
    pub fn folder(&mut self, name: &str) -> io::Result<()> {
        self.entry(name, FOLDER, &[])
    }

    /// Adds an executable file.
    pub fn program(&mut self, name: &str, bytes: &[u8]) -> io::Result<()> {
        self.entry(name, PROGRAM, bytes)
    }

    /// Adds a data file.
    pub fn data(&mut self, name: &str, bytes: &[u8]) -> io::Result<()> {
        self.entry(name, DATA, bytes)
    }

    /// Adds a symbolic link.
    pub fn link(&mut self, name: &str, target: &str) -> io::Result<()> {
        self.entry(name, LINK, target.as_bytes())
    }

    /// Writes the trailer and returns the output.
    pub fn finish(mut self) -> io::Result<W> {
        self.entry("TRAILER!!!", 0, &[])?;
        Ok(self.out)
    }

    /// Writes a header of fixed width, the name with a zero byte, and the content, each padded to 4 bytes.
    fn entry(&mut self, name: &str, mode: u32, bytes: &[u8]) -> io::Result<()> {
        const PADDING: [u8; 4] = [0; 4];
        const HEADER: usize = 110;
        let length = u32::try_from(bytes.len())
            .map_err(|_| io::Error::other(format!("{name}: 4 GiB or more")))?;
        self.entries += 1;
        let name_length = name.len() as u32 + 1;
        let (owner, group, links, time, device) = (0, 0, 1, 0, 0);
        let fields = [
            self.entries,
            mode,
            owner,
            group,
            links,
            time,
            length,
            device,
            device,
            device,
            device,
            name_length,
            0,
        ];
        self.out.write_all(b"070701")?;
        for field in fields {
            write!(self.out, "{field:08X}")?;
        }
        let pad = |length: usize| &PADDING[..length.next_multiple_of(4) - length];
        self.out.write_all(name.as_bytes())?;
        self.out.write_all(&[0])?;
        self.out.write_all(pad(HEADER + name.len() + 1))?;
        self.out.write_all(bytes)?;
        self.out.write_all(pad(bytes.len()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_has_the_documented_layout() {
        let mut archive = Archive::new(Vec::new());
        archive.folder("bin").unwrap();
        archive.program("bin/x", b"hello").unwrap();
        let bytes = archive.finish().unwrap();
        // Header 110, "bin\0" 4, padded to 116; header, "bin/x\0", then 5 bytes padded to 8.
        assert_eq!(&bytes[..6], b"070701");
        assert_eq!(&bytes[6..14], b"00000001");
        assert_eq!(&bytes[14..22], b"000041ED");
        assert_eq!(&bytes[94..102], b"00000004", "the name's length");
        assert_eq!(&bytes[110..116], b"bin\0\0\0");
        let second = &bytes[116..];
        assert_eq!(&second[..6], b"070701");
        assert_eq!(&second[54..62], b"00000005", "the file's size");
        assert_eq!(&second[110..124], b"bin/x\0hello\0\0\0");
        assert!(bytes.ends_with(b"TRAILER!!!\0\0\0\0"));
        assert_eq!(bytes.len() % 4, 0);
    }
}

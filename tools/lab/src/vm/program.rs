//! The program that runs in the guest: this one, built statically, for the guest has no libraries.

use crate::Error;
use std::path::{Path, PathBuf};

/// How it is built.
const BUILD: &str = "RUSTFLAGS='-C target-feature=+crt-static' cargo build --release --locked \
                     --target x86_64-unknown-linux-gnu --bin uringfs";

/// The static program: the one given, this one, or the one that the command above leaves beside it.
///
/// # Errors
/// There is none; the message has the command that makes it.
pub fn find(given: Option<&Path>) -> Result<PathBuf, Error> {
    if let Some(path) = given {
        return must_be_static(path).map(|()| path.to_owned());
    }
    let here = std::env::current_exe()
        .map_err(|error| Error::run("cannot find this program's own file").because(error))?;
    // target/PROFILE/uringfs, beside it target/TRIPLE/release/uringfs.
    let beside = here.ancestors().nth(2).map(|target| {
        target.join("x86_64-unknown-linux-gnu/release").join(here.file_name().unwrap_or_default())
    });
    let candidates = [Some(here), beside].into_iter().flatten();
    let mut found = candidates.filter(|path| is_static(path).unwrap_or(false));
    found.next().ok_or_else(|| {
        Error::input(format!("the guest needs a static uringfs (or --program PATH): {BUILD}"))
    })
}

/// An error for what a guest cannot run.
pub(super) fn must_be_static(path: &Path) -> Result<(), Error> {
    match is_static(path) {
        Ok(true) => Ok(()),
        Ok(false) => Err(Error::input(format!(
            "{}: not a static program for x86-64 (RUSTFLAGS='-C target-feature=+crt-static')",
            path.display()
        ))),
        Err(error) => Err(Error::input(path.display().to_string()).because(error)),
    }
}

/// Whether a file is an x86-64 program that asks for no loader: an ELF file without `PT_INTERP`.
fn is_static(path: &Path) -> std::io::Result<bool> {
    Ok(is_static_elf(&std::fs::read(path)?).unwrap_or(false))
}

/// None for what is no complete ELF file.
fn is_static_elf(bytes: &[u8]) -> Option<bool> {
    const IDENTITY: &[u8] = b"\x7fELF\x02\x01";
    const X86_64: u16 = 62;
    const PT_INTERP: u32 = 3;
    let half = |at: usize| Some(u16::from_le_bytes(*bytes.get(at..)?.first_chunk()?));
    let word = |at: usize| Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?));
    let long = |at: usize| Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?));
    if !bytes.starts_with(IDENTITY) || half(18)? != X86_64 {
        return Some(false);
    }
    let (headers, size, count) = (long(32)? as usize, half(54)? as usize, half(56)? as usize);
    for index in 0..count {
        if word(headers.checked_add(index.checked_mul(size)?)?)? == PT_INTERP {
            return Some(false);
        }
    }
    Some(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An ELF header and one program header of this type.
    fn elf(header: u32) -> Vec<u8> {
        let mut bytes = vec![0; 64 + 56];
        bytes[..6].copy_from_slice(b"\x7fELF\x02\x01");
        bytes[18] = 62;
        bytes[32] = 64;
        bytes[54] = 56;
        bytes[56] = 1;
        bytes[64] = header as u8;
        bytes
    }

    #[test]
    fn a_program_with_an_interpreter_is_not_static() {
        assert_eq!(is_static_elf(&elf(1)), Some(true));
        assert_eq!(is_static_elf(&elf(3)), Some(false));
        assert_eq!(is_static_elf(b"#!/bin/sh\n"), Some(false));
        assert_eq!(is_static_elf(&elf(1)[..66]), None);
        let mut beyond = elf(1);
        beyond[32..40].copy_from_slice(&(u64::MAX - 1).to_le_bytes());
        assert_eq!(is_static_elf(&beyond), None);
        let script = tempfile::NamedTempFile::new().unwrap();
        let error = find(Some(script.path())).unwrap_err();
        assert!(error.to_string().contains("crt-static"), "{error}");
    }
}

//! The program that runs in the guest: this program, built statically.

use super::process::{ProcessLimits, first_line};
use crate::Error;
use crc_fast::{CrcAlgorithm, checksum};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The command that builds it.
const BUILD: &str = "RUSTFLAGS='-C target-feature=+crt-static' cargo build --release --locked \
                     --target x86_64-unknown-linux-gnu --bin uringfs";

/// The static program: `given`, this program if it is static, or the one that the command above builds
/// beside it.
///
/// # Errors
/// There is none, or it is older than its sources and would measure old code. The message has the command
/// that builds it.
pub fn find(given: Option<&Path>) -> Result<PathBuf, Error> {
    if let Some(path) = given {
        return require_static(path).map(|()| path.to_owned());
    }
    let here = std::env::current_exe()
        .map_err(|error| Error::run("cannot find this program's own file").because(error))?;
    find_from(here)
}

/// Finds the static program when this program's file is `here`.
fn find_from(here: PathBuf) -> Result<PathBuf, Error> {
    if is_static(&here).unwrap_or(false) {
        return Ok(here);
    }
    // target/PROFILE/uringfs, beside it target/TRIPLE/release/uringfs.
    let beside = here.ancestors().nth(2).map(|target| {
        target.join("x86_64-unknown-linux-gnu/release").join(here.file_name().unwrap_or_default())
    });
    let found = beside.filter(|path| is_static(path).unwrap_or(false)).ok_or_else(|| {
        Error::input(format!(
            "the guest needs a static uringfs; build it, or give --program PATH: {BUILD}"
        ))
    })?;
    match newer_source(&found) {
        None => Ok(found),
        Some(source) => Err(Error::input(format!(
            "the static {} is older than {}; build it again: {BUILD}",
            found.display(),
            source.display()
        ))),
    }
}

/// A source that is newer than a program, by the list that cargo writes beside the program. A source that
/// does not exist any more is ignored: its removal has changed another source, too.
fn newer_source(program: &Path) -> Option<PathBuf> {
    let changed = |path: &Path| path.metadata().and_then(|found| found.modified()).ok();
    let built = changed(program)?;
    let list = std::fs::read_to_string(program.with_extension("d")).ok()?;
    sources(&list).into_iter().find(|source| changed(source).is_some_and(|changed| changed > built))
}

/// Parses a list of cargo: `PROGRAM: SOURCE...`, with spaces in names escaped by a backslash.
fn sources(list: &str) -> Vec<PathBuf> {
    let (_, names) = list.split_once(": ").unwrap_or_default();
    let names = names.trim_end().replace("\\ ", "\0");
    names.split(' ').map(|name| name.replace('\0', " ").into()).collect()
}

/// The identity of a program: its path, its output of `--version`, and the CRC32C of its bytes.
///
/// # Errors
/// It cannot be read, or Ctrl-C.
pub(super) fn identity(path: &Path, limits: ProcessLimits<'_>) -> Result<Value, Error> {
    let bytes = std::fs::read(path)
        .map_err(|error| Error::run(path.display().to_string()).because(error))?;
    // `None` on a machine with another architecture than the guest's.
    let version = first_line(Command::new(path).arg("--version"), limits)?;
    let sum = format!("{:08x}", checksum(CrcAlgorithm::Crc32Iscsi, &bytes));
    Ok(json!({"path": path.display().to_string(), "version": version, "crc32c": sum}))
}

/// An error unless the guest can run the program.
pub(super) fn require_static(path: &Path) -> Result<(), Error> {
    match is_static(path) {
        Ok(true) => Ok(()),
        Ok(false) => Err(Error::input(format!(
            "{}: not a static program for x86-64; build it with RUSTFLAGS='-C target-feature=+crt-static'",
            path.display()
        ))),
        Err(error) => Err(Error::input(path.display().to_string()).because(error)),
    }
}

/// Whether a file is an x86-64 program that needs no loader: an ELF file without `PT_INTERP`.
fn is_static(path: &Path) -> std::io::Result<bool> {
    Ok(is_static_elf(&std::fs::read(path)?).unwrap_or(false))
}

/// `None` for an incomplete ELF file.
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
    fn a_program_with_a_loader_is_not_static() {
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

    #[test]
    fn a_program_older_than_its_sources_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("the target");
        let place = target.join("x86_64-unknown-linux-gnu/release");
        std::fs::create_dir_all(&place).unwrap();
        let (program, source) = (place.join("uringfs"), folder.path().join("a source.rs"));
        let find = || find_from(target.join("debug/uringfs"));
        let at = |path: &Path, seconds| {
            let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(seconds);
            std::fs::File::options().write(true).open(path).unwrap().set_modified(time).unwrap();
        };
        assert!(find().unwrap_err().to_string().contains(BUILD));
        std::fs::write(&program, elf(1)).unwrap();
        std::fs::write(&source, "").unwrap();
        assert_eq!(find().unwrap(), program, "without a list of sources");
        let escaped = |path: &Path| path.display().to_string().replace(' ', "\\ ");
        let list = format!("{}: /gone.rs {}\n", escaped(&program), escaped(&source));
        std::fs::write(place.join("uringfs.d"), list).unwrap();
        at(&program, 20);
        at(&source, 10);
        assert_eq!(find().unwrap(), program);
        at(&source, 30);
        let error = find().unwrap_err().to_string();
        assert!(error.contains("a source.rs") && error.contains(BUILD), "{error}");
    }

    #[test]
    fn a_program_is_identified_by_its_version_and_checksum() {
        let stop = std::sync::atomic::AtomicBool::new(false);
        let limits = ProcessLimits { stop: &stop, limit: std::time::Duration::MAX };
        let provenance = |name: &str, text: &str| {
            let folder = tempfile::tempdir().unwrap();
            let (source, path) = (folder.path().join("source"), folder.path().join(name));
            std::fs::write(&source, text).unwrap();
            // A file that another test's child has inherited open for writing cannot be executed.
            let install =
                Command::new("install").args(["-m", "755"]).arg(source).arg(&path).status();
            assert!(install.unwrap().success());
            super::identity(&path, limits).unwrap()
        };
        let good = provenance("good", "#!/bin/sh\necho uringfs 1.2\n");
        assert_eq!(good["version"], "uringfs 1.2");
        assert!(good["path"].as_str().unwrap().ends_with("/good"));
        let bad = provenance("bad", "123456789");
        assert_eq!((&bad["version"], &bad["crc32c"]), (&Value::Null, &json!("e3069283")));
    }
}

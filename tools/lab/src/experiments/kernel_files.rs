//! Adds files on the kernel's file systems to an experiment. Each is named after its file system.

use super::case::{Beside, Experiment, NamedSide};
use super::comparison::is_job_key;
use crate::Error;
use crate::engine::EngineKind;
use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
use std::path::{Path, PathBuf};

/// Why a kernel's file may be as fast as this stack.
const WHY: &str = "a target that is itself a file on the kernel's file system passes that file system, too, and one disk limits \
                   both; a volume on a block device of its own passes no other file system";

impl Experiment {
    /// Adds a comparison with each of these files, with the same I/O by [`Experiment::kernel_engine`].
    ///
    /// # Errors
    /// A file does not exist, or is not a regular file.
    pub fn add_files_beside(&mut self, files: &[PathBuf]) -> Result<(), Error> {
        for file in files {
            let bad = |text: &str| Error::input(format!("{}: {text}", file.display()));
            match file.metadata() {
                Ok(found) if found.is_file() => {}
                Ok(_) => return Err(bad("is not a file on a file system")),
                Err(error) => return Err(Error::input(file.display().to_string()).because(error)),
            }
            let system = file_system(file).unwrap_or_else(|| "file system".into());
            let mut name = match self.kernel_engine {
                EngineKind::Fio => system,
                engine => format!("{}, {system}", engine.name()),
            };
            if self.beside.iter().any(|beside| beside.side.name == name) {
                name = format!("{name} {}", file.display());
            }
            let side = NamedSide {
                name,
                engine: self.kernel_engine,
                keys: self.on.keys.iter().filter(|pair| is_job_key(pair)).cloned().collect(),
                file: Some(file.clone()),
            };
            self.beside.push(Beside { side, why: WHY });
        }
        Ok(())
    }
}

/// The kernel's name of a file's file system.
fn file_system(path: &Path) -> Option<String> {
    let status = statx(CWD, path, AtFlags::empty(), StatxFlags::MNT_ID).ok()?;
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
    Some(kind_of_mount(&mounts, status.stx_mnt_id)?.to_owned())
}

/// The file system of the mount with this id: the field after the hyphen (proc_pid_mountinfo(5)).
fn kind_of_mount(mounts: &str, number: u64) -> Option<&str> {
    let number = number.to_string();
    let mount = mounts.lines().find(|line| line.split(' ').next() == Some(&number))?;
    mount.split_once(" - ")?.1.split(' ').next()
}

#[cfg(test)]
mod tests {
    use super::super::cases::find;
    use super::*;

    #[test]
    fn the_file_system_is_the_field_after_the_hyphen() {
        let mounts = "24 1 254:1 / / rw shared:1 - ext4 /dev/vda1 rw\n\
                      240 24 0:5 / /a\\040-\\040b rw - btrfs d rw,nodatacow\n";
        assert_eq!(kind_of_mount(mounts, 24), Some("ext4"));
        assert_eq!(kind_of_mount(mounts, 240), Some("btrfs"));
        assert_eq!(kind_of_mount(mounts, 2), None);
        assert_eq!(file_system(Path::new("/proc/version")).as_deref(), Some("proc"));
    }

    #[test]
    fn files_beside_have_distinct_names_after_their_file_systems() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = file.path().to_owned();
        let system = file_system(&path).unwrap();
        for (experiment, name) in
            [("parallel-write", system.clone()), ("completion", format!("psync, {system}"))]
        {
            let mut experiment = find(experiment).unwrap().remove(0);
            let before = experiment.beside.len();
            experiment.add_files_beside(&[path.clone(), path.clone()]).unwrap();
            let beside = &experiment.beside[before..];
            assert_eq!(beside[0].side.name, name);
            assert_eq!(beside[1].side.name, format!("{name} {}", path.display()));
            assert!(beside.iter().all(|beside| beside.side.file.as_ref() == Some(&path)));
        }
    }

    #[test]
    fn a_file_beside_has_the_job_keys_of_the_mechanism_and_no_switches() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut experiment = find("buffered-read").unwrap().remove(0);
        experiment.add_files_beside(&[file.path().to_owned()]).unwrap();
        assert_eq!(experiment.beside.last().unwrap().side.keys, ["direct=0"]);
    }

    #[test]
    fn only_regular_files_can_stand_beside() {
        let mut experiment = find("parallel-write").unwrap().remove(0);
        for (path, part) in [("/tmp", "is not a file"), ("/no/such", "No such file")] {
            let error = experiment.add_files_beside(&[path.into()]).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }
}

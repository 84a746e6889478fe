//! Adds files on the kernel's file systems to an experiment. Each is named after its file system.

use super::case::{Experiment, Side};
use crate::Error;
use crate::engine::EngineKind;
use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
use std::path::{Path, PathBuf};

impl Experiment {
    /// Adds a side for each of these files, with the same I/O by [`Experiment::kernel_engine`].
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
            if self.sides.beside.iter().any(|side| side.name == name) {
                name = format!("{name} {}", file.display());
            }
            let side = Side::new(&name, self.kernel_engine.name(), &[])?;
            // The keys of the side with the switch on.
            let keys = self.sides.b.keys.clone();
            self.sides.beside.push(Side { file: Some(file.clone()), keys, ..side });
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
    use super::super::find;
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
            let before = experiment.sides.beside.len();
            experiment.add_files_beside(&[path.clone(), path.clone()]).unwrap();
            let beside = &experiment.sides.beside[before..];
            assert_eq!(beside[0].name, name);
            assert_eq!(beside[1].name, format!("{name} {}", path.display()));
            assert!(beside.iter().all(|side| side.file.as_ref() == Some(&path)));
        }
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

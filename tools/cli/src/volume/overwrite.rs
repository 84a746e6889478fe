//! The rule of `put`, `get` and `mv` for names that exist already.

use uringfs::volume::FileType;

/// The options about existing files.
#[derive(clap::Args, Clone, Copy)]
pub struct OverwriteOptions {
    /// Keep all existing files
    #[arg(short, long, overrides_with = "force")]
    no_clobber: bool,

    /// Also replace existing devices, FIFOs and sockets
    #[arg(short, long, overrides_with = "no_clobber")]
    force: bool,
}

/// The action for the name of a new file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameAction {
    /// Create: the name is free.
    Create,
    /// Replace the existing file.
    Replace,
    /// Merge the new directory into the existing one.
    Merge,
    /// Keep the existing file.
    Skip,
}

impl OverwriteOptions {
    /// The action for a new file of kind `new` whose name has a file of kind `existing`.
    ///
    /// # Errors
    /// Why the existing file must not be replaced.
    pub fn action(self, existing: FileType, new: FileType) -> Result<NameAction, &'static str> {
        let is_special = !matches!(existing, FileType::File | FileType::Symlink);
        match (existing, new) {
            (FileType::Directory, FileType::Directory) => Ok(NameAction::Merge),
            (FileType::Directory, _) => Err("the existing file is a directory"),
            (_, FileType::Directory) => Err("the existing file is not a directory"),
            _ if self.no_clobber => Ok(NameAction::Skip),
            _ if is_special && !self.force && !is_like(existing, new) => {
                Err("the existing file is a device, FIFO or socket; use -f to replace it")
            }
            _ => Ok(NameAction::Replace),
        }
    }

    /// Whether existing files, and the attributes of existing directories, stay as they are.
    pub fn skips_existing(self) -> bool {
        self.no_clobber
    }
}

fn is_like(one: FileType, other: FileType) -> bool {
    std::mem::discriminant(&one) == std::mem::discriminant(&other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn existing_files_are_replaced_by_the_rule() {
        use FileType::*;
        let rule = |no_clobber, force| OverwriteOptions { no_clobber, force };
        let plain = rule(false, false);
        for new in [File, Symlink, Fifo, BlockDevice(1)] {
            for existing in [File, Symlink] {
                assert_eq!(plain.action(existing, new), Ok(NameAction::Replace));
                assert_eq!(rule(true, false).action(existing, new), Ok(NameAction::Skip));
            }
            for rule in [plain, rule(true, false), rule(false, true)] {
                assert!(
                    rule.action(Directory, new).is_err() && rule.action(new, Directory).is_err()
                );
                assert_eq!(rule.action(Directory, Directory), Ok(NameAction::Merge));
            }
        }
        assert_eq!(plain.action(BlockDevice(1), BlockDevice(2)), Ok(NameAction::Replace));
        assert!(plain.action(Fifo, File).is_err() && plain.action(Socket, Fifo).is_err());
        assert_eq!(rule(false, true).action(Fifo, File), Ok(NameAction::Replace));
    }
}

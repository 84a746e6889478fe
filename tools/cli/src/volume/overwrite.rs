//! What `put` and `get` do with what is there already, and the files that none of them touches: those of
//! the volume itself.

use uringfs::FileKind;

/// What the user wants.
#[derive(clap::Args, Clone, Copy)]
pub struct OverwriteOptions {
    /// Leave what is there as it is
    #[arg(short, long, overrides_with = "force")]
    no_clobber: bool,

    /// Replace devices, FIFOs and sockets that are there, too
    #[arg(short, long, overrides_with = "no_clobber")]
    force: bool,
}

/// How something new comes to its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameAction {
    /// The name is free.
    Create,
    /// What has the name gives way.
    Replace,
    /// A directory that is there: what is in the new one goes into it.
    Merge,
    /// What is there stays.
    Skip,
}

impl OverwriteOptions {
    /// The rule, where something of the kind `there` has the name that something of the kind `new` is to get;
    /// or why it cannot.
    pub fn action(self, existing: FileKind, new: FileKind) -> Result<NameAction, &'static str> {
        let is_special = !matches!(existing, FileKind::File | FileKind::Symlink);
        match (existing, new) {
            (FileKind::Directory, FileKind::Directory) => Ok(NameAction::Merge),
            (FileKind::Directory, _) => Err("what is there is a directory"),
            (_, FileKind::Directory) => Err("what is there is no directory"),
            _ if self.no_clobber => Ok(NameAction::Skip),
            _ if is_special && !self.force && !is_like(existing, new) => {
                Err("what is there is neither a file nor a link; -f replaces it")
            }
            _ => Ok(NameAction::Replace),
        }
    }

    /// Whether what is there stays as it is, directories with their attributes.
    pub fn skips_existing(self) -> bool {
        self.no_clobber
    }
}

fn is_like(one: FileKind, other: FileKind) -> bool {
    std::mem::discriminant(&one) == std::mem::discriminant(&other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_there_gives_way_as_the_rule_says() {
        use FileKind::*;
        let rule = |no_clobber, force| OverwriteOptions { no_clobber, force };
        let plain = rule(false, false);
        for new in [File, Symlink, Fifo, BlockDevice(1)] {
            for there in [File, Symlink] {
                assert_eq!(plain.action(there, new), Ok(NameAction::Replace));
                assert_eq!(rule(true, false).action(there, new), Ok(NameAction::Skip));
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

//! The two device files of a namespace in sysfs: the character device, whose user sends commands, and the block device,
//! whose user is to be kept out meanwhile.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::fs::{major, makedev, minor};

/// The root of sysfs.
pub(super) const SYSFS: &str = "/sys";

/// The class of a character device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Class {
    /// A namespace (`ngXnY`), with its folder in sysfs.
    Namespace(PathBuf),
    /// A controller (`nvmeX`).
    Controller,
    /// Nothing of NVMe.
    Other,
}

impl Class {
    /// The class of the character device with this number, from `sysfs`, which is `/sys`.
    pub(super) fn of(sysfs: &Path, number: u64) -> Class {
        let folder = format!("dev/char/{}:{}", major(number), minor(number));
        let Ok(folder) = fs::canonicalize(sysfs.join(folder)) else { return Class::Other };
        let class = fs::canonicalize(folder.join("subsystem")).unwrap_or_default();
        match class.file_name().and_then(|name| name.to_str()) {
            Some("nvme-generic") => Class::Namespace(folder),
            Some("nvme") => Class::Controller,
            _ => Class::Other,
        }
    }
}

/// The block device of a namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct BlockNode {
    /// Its device file.
    pub(super) path: PathBuf,
    /// Its device number.
    pub(super) number: u64,
    /// The id of its namespace, if the kernel says it.
    pub(super) namespace: Option<u32>,
    /// The controllers by which the kernel reaches the namespace, if it has several names for them and one for all.
    pub(super) paths: Option<usize>,
}

impl BlockNode {
    /// The block device beside the character device whose folder is `folder`. `None` if the kernel shows none, as for a
    /// namespace that is no array of blocks.
    pub(super) fn beside(folder: &Path) -> Option<BlockNode> {
        // The numbers of controllers in the two names may differ, those of namespaces do not.
        let (_, instance) = folder.file_name()?.to_str()?.strip_prefix("ng")?.split_once('n')?;
        let parent = folder.parent()?;
        let names = || {
            let entries = fs::read_dir(parent).into_iter().flatten().flatten();
            entries.filter_map(|entry| entry.file_name().into_string().ok())
        };
        let is_number =
            |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let name = names().find(|name| {
            let numbers = name.strip_prefix("nvme").and_then(|rest| rest.split_once('n'));
            numbers.is_some_and(|(controller, other)| is_number(controller) && other == instance)
        })?;
        let node = parent.join(&name);
        let text = |file: &str| fs::read_to_string(node.join(file)).ok();
        let number = text("dev")?;
        let (major, minor) = number.trim().split_once(':')?;
        let is_shared = parent.file_name()?.to_str()?.starts_with("nvme-subsys");
        let controllers =
            || names().filter(|name| name.strip_prefix("nvme").is_some_and(is_number)).count();
        Some(BlockNode {
            path: Path::new("/dev").join(&name),
            number: makedev(major.parse().ok()?, minor.parse().ok()?),
            namespace: text("nsid").and_then(|text| text.trim().parse().ok()),
            paths: is_shared.then(controllers),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// A sysfs with the character device 240:0, of `class`, in `folder`, and block devices beside it.
    fn sysfs(folder: &str, class: &str, beside: &[&str]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let made = |path: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(&path).unwrap();
            path
        };
        let (device, class) = (made(folder), made(&format!("class/{class}")));
        symlink(class, device.join("subsystem")).unwrap();
        symlink(&device, made("dev/char").join("240:0")).unwrap();
        for (index, name) in beside.iter().enumerate() {
            let node = device.parent().unwrap().join(name);
            fs::create_dir_all(&node).unwrap();
            fs::write(node.join("dev"), format!("259:{index}\n")).unwrap();
            fs::write(node.join("nsid"), "7\n").unwrap();
        }
        root
    }

    fn block_node(root: &tempfile::TempDir) -> Option<BlockNode> {
        match Class::of(root.path(), makedev(240, 0)) {
            Class::Namespace(folder) => BlockNode::beside(&folder),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_namespace_has_its_block_device_beside_it() {
        let beside = ["nvme1n1", "nvme1n12", "nvme1n2", "hwmon"];
        let root = sysfs("devices/pci/nvme/nvme0/ng0n2", "nvme-generic", &beside);
        let found = block_node(&root).unwrap();
        // Its controller has another number than that of its subsystem.
        assert_eq!(found.path, Path::new("/dev/nvme1n2"));
        assert_eq!((found.number, found.namespace, found.paths), (makedev(259, 2), Some(7), None));
    }

    #[test]
    fn the_paths_of_a_shared_namespace_are_counted() {
        let beside = ["nvme0n1", "nvme0", "nvme1"];
        let root =
            sysfs("devices/virtual/nvme-subsystem/nvme-subsys0/ng0n1", "nvme-generic", &beside);
        let found = block_node(&root).unwrap();
        assert_eq!((found.path.as_path(), found.paths), (Path::new("/dev/nvme0n1"), Some(2)));
    }

    #[test]
    fn a_namespace_may_have_no_block_device() {
        let root = sysfs("devices/pci/nvme/nvme0/ng0n1", "nvme-generic", &["nvme0c0n1", "nvme0n2"]);
        assert_eq!(block_node(&root), None);
    }

    #[test]
    fn other_character_devices_have_other_classes() {
        let root = sysfs("devices/pci/nvme/nvme0", "nvme", &[]);
        assert_eq!(Class::of(root.path(), makedev(240, 0)), Class::Controller);
        assert_eq!(Class::of(root.path(), makedev(240, 1)), Class::Other);
        let root = sysfs("devices/virtual/mem/null", "mem", &[]);
        assert_eq!(Class::of(root.path(), makedev(240, 0)), Class::Other);
    }
}

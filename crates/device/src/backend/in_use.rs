//! Finds what uses the bytes of a path and so excludes other writers: a mount, swap, or a device that the kernel
//! has built on them. The search follows loop devices and partitions in both directions: the backing file of a
//! mounted loop device is in use, and so is a loop device over a file that backs another, mounted loop device.
//!
//! Reads sysfs and `/proc`; opens devices, but changes nothing. It does not detect programs that have a file
//! open: a volume protects itself by its own lock, on everything that [`backing_stores`] returns.

use std::collections::HashSet;
use std::fs;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags, fstat, major, minor, open};
use uringfs_errno::Errno;

/// The size of the kernel's sector in bytes.
const SECTOR: u64 = 512;

/// The user of a path's bytes, as text that follows the path, such as `is mounted at /srv`. `None` if the path is
/// not in use.
pub fn find_user(path: &Path) -> Option<String> {
    let node = Node::at(path)?;
    Search::default().find_user(&node, node.full_range(), Claim::CheckedElsewhere)
}

/// A file or device that contains the bytes of another device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackingStore {
    /// A file, or a block device.
    pub path: PathBuf,
    /// True if the device above uses all of its bytes.
    pub is_whole: bool,
}

/// The files and devices that contain a descriptor's block device: the disk of a partition, the file of a
/// loop device, and so on downwards. Empty for a file, and for a whole disk that is no loop device.
pub fn backing_stores(descriptor: BorrowedFd<'_>) -> Vec<BackingStore> {
    let mut found: Vec<BackingStore> = Vec::new();
    let Some(mut node) = fstat(descriptor).ok().and_then(|status| {
        let is_block = FileType::from_raw_mode(status.st_mode) == FileType::BlockDevice;
        is_block.then(|| Node::block(status.st_rdev)).flatten()
    }) else {
        return found;
    };
    let mut is_whole = true;
    while let Some((lower, range)) = node.backing() {
        // A loop device cannot back itself. But a path may have been replaced by another file, which makes a cycle.
        if found.iter().any(|known| known.path == lower.path) {
            break;
        }
        is_whole &= range == lower.full_range();
        found.push(BackingStore { path: lower.path.clone(), is_whole });
        node = lower;
    }
    found
}

/// Identifies a file or block device independently of its path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum StorageId {
    File { device: u64, inode: u64 },
    Block { number: u64 },
}

impl StorageId {
    fn at(path: &Path) -> Option<(StorageId, u64)> {
        let found = fs::metadata(path).ok()?;
        if found.file_type().is_block_device() {
            return Some((StorageId::Block { number: found.rdev() }, 0));
        }
        let file = StorageId::File { device: found.dev(), inode: found.ino() };
        found.is_file().then_some((file, found.len()))
    }
}

/// A file or a block device.
#[derive(Debug)]
struct Node {
    id: StorageId,
    path: PathBuf,
    size: u64,
    /// The sysfs folder of a block device.
    folder: Option<PathBuf>,
}

impl Node {
    fn at(path: &Path) -> Option<Node> {
        match StorageId::at(path)? {
            (StorageId::Block { number }, _) => {
                Some(Node { path: path.to_owned(), ..Node::block(number)? })
            }
            (id, size) => Some(Node { id, path: path.to_owned(), size, folder: None }),
        }
    }

    fn block(number: u64) -> Option<Node> {
        let folder = format!("/sys/dev/block/{}:{}", major(number), minor(number));
        Node::in_folder(&fs::canonicalize(folder).ok()?)
    }

    fn in_folder(folder: &Path) -> Option<Node> {
        let (major, minor) = text(folder, "dev")?
            .split_once(':')
            .map(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)))??;
        // sysfs writes `!` for each slash of a device's name.
        let name = folder.file_name()?.to_str()?.replace('!', "/");
        Some(Node {
            id: StorageId::Block { number: rustix::fs::makedev(major, minor) },
            path: Path::new("/dev").join(name),
            size: number(folder, "size")? * SECTOR,
            folder: Some(folder.to_owned()),
        })
    }

    fn is_partition(&self) -> bool {
        self.folder.as_ref().is_some_and(|folder| folder.join("partition").exists())
    }

    fn full_range(&self) -> Range<u64> {
        0..self.size
    }

    /// The node that contains this one, and its range there.
    fn backing(&self) -> Option<(Node, Range<u64>)> {
        let folder = self.folder.as_ref()?;
        if self.is_partition() {
            let begin = number(folder, "start")? * SECTOR;
            return Some((Node::in_folder(folder.parent()?)?, begin..begin + self.size));
        }
        let lower = Node::at(Path::new(&text(folder, "loop/backing_file")?))?;
        let begin = number(folder, "loop/offset")?;
        let range = match number(folder, "loop/sizelimit")? {
            // No limit: the device is the rest of its backing file, in whole sectors.
            0 => begin..lower.size.max(begin),
            length => begin..begin + length,
        };
        Some((lower, range))
    }

    /// The partitions and loop devices in this node.
    fn upper_devices(&self) -> Vec<Node> {
        let folders = |folder: &Path| {
            let entries = fs::read_dir(folder).into_iter().flatten().flatten();
            entries.map(|entry| entry.path()).collect::<Vec<_>>()
        };
        let mut found = self.folder.as_deref().map_or(Vec::new(), folders);
        found.retain(|folder| folder.join("partition").exists());
        let loops = folders(Path::new("/sys/block")).into_iter().filter(|folder| {
            let file = text(folder, "loop/backing_file");
            let id = file.and_then(|file| StorageId::at(Path::new(&file)));
            id.is_some_and(|(id, _)| id == self.id)
        });
        found.extend(loops.filter_map(|folder| fs::canonicalize(folder).ok()));
        found.iter().filter_map(|folder| Node::in_folder(folder)).collect()
    }

    /// A direct user of this node: not through a device above or below.
    fn direct_user(&self) -> Option<String> {
        let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
        // The kernel escapes characters that would end a field.
        let areas = swaps.lines().skip(1).filter_map(|line| line.split_whitespace().next());
        let is_here = |path: &str| {
            StorageId::at(Path::new(&unescape(path))).is_some_and(|(id, _)| id == self.id)
        };
        if areas.into_iter().any(is_here) {
            return Some("is in use as swap".into());
        }
        let folder = self.folder.as_ref()?;
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        if let Some(mount_point) = mounted_at(&mounts, &text(folder, "dev")?) {
            return Some(format!("is mounted at {mount_point}"));
        }
        let holder = fs::read_dir(folder.join("holders")).ok()?.flatten().next()?;
        Some(format!("is in use by {}", holder_name(&holder.path())))
    }

    /// True if the kernel or a program has claimed it: it is part of an array, or mounted elsewhere.
    fn is_claimed(&self) -> bool {
        let flags = OFlags::RDONLY | OFlags::EXCL | OFlags::CLOEXEC;
        let error = || open(&self.path, flags, Mode::empty()).err().map(Errno::from);
        self.folder.is_some() && error() == Some(Errno::BUSY)
    }
}

/// Whether the search checks the claim on a device.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Claim {
    Check,
    /// The writer's own open claims it, with the same result.
    CheckedElsewhere,
}

#[derive(Default)]
struct Search {
    seen: HashSet<StorageId>,
}

impl Search {
    /// A user of `range` of the node.
    fn find_user(&mut self, node: &Node, range: Range<u64>, claim: Claim) -> Option<String> {
        if !self.seen.insert(node.id) {
            return None;
        }
        if let Some(user) = node.direct_user() {
            return Some(user);
        }
        let uppers = node.upper_devices();
        // A disk also counts as claimed while any of its partitions is, even one outside of `range`.
        let is_checked = claim == Claim::Check && !uppers.iter().any(Node::is_partition);
        for upper in uppers {
            let Some((_, location)) = upper.backing() else { continue };
            let shared = range.start.max(location.start)..range.end.min(location.end);
            if shared.is_empty() {
                continue;
            }
            let subrange = shared.start - location.start..shared.end - location.start;
            if let Some(user) = self.find_user(&upper, subrange, Claim::Check) {
                let path = upper.path.display();
                return Some(match upper.is_partition() {
                    true => format!("has partition {path}, which {user}"),
                    false => format!("backs {path}, which {user}"),
                });
            }
        }
        if is_checked && node.is_claimed() {
            return Some("is in use".into());
        }
        let (lower, location) = node.backing()?;
        let subrange = location.start + range.start..(location.start + range.end).min(location.end);
        let user = self.find_user(&lower, subrange, Claim::Check)?;
        Some(format!("lies in {}, which {user}", lower.path.display()))
    }
}

/// The name of a holder, with its device mapper name if it has one.
fn holder_name(folder: &Path) -> String {
    let own = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
    match text(folder, "dm/name") {
        Some(name) => format!("{own} ({name})"),
        None => own,
    }
}

/// The mount point of the device with this number.
fn mounted_at(mounts: &str, number: &str) -> Option<String> {
    mounts.lines().find_map(|line| {
        let mut fields = line.split(' ');
        (fields.nth(2)? == number).then(|| fields.nth(1)).flatten().map(unescape)
    })
}

/// Decodes the octal escapes of a path in `/proc`: `\040` is a space, and so on.
fn unescape(path: &str) -> String {
    let mut text = String::new();
    let mut rest = path;
    while let Some((before, behind)) = rest.split_once('\\') {
        text.push_str(before);
        let digits = behind.get(..3).and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match digits.filter(u8::is_ascii) {
            Some(letter) => {
                text.push(char::from(letter));
                rest = &behind[3..];
            }
            None => {
                text.push('\\');
                rest = behind;
            }
        }
    }
    text + rest
}

fn text(folder: &Path, name: &str) -> Option<String> {
    Some(fs::read_to_string(folder.join(name)).ok()?.trim_end_matches('\n').to_owned())
}

fn number(folder: &Path, name: &str) -> Option<u64> {
    text(folder, name)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_are_found_by_device_number() {
        let mounts =
            "24 1 254:1 / / rw - ext4 /dev/vda1 rw\n30 24 0:5 / /a\\040b rw - tmpfs d rw\n";
        assert_eq!(mounted_at(mounts, "254:1").as_deref(), Some("/"));
        assert_eq!(mounted_at(mounts, "0:5").as_deref(), Some("/a b"));
        assert_eq!(mounted_at(mounts, "254:0"), None);
    }

    #[test]
    fn proc_escapes_are_decoded_and_other_bytes_kept() {
        for (escaped, path) in [
            ("/a", "/a"),
            ("/a\\134b\\040", "/a\\b "),
            ("\\", "\\"),
            ("\\04", "\\04"),
            ("\\é1", "\\é1"),
        ] {
            assert_eq!(unescape(escaped), path);
        }
    }

    #[test]
    fn an_unused_file_has_no_user() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert_eq!(find_user(file.path()), None);
        assert_eq!(find_user(Path::new("/no/such/file")), None);
        assert_eq!(find_user(Path::new("/dev/null")), None);
        use std::os::fd::AsFd;
        assert_eq!(backing_stores(file.as_file().as_fd()), []);
    }
}

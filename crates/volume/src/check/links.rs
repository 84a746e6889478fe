//! Pass: the links of each inode, by the names that were counted. An inode without a name gets one in
//! `/lost+found`.

use super::findings::FindingTarget;
use super::fixes::{Change, delete, put};
use super::names::InodeCounts;
use super::reader::{RecordIter, extent_of};
use super::round::Round;
use crate::blocks::BLOCK;
use crate::catalog::{Key, Table};
use crate::core::state::NEXT_INODE_KEY;
use crate::error::Error;
use crate::namespace::directory::{encode_entry, parse_entry};
use crate::records::inode::{FileType, Inode, InodeNumber};

const ROOT: u64 = InodeNumber::ROOT.0;
/// The directory in the root for inodes without a name.
const LOST_AND_FOUND: &[u8] = b"lost+found";

impl Round<'_> {
    pub(super) fn check_links(&mut self, counts: &InodeCounts) -> Result<(), Error> {
        let number = counts.number;
        let is_root = number == ROOT;
        if is_root && (counts.parent != ROOT || !counts.is_directory()) {
            let mut root = Inode::new(FileType::Directory, 0o755);
            root.parent = InodeNumber::ROOT;
            let what = "the root is not a directory, or not its own parent";
            self.findings.lost_inode(ROOT, what, "recreated, with mode 0755", &root);
            return Ok(());
        }
        let is_nameless = counts.names == 0 && !is_root;
        if is_nameless && counts.is_orphan && counts.links == 0 {
            // An orphan: the next open of the volume frees its blocks.
            return Ok(());
        }
        if is_nameless {
            return self.move_to_lost_and_found(counts);
        }
        if counts.is_orphan {
            let changes = vec![delete(Key::Orphan(number))];
            let what = "it is recorded as an orphan, and would be deleted, but has a name";
            self.findings.fixable(
                FindingTarget::Inode(number),
                what,
                "the record removed",
                changes,
            );
        }
        let links = match counts.is_directory() {
            true => 2 + counts.directories,
            false => counts.names,
        };
        if links != counts.links {
            let mut inode = self.inode(number)?;
            inode.links = links;
            let changes = vec![put(Key::Inode(number), inode.to_record())];
            let what = format!("it has {} links, and should have {links}", counts.links);
            self.findings.fixable(FindingTarget::Inode(number), what, "corrected", changes);
        }
        Ok(())
    }

    /// Gives an inode without a name one in `/lost+found`.
    fn move_to_lost_and_found(&mut self, counts: &InodeCounts) -> Result<(), Error> {
        let number = counts.number;
        let (target, what) = (FindingTarget::Inode(number), "it has no name");
        if !self.findings.repairs() {
            self.findings.unfixable(target, what);
            return Ok(());
        }
        let Some((parent, mut changes)) = self.lost_and_found()? else {
            self.findings.unfixable(target, what);
            return Ok(());
        };
        let mut inode = self.inode(number)?;
        if inode.kind == FileType::Directory {
            (inode.links, inode.parent) = (2 + counts.directories, parent);
        } else {
            inode.links = 1;
        }
        let name = format!("#{number}");
        changes.push(put(Key::Inode(number), inode.to_record()));
        changes.push(put(
            Key::Name(parent.0, name.as_bytes()),
            encode_entry(InodeNumber(number), inode.kind),
        ));
        changes.push(delete(Key::Orphan(number)));
        let cure = format!("put into /lost+found as {name}");
        if self.findings.fixable(target, what, &cure, changes) {
            self.lost_and_found = Some(parent);
        }
        Ok(())
    }

    /// `/lost+found`, and the changes that create it; `None` while it cannot be created, because this round repairs a
    /// record that creating it changes too.
    fn lost_and_found(&self) -> Result<Option<(InodeNumber, Vec<Change>)>, Error> {
        if let Some(number) = self.lost_and_found {
            return Ok(Some((number, Vec::new())));
        }
        let there = self.get_sound(Key::Name(ROOT, LOST_AND_FOUND))?;
        if let Some((number, FileType::Directory)) =
            there.and_then(|record| parse_entry(&record).ok())
        {
            return Ok(Some((number, Vec::new())));
        }
        let root = self.get_sound(Key::Inode(ROOT))?;
        let root = root.and_then(|record| Inode::from_record(&record).ok());
        let next = self.get_sound(Key::State(NEXT_INODE_KEY))?;
        let next = next.and_then(|value| Some(u64::from_be_bytes(value.try_into().ok()?)));
        let number = next.unwrap_or(ROOT + 1);
        let (Some(mut root), Some(next)) = (root, number.checked_add(1)) else {
            return Ok(None);
        };
        root.links += 1;
        let mut inode = Inode::new(FileType::Directory, 0o700);
        inode.parent = InodeNumber::ROOT;
        let changes = vec![
            put(Key::State(NEXT_INODE_KEY), next.to_be_bytes().to_vec()),
            put(Key::Inode(number), inode.to_record()),
            put(Key::Inode(ROOT), root.to_record()),
            put(
                Key::Name(ROOT, LOST_AND_FOUND),
                encode_entry(InodeNumber(number), FileType::Directory),
            ),
        ];
        Ok(Some((InodeNumber(number), changes)))
    }

    /// Recreates a file's lost inode from its extents.
    pub(super) fn recreate_inode(&mut self, number: u64) -> Result<(), Error> {
        let mut inode = Inode::new(FileType::File, 0o600);
        for found in RecordIter::for_inode(self.catalog, Table::Extents, number) {
            if let Some((_, extent)) = extent_of(&found?, self.total) {
                inode.size = inode.size.max(extent.end().saturating_mul(BLOCK));
                inode.blocks = inode.blocks.saturating_add(extent.length);
            }
        }
        inode.size = inode.size.min(i64::MAX as u64);
        let cure = format!("recreated, with mode 0600 and {} bytes, from its extents", inode.size);
        self.findings.lost_inode(number, "the file's inode is lost", &cure, &inode);
        Ok(())
    }
}

//! The records that a commit needs and that memory does not have: they are read before the commit takes its changes, and stay
//! until it does, however small the cache of records is. Damage of a record costs only what it is about.

use std::collections::BTreeMap;
use std::slice;

use crate::catalog::{Key, Table};
use crate::core::state::VolumeShared;
use crate::error::{Error, ErrorKind};
use crate::records::inode::InodeNumber;
use crate::records::overlay::{ChangeSet, NO_COMMIT};
use crate::records::readahead::{GROUP_INODES, GROUP_KEY_BYTES};

impl VolumeShared {
    /// Reads the inodes of changed files. A file whose record is damaged loses its changes.
    pub(super) fn load_changed_inodes(&self, mut numbers: Vec<InodeNumber>) -> Result<(), Error> {
        numbers.sort_unstable();
        let group = |number: &InodeNumber| number.0 / GROUP_INODES as u64;
        let mut groups = numbers.chunk_by(|one, other| group(one) == group(other));
        groups.try_for_each(|numbers| self.load_group(numbers))
    }

    /// `numbers` are in order, and of one group.
    fn load_group(&self, numbers: &[InodeNumber]) -> Result<(), Error> {
        let (first, last) = (numbers[0].0, numbers[numbers.len() - 1].0);
        let keys = Key::Inode(first).bytes()..Key::Inode(last + 1).bytes();
        let group = &keys.start[..GROUP_KEY_BYTES];
        let watch = self.state.lock().overlay.watch(Table::Inodes, keys.clone());
        let length = (last - first + 1) as usize;
        let found = match self.catalog.scan_with_prefix(Table::Inodes, group, &keys.start, length) {
            Ok(found) => found,
            Err(error) if error.kind() != ErrorKind::Damaged => return Err(error),
            // A page is damaged: the others of the group may lie in another one.
            Err(error) => match numbers {
                [number] => {
                    self.lose_changes(*number, error);
                    return Ok(());
                }
                numbers => {
                    let mut numbers = numbers.iter().map(slice::from_ref);
                    return numbers.try_for_each(|number| self.load_group(number));
                }
            },
        };
        let mut found: BTreeMap<_, _> =
            found.into_iter().map(|record| (record.key, record.value)).collect();
        for number in numbers {
            let key = Key::Inode(number.0).bytes();
            match found.remove(&key).transpose() {
                Ok(value) => self.state.lock().overlay.keep_for_commit(&watch, &key, value),
                Err(error) => self.lose_changes(*number, error),
            }
        }
        Ok(())
    }

    /// Gives up the uncommitted changes of a file whose inode cannot be read. Its next sync fails, and the volume's. Its
    /// extents change nevertheless: the blocks that they had become free, and those that they have now do not.
    pub(super) fn lose_changes(&self, number: InodeNumber, error: Error) {
        let warning = error.context(format!("changes of inode {} are lost", number.0)).to_string();
        {
            let state = &mut *self.state.lock();
            if let Some(file) = state.dirty.remove(&number) {
                let mut extents = ChangeSet::default();
                file.take_changes(&mut extents, NO_COMMIT);
                state.overlay.apply(extents);
            }
            state.warnings.push(warning.clone());
        }
        self.note_lost_writes(number);
        self.publisher.publish_damage(&warning);
    }
}

#[cfg(test)]
mod tests {
    use uringfs_buffer::Buffer;
    use uringfs_device::backend::memory::Memory;
    use uringfs_device::{Device, Errno};
    use uringfs_file::File;
    use uringfs_reactor::{Reactor, ReactorOptions};

    use super::*;
    use crate::blocks::{BLOCK, Run};
    use crate::catalog::Batch;
    use crate::check::CheckOptions;
    use crate::core::commit::Collected;
    use crate::namespace::open_options::OpenOptions;
    use crate::records::overlay::Overlay;
    use crate::space::allocator::REGION_BLOCKS;
    use crate::volume::options::FormatOptions;
    use crate::volume::volume::Volume;

    /// A volume on a device that may be larger.
    fn volume(device_bytes: u64, volume_bytes: u64) -> (Device, Volume) {
        let device = Device::new(Memory::new(device_bytes).unwrap()).unwrap();
        let volume = Volume::create_on(device.clone(), &FormatOptions::new().size(volume_bytes));
        (device, volume.unwrap())
    }

    /// Writes a record with a wrong checksum, unless the catalog has none: then one of another region.
    fn corrupt(volume: &Volume, key: Key<'_>) {
        let catalog = &volume.shared.catalog;
        let value = catalog.get(key).unwrap().or_else(|| catalog.get(Key::Region(0)).unwrap());
        let mut batch = Batch::default();
        batch.put_with_wrong_sum(key, &value.unwrap());
        catalog.checkpoint(&batch).unwrap();
    }

    #[test]
    fn a_file_whose_inode_is_damaged_loses_its_changes_and_its_sync_fails() {
        let (_, volume) = volume(64 << 20, 64 << 20);
        let reactor = Reactor::new(ReactorOptions::default()).unwrap();
        let direct = OpenOptions::new().write(true).create(true).direct(true);
        let files = ["/sound", "/damaged"].map(|path| volume.open_with(path, direct).unwrap());
        volume.sync().unwrap();
        corrupt(&volume, Key::Inode(volume.metadata("/damaged").unwrap().ino()));
        volume.shared.state.lock().overlay = Overlay::new(1 << 20);
        let write = |file: &File| {
            reactor.block_on(file.write_at(Buffer::copy_of(&[1; 4096]), 0)).0.unwrap();
            reactor.block_on(file.sync_all())
        };
        assert_eq!(write(&files[1]), Err(Errno::IO));
        assert_eq!(write(&files[0]), Ok(()));
        let warnings = volume.warnings();
        assert!(warnings.iter().any(|flaw| flaw.contains("are lost")), "{warnings:?}");
        assert!(volume.sync().is_err() && !volume.is_read_only());
        volume.sync().unwrap();
    }

    #[test]
    fn extents_of_a_file_whose_inode_is_damaged_match_the_free_blocks() {
        let (device, volume) = volume(64 << 20, 64 << 20);
        let reactor = Reactor::new(ReactorOptions::default()).unwrap();
        let direct = OpenOptions::new().write(true).create(true).direct(true);
        let write = |file: &File, bytes: usize| {
            reactor.block_on(file.write_at(Buffer::copy_of(&vec![1; bytes]), 0)).0.unwrap();
        };
        let [cut, grown] = ["/cut", "/grown"].map(|path| volume.open_with(path, direct).unwrap());
        write(&cut, 64 << 12);
        volume.sync().unwrap();
        for path in ["/cut", "/grown"] {
            corrupt(&volume, Key::Inode(volume.metadata(path).unwrap().ino()));
        }
        volume.shared.state.lock().overlay = Overlay::new(1 << 20);
        reactor.block_on(cut.set_len(0)).unwrap();
        write(&grown, 32 << 12);
        assert!(volume.sync().is_err());
        drop((cut, grown));
        volume.close().unwrap();
        let report = Volume::check(&device, CheckOptions::default(), &mut |_, _| {}).unwrap();
        let lines: Vec<String> = report.findings.iter().map(ToString::to_string).collect();
        let is_of_blocks = |line: &String| line.contains("region") || line.contains("as free");
        assert!(!lines.is_empty() && !lines.iter().any(is_of_blocks), "{lines:?}");
    }

    #[test]
    fn blocks_of_a_damaged_region_that_are_freed_during_a_commit_stay_allocated() {
        let (device, made) = volume(1 << 30, 1 << 30);
        corrupt(&made, Key::Region(1));
        made.close().unwrap();
        let volume = Volume::open_on(device).unwrap();
        let shared = &volume.shared;
        shared.load_regions_to_free().unwrap();
        shared.state.lock().to_free.push(Run { start: REGION_BLOCKS + 5, length: 1 });
        let collected = shared.state.lock().collect(&shared.group_commit).unwrap();
        assert!(matches!(collected, Collected::MissingRegions));
        volume.create_dir("/d").unwrap();
        volume.sync().unwrap();
        let warnings = volume.warnings();
        assert!(warnings.iter().any(|flaw| flaw.contains("cannot be freed")), "{warnings:?}");
        assert!(!volume.is_read_only());
    }

    #[test]
    fn a_volume_whose_last_region_is_damaged_does_not_grow_and_goes_on() {
        let (device, made) = volume(64 << 20, 48 << 20);
        corrupt(&made, Key::Region(0));
        made.close().unwrap();
        let volume = Volume::open_on(device.clone()).unwrap();
        let error = volume.resize(64 << 20).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Damaged);
        assert!(error.to_string().contains("cannot resize"), "{error}");
        assert!(error.to_string().contains("check --repair"), "{error}");
        assert_eq!(volume.statistics().blocks, (48 << 20) / BLOCK);
        volume.sync().unwrap();
        assert!(!volume.is_read_only());
    }
}

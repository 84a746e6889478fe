//! Erases a volume that is not open.

use uringfs_device::Device;

use crate::blocks::BlockIo;
use crate::core::device_lock::{DeviceLock, LockKind};
use crate::error::{Error, ErrorKind};
use crate::superblock::{Superblock, erase_blocks};
use crate::volume::volume::Volume;

impl Volume {
    /// The blocks of a device that hold superblocks, damaged or not: numbers of blocks of 4096 bytes, in ascending
    /// order. Empty if there is no volume. Reads at most the first 64 MiB and one block, and takes no lock, so that the
    /// volume may be open elsewhere.
    ///
    /// # Errors
    /// `Io` if a block that may hold a superblock cannot be read.
    pub fn superblock_blocks(device: &Device) -> Result<Vec<u64>, Error> {
        Superblock::find_all(&BlockIo::new(device))
    }

    /// Erases all superblocks on a device, the backup too, so that nothing takes it for a volume any more. Leaves
    /// everything else as it is: the bytes of files stay on the device. Returns the erased blocks as
    /// [`Self::superblock_blocks`] does; empty, with nothing written, if there is no volume.
    ///
    /// The backup is erased first, and each block durably before the next. So until the last write a volume that
    /// could be opened still can be, or a repair restores it.
    ///
    /// ```
    /// # mod uringfs {
    /// #     pub use uringfs_volume::*;
    /// #     pub use uringfs_device as device;
    /// # }
    /// use uringfs::device::backend::memory::Memory;
    /// use uringfs::device::Device;
    /// use uringfs::{FormatOptions, Volume};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let device = Device::new(Memory::new(32 << 20)?)?;
    /// Volume::format(&device, &FormatOptions::new())?;
    /// assert_eq!(Volume::wipe(&device)?, [0, 16, 8191]);
    /// assert!(Volume::superblock_blocks(&device)?.is_empty());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `Input` if the device is read-only; EBUSY when any process has the volume open; as [`Self::superblock_blocks`];
    /// errors of the device.
    pub fn wipe(device: &Device) -> Result<Vec<u64>, Error> {
        if device.geometry().read_only {
            return Err(Error::new(ErrorKind::Input, "the target is open for reading only"));
        }
        let blocks = &BlockIo::new(device);
        let _lock = DeviceLock::acquire(device, LockKind::Exclusive)?;
        let found = Superblock::find_all(blocks)?;
        erase_blocks(blocks, found.iter().rev().copied())?;
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blocks::BLOCK;
    use crate::check::CheckOptions;
    use crate::volume::options::FormatOptions;
    use uringfs_buffer::Buffer;
    use uringfs_device::backend::memory::Memory;
    use uringfs_device::backend::sim::{CrashPlan, Fault, Rule, Sim, SimOptions, When};
    use uringfs_device::{Errno, Op};

    fn memory(bytes: u64) -> Device {
        Device::new(Memory::new(bytes).unwrap()).unwrap()
    }

    fn volume(bytes: u64) -> Device {
        let device = memory(bytes);
        Volume::format(&device, &FormatOptions::new()).unwrap();
        device
    }

    fn block(device: &Device, block: u64) -> Vec<u8> {
        BlockIo::new(device).read(block, BLOCK as usize).unwrap().to_vec()
    }

    #[test]
    fn nothing_is_found_and_written_on_a_device_without_a_volume() {
        for blocks in [1, 16, 17, 32, 16_384, 16_385] {
            let device = memory(blocks * BLOCK);
            let last = Buffer::copy_of(&[7; BLOCK as usize]);
            BlockIo::new(&device).write(blocks - 1, last).unwrap();
            assert_eq!(Volume::superblock_blocks(&device).unwrap(), []);
            assert_eq!(Volume::wipe(&device).unwrap(), []);
            assert!(block(&device, blocks - 1).iter().all(|byte| *byte == 7), "{blocks}");
        }
    }

    #[test]
    fn all_superblocks_are_found_and_erased_and_nothing_else() {
        for (bytes, backup) in [(32 << 20, 8191), (96 << 20, 16_384)] {
            let device = volume(bytes);
            let found = [0, 16, backup];
            assert_eq!(Volume::superblock_blocks(&device).unwrap(), found);
            assert!(Volume::open_on(device.clone()).is_ok(), "the search changes nothing");
            let catalog = block(&device, 1024);
            assert_eq!(Volume::wipe(&device).unwrap(), found);
            assert!(found.iter().all(|at| block(&device, *at).iter().all(|byte| *byte == 0)));
            assert!(block(&device, 1024) == catalog, "the catalog changed");
            let repair = CheckOptions::new().repair(true);
            let error = Volume::check(&device, repair, &mut |_, _| {}).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::NotAVolume, "{error}");
            assert_eq!(Volume::wipe(&device).unwrap(), []);
        }
    }

    #[test]
    fn damaged_superblocks_are_erased_too() {
        let device = volume(32 << 20);
        let blocks = BlockIo::new(&device);
        for at in [0, 8191] {
            let mut bytes = block(&device, at);
            bytes[2000] ^= 1;
            blocks.write(at, Buffer::copy_of(&bytes)).unwrap();
        }
        blocks.write(16, Buffer::zeroed(BLOCK as usize)).unwrap();
        assert_eq!(Volume::wipe(&device).unwrap(), [0, 8191]);
    }

    #[test]
    fn a_superblock_at_another_place_stays() {
        let device = volume(32 << 20);
        let copy = block(&device, 0);
        BlockIo::new(&device).write(7000, Buffer::copy_of(&copy)).unwrap();
        Volume::wipe(&device).unwrap();
        assert!(block(&device, 7000) == copy, "the copy changed");
    }

    #[test]
    fn an_open_volume_is_not_wiped() {
        let device = volume(32 << 20);
        let open = Volume::open_on(device.clone()).unwrap();
        assert_eq!(Volume::wipe(&device).unwrap_err().errno(), Errno::BUSY);
        assert_eq!(Volume::superblock_blocks(&device).unwrap(), [0, 16, 8191]);
        open.close().unwrap();
        assert_eq!(Volume::wipe(&device).unwrap().len(), 3);
    }

    #[test]
    fn an_unreadable_block_that_may_hold_a_superblock_is_an_error() {
        let sim = Sim::new(SimOptions::new(32 << 20));
        let device = Device::new(sim.clone()).unwrap();
        Volume::format(&device, &FormatOptions::new()).unwrap();
        let bad = Rule::new(Op::Read, When::Every(1), Fault::Error(Errno::IO));
        sim.inject(bad.within(16 * BLOCK, 16 * BLOCK + 1));
        let error = Volume::wipe(&device).unwrap_err();
        assert_eq!(error.to_string(), format!("reading block 16: {}", Errno::IO));
        sim.clear_faults();
        Volume::open_on(device).unwrap();
    }

    #[test]
    fn a_power_cut_leaves_a_volume_that_a_repair_restores_or_none() {
        let sim = Sim::new(SimOptions::new(32 << 20));
        let device = Device::new(sim.clone()).unwrap();
        Volume::format(&device, &FormatOptions::new()).unwrap();
        sim.restart_record();
        Volume::wipe(&device).unwrap();
        let (mut restored, mut gone) = (0, 0);
        for image in sim.crash_images(CrashPlan { exhaustive_up_to: 4, samples: 8, seed: 7 }) {
            let device = Device::new(image.sim.clone()).unwrap();
            let repair = CheckOptions::new().repair(true);
            match Volume::check(&device, repair, &mut |_, _| {}) {
                Ok(report) => {
                    assert!(report.is_repaired(), "{:?}", report.findings);
                    restored += 1;
                }
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::NotAVolume, "{error}");
                    assert_eq!(Volume::superblock_blocks(&device).unwrap(), []);
                    gone += 1;
                }
            }
        }
        assert!(restored > 0 && gone > 0, "{restored} restored, {gone} gone");
    }
}

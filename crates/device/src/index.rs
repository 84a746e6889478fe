//! The small index of a device in the tables of every reactor.

use parking_lot::Mutex;

/// The most open devices in a process.
pub const MAX_DEVICES: usize = 1024;

/// A device's index in every table of devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DeviceIndex(u16);

impl DeviceIndex {
    /// No device: the index of a request that is not in use.
    pub const NONE: DeviceIndex = DeviceIndex(u16::MAX);

    /// The index as a number below [`MAX_DEVICES`].
    #[inline]
    pub fn get(self) -> usize {
        self.0 as usize
    }

    #[cfg(test)]
    pub(crate) fn for_tests(index: u16) -> DeviceIndex {
        DeviceIndex(index)
    }
}

/// The indexes in use, one bit each.
static INDEXES: Mutex<[u64; MAX_DEVICES / 64]> = Mutex::new([0; MAX_DEVICES / 64]);

/// Allocates the lowest free index. `None` while all are in use.
pub(crate) fn allocate() -> Option<DeviceIndex> {
    let mut words = INDEXES.lock();
    let (index, word) = words.iter_mut().enumerate().find(|(_, word)| **word != u64::MAX)?;
    let bit = word.trailing_ones();
    *word |= 1 << bit;
    Some(DeviceIndex((index * 64 + bit as usize) as u16))
}

/// Frees an index for the next device.
pub(crate) fn release(index: DeviceIndex) {
    INDEXES.lock()[index.get() / 64] &= !(1 << (index.get() % 64));
}

//! Calibrations that devices share. Files of one file system are measured once: they lie on the same disk, so that a
//! second measurement could differ only by noise, and equal files would get different queues.

use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use rustix::fs::{FileType, fstat};

use uringfs_ring::ForkDetector;

use crate::geometry::Geometry;
use crate::interface::backend::{Backend, KernelTarget};
use crate::interface::calibration::{Calibration, CalibrationOptions};

/// The calibration of all devices with the same properties. It lives as long as one of these is open.
#[derive(Debug, Default)]
pub struct SharedCalibration {
    /// `None` for a device that shares with no other.
    key: Option<CalibrationKey>,
    measured: Mutex<Option<MeasuredCalibration>>,
    /// Held by the thread that measures.
    measuring: Mutex<()>,
    fork_detector: ForkDetector,
}

/// A calibration, and where it is from.
#[derive(Clone, Debug)]
pub struct MeasuredCalibration {
    /// The result.
    pub calibration: Arc<Calibration>,
    /// The description of the device on which it was measured.
    pub device: String,
    /// How often it was measured: 1 is the first time.
    pub times: u32,
}

/// The properties of a device, and of its use, that calibration depends on.
#[derive(Clone, Debug, PartialEq, Eq)]
struct CalibrationKey {
    storage: Storage,
    block_size: u32,
    memory_alignment: u32,
    direct: bool,
    options: CalibrationOptions,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Storage {
    /// Any file of the file system with this number.
    FileSystem(u64),
    /// The block device with this number.
    Block(u64),
}

/// All calibrations that devices share now.
static SHARED: Mutex<Vec<Weak<SharedCalibration>>> = Mutex::new(Vec::new());

impl SharedCalibration {
    /// The calibration of a device with the same properties, else a new one.
    pub(crate) fn find(
        backend: &dyn Backend,
        options: CalibrationOptions,
    ) -> Arc<SharedCalibration> {
        let Some(key) = CalibrationKey::of(backend, options) else { return Arc::default() };
        let mut shared = SHARED.lock();
        shared.retain(|one| one.strong_count() > 0);
        let is_alike = |one: &Arc<SharedCalibration>| one.key.as_ref() == Some(&key);
        let new = match shared.iter().filter_map(Weak::upgrade).find(is_alike) {
            Some(found) if !found.is_of_parent_process() => return found,
            Some(of_parent) => {
                shared.retain(|one| !Weak::ptr_eq(one, &Arc::downgrade(&of_parent)));
                of_parent.in_child()
            }
            None => SharedCalibration { key: Some(key), ..SharedCalibration::default() },
        };
        let new = Arc::new(new);
        shared.push(Arc::downgrade(&new));
        new
    }

    /// True in the child of a fork. A thread that only the parent has may be measuring, so that the child would wait for
    /// ever.
    pub(crate) fn is_of_parent_process(&self) -> bool {
        self.fork_detector.is_forked()
    }

    /// The same for the child of a fork: it has locks of its own, and what the parent has measured.
    pub(crate) fn in_child(&self) -> SharedCalibration {
        // A thread that only the parent has may hold the lock.
        let measured = self.measured.try_lock().and_then(|measured| measured.clone());
        let measured = Mutex::new(measured);
        SharedCalibration { key: self.key.clone(), measured, ..SharedCalibration::default() }
    }

    /// The calibration, which `measure` makes on `device` unless it was measured before. Other threads that need the first
    /// one wait meanwhile.
    pub fn get_or_measure(
        &self,
        device: &str,
        measure: impl FnOnce() -> Calibration,
    ) -> MeasuredCalibration {
        if let Some(found) = self.get() {
            return found;
        }
        let _measuring = self.measuring.lock();
        self.get().unwrap_or_else(|| self.set(device, measure()))
    }

    /// A calibration after the one that was measured as number `times`, which `measure` makes on `device` unless another
    /// thread has. `None` while another thread measures: it never waits for one.
    pub fn measure_again(
        &self,
        times: u32,
        device: &str,
        measure: impl FnOnce() -> Calibration,
    ) -> Option<MeasuredCalibration> {
        let newer = || self.get().filter(|found| found.times > times);
        if let Some(found) = newer() {
            return Some(found);
        }
        let _measuring = self.measuring.try_lock()?;
        Some(newer().unwrap_or_else(|| self.set(device, measure())))
    }

    fn set(&self, device: &str, calibration: Calibration) -> MeasuredCalibration {
        let mut measured = self.measured.lock();
        let times = 1 + measured.as_ref().map_or(0, |measured| measured.times);
        let (calibration, device) = (Arc::new(calibration), device.to_owned());
        measured.insert(MeasuredCalibration { calibration, device, times }).clone()
    }

    /// The calibration, if it was measured.
    pub fn get(&self) -> Option<MeasuredCalibration> {
        self.measured.lock().clone()
    }
}

impl CalibrationKey {
    fn of(backend: &dyn Backend, options: CalibrationOptions) -> Option<CalibrationKey> {
        let KernelTarget::Descriptor(descriptor) = backend.kernel_target() else { return None };
        let status = fstat(descriptor).ok()?;
        let storage = match FileType::from_raw_mode(status.st_mode) {
            FileType::BlockDevice => Storage::Block(status.st_rdev),
            FileType::RegularFile => Storage::FileSystem(status.st_dev),
            _ => return None,
        };
        let Geometry { block_size, memory_alignment, direct, .. } = *backend.geometry();
        Some(CalibrationKey { storage, block_size, memory_alignment, direct, options })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::file::{Allocation, File};
    use crate::backend::memory::Memory;
    use crate::interface::kind::QueueKind;

    const OPTIONS: CalibrationOptions = CalibrationOptions {
        has_ring: true,
        fixed_files: true,
        fixed_buffers: true,
        commands: false,
    };

    fn calibration(reason: &str) -> Calibration {
        Calibration { kind: QueueKind::Ring, reason: reason.into(), measured: Vec::new() }
    }

    #[test]
    fn files_of_a_file_system_share_a_calibration_while_one_is_open() {
        let folder = tempfile::tempdir().unwrap();
        let file =
            |name| File::create(&folder.path().join(name), 1 << 20, Allocation::Written).unwrap();
        let (first, second) = (file("a"), file("b"));
        let shared = SharedCalibration::find(&first, OPTIONS);
        assert!(Arc::ptr_eq(&shared, &SharedCalibration::find(&second, OPTIONS)));
        let unregistered = CalibrationOptions { fixed_buffers: false, ..OPTIONS };
        assert!(!Arc::ptr_eq(&shared, &SharedCalibration::find(&second, unregistered)));
        let measured = shared.get_or_measure("first", || calibration("1"));
        assert_eq!((measured.times, &measured.device[..]), (1, "first"));
        let found = shared.get_or_measure("second", || panic!("it was measured"));
        assert_eq!((found.times, &found.device[..]), (1, "first"));
        drop(shared);
        assert!(SharedCalibration::find(&first, OPTIONS).get().is_none());
    }

    #[test]
    fn it_is_measured_again_once_for_all_that_ask() {
        let shared = SharedCalibration::default();
        assert_eq!(shared.get_or_measure("a", || calibration("1")).times, 1);
        let again = shared.measure_again(1, "b", || calibration("2")).unwrap();
        assert_eq!((again.times, &again.calibration.reason[..]), (2, "2"));
        let found = shared.measure_again(1, "c", || panic!("b has measured"));
        assert_eq!(found.unwrap().times, 2);
    }

    #[test]
    fn only_the_first_calibration_is_waited_for() {
        let shared = SharedCalibration::default();
        shared.get_or_measure("a", || calibration("1"));
        shared.measure_again(1, "b", || {
            // As another thread would find it now.
            assert!(shared.measure_again(1, "c", || panic!("b measures")).is_none());
            assert_eq!(shared.get_or_measure("d", || panic!("b measures")).times, 1);
            calibration("2")
        });
        assert_eq!(shared.get().unwrap().times, 2);
    }

    #[test]
    fn memory_shares_with_no_other_device() {
        let memory = Memory::new(1 << 20).unwrap();
        let shared = SharedCalibration::find(&memory, OPTIONS);
        assert!(!Arc::ptr_eq(&shared, &SharedCalibration::find(&memory, OPTIONS)));
    }
}

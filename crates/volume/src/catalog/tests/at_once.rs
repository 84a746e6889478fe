//! The writes of a checkpoint are handed to the device together: on one that answers late, such as a store across a network,
//! a checkpoint takes the time of a few requests.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use uringfs_device::backend::memory::Memory;
use uringfs_device::{Backend, Errno, Geometry, KernelTarget, Op, Request};

use super::*;

#[derive(Default)]
struct Counts {
    calls: AtomicUsize,
    writes: AtomicUsize,
}

/// A device that takes several requests at once, and counts the calls by which it gets writes.
struct Counted {
    memory: Memory,
    counts: Arc<Counts>,
}

impl Counted {
    fn count(&self, requests: &[Request]) {
        let writes = requests.iter().filter(|request| request.op == Op::Write).count();
        self.counts.calls.fetch_add(usize::from(writes > 0), Ordering::Relaxed);
        self.counts.writes.fetch_add(writes, Ordering::Relaxed);
    }
}

impl Backend for Counted {
    fn geometry(&self) -> &Geometry {
        self.memory.geometry()
    }

    fn description(&self) -> String {
        "counted".into()
    }

    fn kernel_target(&self) -> KernelTarget<'_> {
        KernelTarget::InProcess
    }

    fn perform(&self, request: &mut Request) -> Result<u32, Errno> {
        self.count(std::slice::from_ref(request));
        self.memory.perform(request)
    }

    fn perform_each(
        &self,
        requests: &mut [Request],
        ended: &mut dyn FnMut(usize, Result<u32, Errno>),
    ) {
        self.count(requests);
        self.memory.perform_each(requests, ended);
    }
}

#[test]
fn a_checkpoint_writes_its_pages_in_two_calls() {
    let counts = Arc::new(Counts::default());
    let memory = Memory::new(DEVICE_BLOCKS * BLOCK).unwrap();
    let device = Device::new(Counted { memory, counts: counts.clone() }).unwrap();
    let catalog = Catalog::create(&BlockIo::new(&device), &RUNS, LOG, options()).unwrap();
    let put = |inodes: &mut dyn Iterator<Item = u64>, byte| {
        let mut batch = Batch::default();
        inodes.for_each(|inode| batch.put(Key::Inode(inode), &[byte; 1000]));
        catalog.checkpoint(&batch).unwrap();
    };
    put(&mut (0..600), 1);
    // The new pages take the places of old ones, here and there.
    put(&mut (0..600).step_by(11), 2);
    let taken =
        || (counts.calls.swap(0, Ordering::Relaxed), counts.writes.swap(0, Ordering::Relaxed));
    taken();
    put(&mut (0..600).step_by(7), 3);
    let (calls, writes) = taken();
    assert!(writes >= 10, "{writes} writes show nothing");
    assert_eq!(calls, 2, "pages, then the header that reaches them: {writes} writes");
}

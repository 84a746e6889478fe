//! Every interleaving of readers, writers and the unmapping of memory.

use std::sync::Arc;

use super::*;

/// loom reports a write to the bytes that overlaps any other access.
#[test]
fn loom_no_read_overlaps_a_write() {
    loom::model(|| {
        let slab = Arc::new(Slab::<()>::new(1, 4096, 1));
        slab.map_memory(0).unwrap();
        assert!(slab.allocate(0, 1).unwrap().publish_first(0, Some).is_some());
        let thread_slab = slab.clone();
        let writer = loom::thread::spawn(move || {
            let owned = thread_slab.try_exclusive(0, Some);
            owned
                .map(|mut frames| {
                    frames.bytes()[0] = 1;
                    assert!(frames.publish_first(0, |flags| Some(flags | 1)).is_some());
                })
                .is_some()
        });
        if let Ok(share) = slab.try_share(0) {
            assert_eq!(u32::from(share[0]), share.state().flags());
        }
        let has_written = writer.join().unwrap();
        assert_eq!(slab.try_share(0).ok().unwrap()[0] == 1, has_written);
    });
}

#[test]
fn loom_memory_is_not_unmapped_under_allocated_frames() {
    loom::model(|| {
        let slab = Arc::new(Slab::<()>::new(1, 4096, 1));
        slab.map_memory(0).unwrap();
        let thread_slab = slab.clone();
        let other = loom::thread::spawn(move || thread_slab.unmap_memory(0));
        if let Some(mut frames) = slab.allocate(0, 1) {
            frames.bytes()[0] = 1;
            frames.free();
        }
        let is_gone = other.join().unwrap();
        assert_eq!(slab.is_mapped(0), !is_gone);
    });
}

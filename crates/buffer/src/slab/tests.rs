//! Frames are shared, owned exclusively, lent and freed.

use std::sync::Arc;

use super::*;

const SIZE: usize = 4096;

fn slab(count: u32) -> Arc<Slab<()>> {
    let slab = Arc::new(Slab::new(count, SIZE, 4));
    slab.map_memory(0).unwrap();
    slab
}

#[test]
fn free_frames_are_not_shared_and_exclusive_ones_have_one_owner() {
    let slab = slab(2);
    assert!(slab.try_share(0).err().unwrap().is_free());
    let mut frames = slab.allocate(0, 2).unwrap();
    assert!(slab.try_share(0).err().unwrap().is_exclusive());
    assert!(slab.try_exclusive(1, Some).is_none() && slab.allocate(1, 1).is_none());
    frames.bytes().fill(7);
    let second = frames.split_off(1);
    second.free();
    assert!(frames.publish_first(0, |flags| Some(flags | 4)).is_some());
    let share = slab.try_share(0).ok().unwrap();
    assert!(share.iter().all(|byte| *byte == 7) && share.state().flags() == 4);
    assert!(slab.try_exclusive(0, Some).is_none(), "it is shared");
    assert_eq!(share.release().shares(), 1);
    assert!(
        slab.try_exclusive(0, |flags| (flags != 4).then_some(flags)).is_none(),
        "`next` refuses the flags"
    );
    let owned = slab.try_exclusive(0, |flags| (flags == 4).then_some(8)).unwrap();
    assert_eq!(slab.state(0).flags(), 8);
    owned.free();
    assert!(slab.state(0).is_free() && slab.state(0).flags() == 0);
}

#[test]
fn a_lent_buffer_is_taken_back_whole() {
    let slab = slab(4);
    let mut frames = slab.allocate(1, 2).unwrap();
    let mut buffer = frames.lend();
    let tail = buffer.split_off(SIZE);
    buffer.fill(1);
    buffer.join(tail).unwrap();
    frames.take_back(buffer);
    assert_eq!((frames.bytes()[0], frames.bytes()[SIZE]), (1, 0));
    frames.free();
}

#[test]
#[should_panic(expected = "not the lent buffer")]
fn taking_back_part_of_a_lent_buffer_panics() {
    let slab = slab(2);
    let mut frames = slab.allocate(0, 2).unwrap();
    let mut buffer = frames.lend();
    let _tail = buffer.split_off(SIZE);
    frames.take_back(buffer);
}

#[test]
fn snapshots_outlive_the_exclusive_owner_and_are_counted() {
    let slab = slab(1);
    let mut frames = slab.allocate(0, 1).unwrap();
    frames.bytes()[0] = 9;
    let (_, mut shares) = frames.publish_first(3, Some).unwrap();
    let first = shares.next().unwrap();
    drop(shares);
    assert_eq!((slab.state(0).shares(), slab.bytes(&first)[0]), (1, 9));
    let again = slab.try_share(0).ok().unwrap().into_snapshot();
    assert_eq!(slab.release(first).shares(), 2);
    assert_eq!(slab.release(again).shares(), 1);
    assert_eq!(slab.state(0).shares(), 0);
}

#[test]
#[should_panic(expected = "a snapshot of another slab")]
fn a_snapshot_is_read_through_its_own_slab() {
    let (slab, other) = (slab(1), slab(1));
    assert!(slab.allocate(0, 1).unwrap().publish_first(0, Some).is_some());
    let snapshot = slab.try_share(0).ok().unwrap().into_snapshot();
    let _ = other.bytes(&snapshot);
}

#[test]
fn frames_are_published_one_by_one_and_refused_ones_stay_exclusive() {
    let slab = slab(3);
    let mut frames = slab.allocate(0, 3).unwrap();
    assert!(frames.publish_first(0, Some).is_some());
    assert!(frames.publish_first(0, |_| None).is_none(), "`next` refuses the flags");
    assert_eq!((frames.first(), frames.count()), (1, 2));
    frames.take_first().free();
    assert!(slab.state(1).is_free() && slab.state(2).is_exclusive());
    assert!(frames.publish_first(0, Some).is_some());
    assert_eq!(frames.count(), 0);
    assert!(slab.try_share(0).is_ok() && slab.try_share(2).is_ok());
}

#[test]
fn memory_is_unmapped_only_when_every_frame_is_free() {
    let slab = slab(2);
    let frames = slab.allocate(1, 1).unwrap();
    assert!(!slab.unmap_memory(0) && slab.is_mapped(0));
    frames.free();
    assert!(slab.unmap_memory(0) && !slab.is_mapped(0));
    assert!(slab.allocate(0, 1).is_none());
    slab.map_memory(0).unwrap();
    let mut frames = slab.allocate(0, 2).unwrap();
    assert!(frames.bytes().iter().all(|byte| *byte == 0));
    frames.free();
}

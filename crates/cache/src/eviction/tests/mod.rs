//! The properties of the policy, case by case. [`model`] compares it with a naive implementation.

mod model;

use super::*;

/// Stands for the hash of a file and an index: the last step of SplitMix64.
pub(super) fn hash(key: u64) -> u64 {
    let mixed = (key ^ key >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}

/// Room for `frames`, of which the first `inserted` are in use. Their keys are the hashes of their numbers.
fn eviction(frames: u32, inserted: u32) -> Eviction {
    let mut eviction = Eviction::new();
    eviction.grow(frames);
    (0..inserted).for_each(|frame| eviction.insert(frame, hash(frame.into())));
    eviction
}

fn evicted(frame: u32) -> Verdict {
    Verdict::Evicted { key: hash(frame.into()) }
}

fn drain(eviction: &mut Eviction) -> Vec<u32> {
    std::iter::from_fn(|| eviction.evict(evicted)).collect()
}

/// Calls [`Eviction::evict`], and also lists the frames that it looked at.
fn evict_and_list(
    eviction: &mut Eviction,
    mut verdict: impl FnMut(u32) -> Verdict,
) -> (Option<u32>, Vec<u32>) {
    let mut looked_at = Vec::new();
    let evicted = eviction.evict(|frame| {
        looked_at.push(frame);
        verdict(frame)
    });
    (evicted, looked_at)
}

/// As [`eviction`], with the first `main` folios in the main queue.
fn with_main(frames: u32, inserted: u32, main: u32) -> Eviction {
    let mut eviction = eviction(frames, inserted);
    let mut used = 0;
    while used < main {
        let end = used + (main - used).min(MAX_LOOKS as u32);
        let verdict = |frame| if frame < end { Verdict::Used } else { Verdict::Busy };
        assert_eq!(eviction.evict(verdict), None);
        used = end;
    }
    eviction
}

#[test]
fn each_folio_is_evicted_once() {
    for inserted in [0, 1, 9, 10, 500] {
        let mut eviction = eviction(500, inserted);
        assert_eq!(eviction.len(), inserted as usize);
        let mut left = drain(&mut eviction);
        left.sort_unstable();
        assert!(left.into_iter().eq(0..inserted));
        assert!(eviction.is_empty());
    }
}

#[test]
fn unused_folios_are_evicted_in_insertion_order() {
    assert!(drain(&mut eviction(100, 100)).into_iter().eq(0..100));
}

#[test]
fn a_used_folio_is_evicted_after_unused_ones() {
    let mut eviction = eviction(10, 10);
    let mut uses = [0, 2, 0, 0, 1, 0, 0, 0, 0, 0];
    let mut verdict = |frame: u32| match &mut uses[frame as usize] {
        0 => evicted(frame),
        uses => {
            *uses -= 1;
            Verdict::Used
        }
    };
    let left: Vec<u32> = std::iter::from_fn(|| eviction.evict(&mut verdict)).collect();
    assert_eq!(left, [0, 2, 3, 5, 6, 7, 8, 9, 4, 1]);
}

#[test]
fn removed_folios_are_not_looked_at() {
    for removed in [[0, 1], [4, 5], [8, 9], [0, 9]] {
        let mut eviction = eviction(10, 10);
        removed.iter().for_each(|frame| eviction.remove(*frame));
        assert_eq!(eviction.len(), 8);
        assert!(
            drain(&mut eviction).into_iter().eq((0..10).filter(|frame| !removed.contains(frame)))
        );
    }
}

#[test]
fn a_folio_that_comes_back_enters_main() {
    let mut eviction = eviction(20, 20);
    assert_eq!(eviction.evict(evicted), Some(0));
    assert_eq!(eviction.evict(evicted), Some(1));
    eviction.insert(1, hash(0));
    eviction.insert(0, hash(100));
    // The small queue has its share until one is left in it. So main's only folio is the last or the one before.
    let left = drain(&mut eviction);
    assert_eq!(left[..17], (2..19).collect::<Vec<_>>());
    assert_eq!(left[17..], [19, 1, 0]);
}

#[test]
fn the_ghost_does_not_remember_a_removed_folio() {
    let mut eviction = eviction(20, 20);
    eviction.remove(0);
    eviction.insert(0, hash(0));
    assert_eq!(drain(&mut eviction).last(), Some(&0), "it is the newest of the small queue");
    assert_eq!(eviction.queues.len(Queue::Main), 0);
}

#[test]
fn busy_folios_stay_and_move_to_the_end() {
    let mut eviction = eviction(30, 30);
    let verdict = |frame| if frame % 3 == 0 { Verdict::Busy } else { evicted(frame) };
    for _ in 0..20 {
        assert!(eviction.evict(verdict).is_some_and(|frame| frame % 3 != 0));
    }
    assert_eq!(evict_and_list(&mut eviction, verdict).0, None);
    assert_eq!(eviction.len(), 10);
    assert_eq!(drain(&mut eviction).len(), 10);
}

#[test]
fn a_call_looks_at_a_bounded_number_of_folios() {
    for verdict in [Verdict::Busy, Verdict::Used] {
        let mut eviction = with_main(1000, 1000, 500);
        for _ in 0..100 {
            let (left, looked_at) = evict_and_list(&mut eviction, |_| verdict);
            assert_eq!((left, looked_at.len()), (None, MAX_LOOKS));
            assert_eq!(eviction.len(), 1000);
        }
    }
}

#[test]
fn when_all_are_busy_each_is_looked_at() {
    let mut eviction = with_main(1000, 1000, 500);
    let mut turns = vec![0; 1000];
    for _ in 0..1000_usize.div_ceil(MAX_LOOKS) + 1 {
        evict_and_list(&mut eviction, |_| Verdict::Busy)
            .1
            .iter()
            .for_each(|frame| turns[*frame as usize] += 1);
    }
    assert!(turns.iter().all(|turns| *turns > 0));
}

#[test]
fn a_queue_of_busy_folios_does_not_block_the_other() {
    for busy in [0..500, 500..1000] {
        let mut eviction = with_main(1000, 1000, 500);
        let verdict = |frame| if busy.contains(&frame) { Verdict::Busy } else { evicted(frame) };
        for _ in 0..500 {
            let (left, looked_at) = evict_and_list(&mut eviction, verdict);
            assert!(left.is_some_and(|frame| !busy.contains(&frame)));
            assert!(looked_at.len() <= MAX_BUSY_IN_A_ROW + 1, "{} looks", looked_at.len());
        }
    }
}

#[test]
fn eviction_does_not_wait_for_a_fully_used_main_queue() {
    let mut eviction = with_main(4000, 2000, 1800);
    let verdict = |frame| if frame < 1800 { Verdict::Used } else { evicted(frame) };
    for nth in 0..200 {
        let mut looks = 0;
        let left = (0..100).find_map(|_| {
            let (left, looked_at) = evict_and_list(&mut eviction, verdict);
            looks += looked_at.len();
            left
        });
        assert!(left >= Some(1800));
        // The small queue evicts one a round, not more. Looks before the first round count.
        let round = MAX_USED_IN_A_ROW as usize + 1;
        assert!(looks == round || nth == 0 && looks < round, "{looks} looks");
    }
}

#[test]
fn growing_keeps_the_queues_and_the_ghost() {
    let mut eviction = eviction(20, 20);
    assert_eq!(eviction.evict(evicted), Some(0));
    eviction.grow(40_000);
    eviction.insert(39_999, hash(0));
    assert_eq!((eviction.queues.len(Queue::Small), eviction.queues.len(Queue::Main)), (19, 1));
    let left = drain(&mut eviction);
    assert_eq!(left.len(), 20);
}

#[test]
#[should_panic(expected = "frame 3 is in a queue")]
fn a_frame_cannot_be_inserted_twice() {
    eviction(10, 4).insert(3, hash(77));
}

#[test]
#[should_panic(expected = "frame 4 is in no queue")]
fn an_absent_frame_cannot_be_removed() {
    eviction(10, 4).remove(4);
}

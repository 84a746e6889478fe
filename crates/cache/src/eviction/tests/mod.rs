//! What the policy promises, case by case; [`model`] compares it with a naive one.

mod model;

use super::*;

/// Whoever hashes a file and an index: the last step of SplitMix64.
pub(super) fn hash(key: u64) -> u64 {
    let mixed = (key ^ key >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}

/// Room for `frames`, of which the first `came` have come; their keys are the hashes of their numbers.
fn eviction(frames: u32, came: u32) -> Eviction {
    let mut eviction = Eviction::new();
    eviction.grow(frames);
    (0..came).for_each(|frame| eviction.insert(frame, hash(frame.into())));
    eviction
}

fn leaves(frame: u32) -> Answer {
    Answer::Leaves { key: hash(frame.into()) }
}

fn drain(eviction: &mut Eviction) -> Vec<u32> {
    std::iter::from_fn(|| eviction.evict(leaves)).collect()
}

/// Asks as [`Eviction::evict`] does, and lists who was asked.
fn asked(
    eviction: &mut Eviction,
    mut answer: impl FnMut(u32) -> Answer,
) -> (Option<u32>, Vec<u32>) {
    let mut asked = Vec::new();
    let left = eviction.evict(|frame| {
        asked.push(frame);
        answer(frame)
    });
    (left, asked)
}

/// As [`eviction`], with the first that came in main, this many.
fn with_main(frames: u32, came: u32, main: u32) -> Eviction {
    let mut eviction = eviction(frames, came);
    let mut used = 0;
    while used < main {
        let end = used + (main - used).min(LOOKS as u32);
        let answer = |frame| if frame < end { Answer::Used } else { Answer::Busy };
        assert_eq!(eviction.evict(answer), None);
        used = end;
    }
    eviction
}

#[test]
fn each_that_came_leaves_once() {
    for came in [0, 1, 9, 10, 500] {
        let mut eviction = eviction(500, came);
        assert_eq!(eviction.len(), came as usize);
        let mut left = drain(&mut eviction);
        left.sort_unstable();
        assert!(left.into_iter().eq(0..came));
        assert!(eviction.is_empty());
    }
}

#[test]
fn the_unused_leave_in_the_order_in_which_they_came() {
    assert!(drain(&mut eviction(100, 100)).into_iter().eq(0..100));
}

#[test]
fn one_that_was_used_leaves_after_those_that_were_not() {
    let mut eviction = eviction(10, 10);
    let mut uses = [0, 2, 0, 0, 1, 0, 0, 0, 0, 0];
    let mut answer = |frame: u32| match &mut uses[frame as usize] {
        0 => leaves(frame),
        uses => {
            *uses -= 1;
            Answer::Used
        }
    };
    let left: Vec<u32> = std::iter::from_fn(|| eviction.evict(&mut answer)).collect();
    assert_eq!(left, [0, 2, 3, 5, 6, 7, 8, 9, 4, 1]);
}

#[test]
fn those_that_were_removed_are_not_asked() {
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
fn one_that_comes_back_goes_to_main_and_a_stranger_does_not() {
    let mut eviction = eviction(20, 20);
    assert_eq!(eviction.evict(leaves), Some(0));
    assert_eq!(eviction.evict(leaves), Some(1));
    eviction.insert(1, hash(0));
    eviction.insert(0, hash(100));
    // Small has its share until but one is left there; main's only folio is the last or the one before.
    let left = drain(&mut eviction);
    assert_eq!(left[..17], (2..19).collect::<Vec<_>>());
    assert_eq!(left[17..], [19, 1, 0]);
}

#[test]
fn one_that_was_removed_comes_back_as_a_stranger() {
    let mut eviction = eviction(20, 20);
    eviction.remove(0);
    eviction.insert(0, hash(0));
    assert_eq!(drain(&mut eviction).last(), Some(&0), "it is small's newest");
    assert_eq!(eviction.queues.len(Queue::Main), 0);
}

#[test]
fn the_busy_stay_and_are_asked_behind_the_others() {
    let mut eviction = eviction(30, 30);
    let answer = |frame| if frame % 3 == 0 { Answer::Busy } else { leaves(frame) };
    for _ in 0..20 {
        assert!(eviction.evict(answer).is_some_and(|frame| frame % 3 != 0));
    }
    assert_eq!(asked(&mut eviction, answer).0, None);
    assert_eq!(eviction.len(), 10);
    assert_eq!(drain(&mut eviction).len(), 10);
}

#[test]
fn a_call_asks_a_bounded_number_whatever_they_answer() {
    for answer in [Answer::Busy, Answer::Used] {
        let mut eviction = with_main(1000, 1000, 500);
        for _ in 0..100 {
            let (left, asked) = asked(&mut eviction, |_| answer);
            assert_eq!((left, asked.len()), (None, LOOKS));
            assert_eq!(eviction.len(), 1000);
        }
    }
}

#[test]
fn when_all_are_busy_all_get_their_turn() {
    let mut eviction = with_main(1000, 1000, 500);
    let mut turns = vec![0; 1000];
    for _ in 0..1000_usize.div_ceil(LOOKS) + 1 {
        asked(&mut eviction, |_| Answer::Busy)
            .1
            .iter()
            .for_each(|frame| turns[*frame as usize] += 1);
    }
    assert!(turns.iter().all(|turns| *turns > 0));
}

#[test]
fn a_queue_full_of_busy_ones_keeps_no_clean_one_of_the_other() {
    for busy in [0..500, 500..1000] {
        let mut eviction = with_main(1000, 1000, 500);
        let answer = |frame| if busy.contains(&frame) { Answer::Busy } else { leaves(frame) };
        for _ in 0..500 {
            let (left, asked) = asked(&mut eviction, answer);
            assert!(left.is_some_and(|frame| !busy.contains(&frame)));
            assert!(asked.len() <= MAX_BUSY_IN_A_ROW + 1, "asked {}", asked.len());
        }
    }
}

#[test]
fn a_main_that_is_used_all_over_is_not_waited_for() {
    let mut eviction = with_main(4000, 2000, 1800);
    let answer = |frame| if frame < 1800 { Answer::Used } else { leaves(frame) };
    for nth in 0..200 {
        let mut looks = 0;
        let left = (0..100).find_map(|_| {
            let (left, asked) = asked(&mut eviction, answer);
            looks += asked.len();
            left
        });
        assert!(left >= Some(1800));
        // Small gives up one a round, not more. What was asked before the first counts.
        let round = REPRIEVES as usize + 1;
        assert!(looks == round || nth == 0 && looks < round, "asked {looks}");
    }
}

#[test]
fn growing_keeps_those_that_are_there_and_the_ghost() {
    let mut eviction = eviction(20, 20);
    assert_eq!(eviction.evict(leaves), Some(0));
    eviction.grow(40_000);
    eviction.insert(39_999, hash(0));
    assert_eq!((eviction.queues.len(Queue::Small), eviction.queues.len(Queue::Main)), (19, 1));
    let left = drain(&mut eviction);
    assert_eq!(left.len(), 20);
}

#[test]
#[should_panic(expected = "frame 3 is in a queue")]
fn nobody_comes_twice() {
    eviction(10, 4).insert(3, hash(77));
}

#[test]
#[should_panic(expected = "frame 4 is in no queue")]
fn nobody_is_removed_who_is_not_there() {
    eviction(10, 4).remove(4);
}

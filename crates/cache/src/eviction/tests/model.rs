//! A naive implementation of the policy, compared on random sequences of steps.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;

/// More keys than frames.
const KEYS: u64 = 56;

/// Stands for the hash of a key: all differ in the top bits, and they spread evenly over the buckets.
fn hash(key: u64) -> u64 {
    (key + 1) << 48 | key
}

/// For these numbers of frames the ghost forgets nothing early, and the model is exact. It has one bucket and remembers
/// no more keys than a bucket has entries, or four buckets, none of which gets more keys than it has entries.
fn frames() -> impl Strategy<Value = u32> {
    prop_oneof![1..=17_u32, 37..=44_u32]
}

#[derive(Default)]
struct Model {
    frames: usize,
    small: VecDeque<u32>,
    main: VecDeque<u32>,
    /// Remembered keys, each with its number in order.
    ghost: Vec<(u64, usize)>,
    remembered: usize,
    used_in_a_row: u32,
}

impl Model {
    fn small_share(&self) -> usize {
        (self.frames / 10).max(1)
    }

    fn insert(&mut self, frame: u32, key: u64) {
        let length = (self.frames - self.small_share()).max(1);
        let remembered = self.remembered;
        self.ghost.retain(|(_, nth)| remembered - nth < length);
        let known = self.ghost.iter().position(|(other, _)| *other == key);
        match known.map(|index| self.ghost.remove(index)) {
            Some(_) => self.main.push_back(frame),
            None => self.small.push_back(frame),
        }
    }

    fn remove(&mut self, frame: u32) {
        self.small.retain(|other| *other != frame);
        self.main.retain(|other| *other != frame);
    }

    fn evict(&mut self, mut try_evict: impl FnMut(u32) -> Verdict) -> Option<u32> {
        let (mut swapped, mut busy_in_a_row) = (false, 0);
        for _ in 0..MAX_LOOKS {
            let due =
                self.small.len() >= self.small_share() || self.used_in_a_row >= MAX_USED_IN_A_ROW;
            let is_small = match (self.small.is_empty(), self.main.is_empty()) {
                (true, true) => return None,
                (false, false) => due != swapped,
                (is_empty, _) => !is_empty,
            };
            let queue = if is_small { &mut self.small } else { &mut self.main };
            let frame = queue.pop_front().expect("the queue is not empty");
            match try_evict(frame) {
                Verdict::Evicted { key } => {
                    self.used_in_a_row = 0;
                    if is_small {
                        self.remembered += 1;
                        self.ghost.push((key, self.remembered));
                    }
                    return Some(frame);
                }
                Verdict::Used => {
                    busy_in_a_row = 0;
                    self.used_in_a_row += u32::from(!is_small);
                    self.main.push_back(frame);
                }
                Verdict::Busy => {
                    queue.push_back(frame);
                    busy_in_a_row += 1;
                    if busy_in_a_row % MAX_BUSY_IN_A_ROW == 0 {
                        swapped = !swapped;
                    }
                }
            }
        }
        None
    }
}

#[derive(Clone, Debug)]
enum Step {
    /// Accesses a key: counts the access to its folio, or inserts it, evicting another if no frame is free.
    Access(u64),
    Evict,
    Remove(u32),
    /// Makes a folio busy, or no longer busy.
    ToggleBusy(u32),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        12 => (0..KEYS).prop_map(Step::Access),
        8 => (0..8_u64).prop_map(Step::Access),
        2 => Just(Step::Evict),
        1 => (0..44_u32).prop_map(Step::Remove),
        2 => (0..44_u32).prop_map(Step::ToggleBusy),
    ]
}

/// The state word of a folio, as the cache would keep it.
#[derive(Clone, Copy, Debug, Default)]
struct FolioState {
    key: u64,
    is_resident: bool,
    is_busy: bool,
    accesses: u8,
}

/// Both implementations, and the folios that both look at.
struct Pair {
    eviction: Eviction,
    model: Model,
    states: Vec<FolioState>,
}

impl Pair {
    fn new(frames: u32) -> Pair {
        let model = Model { frames: frames as usize, ..Model::default() };
        Pair {
            eviction: eviction(frames, 0),
            model,
            states: vec![FolioState::default(); frames as usize],
        }
    }

    fn evict(&mut self) -> Option<u32> {
        let try_evict = |states: &mut [FolioState], frame: u32| {
            let state = &mut states[frame as usize];
            assert!(state.is_resident);
            match state.accesses {
                _ if state.is_busy => Verdict::Busy,
                0 | 1 => Verdict::Evicted { key: hash(state.key) },
                _ => {
                    state.accesses -= 1;
                    Verdict::Used
                }
            }
        };
        let mut model_states = self.states.clone();
        let expected = evict_and_list(
            |verdict| self.model.evict(verdict),
            |frame| try_evict(&mut model_states, frame),
        );
        let states = &mut self.states;
        let found = evict_and_list(
            |verdict| self.eviction.evict(verdict),
            |frame| try_evict(states, frame),
        );
        assert_eq!(found, expected);
        let (left, _) = found;
        if let Some(frame) = left {
            self.states[frame as usize].is_resident = false;
        }
        left
    }

    fn access(&mut self, key: u64) {
        if let Some(state) =
            self.states.iter_mut().find(|state| state.is_resident && state.key == key)
        {
            state.accesses = (state.accesses + 1).min(3);
            return;
        }
        let free =
            self.states.iter().position(|state| !state.is_resident).map(|frame| frame as u32);
        // When all folios are busy, the key is not inserted.
        let Some(frame) = free.or_else(|| self.evict()).or_else(|| self.evict()) else { return };
        self.states[frame as usize] =
            FolioState { key, is_resident: true, is_busy: false, accesses: 1 };
        self.eviction.insert(frame, hash(key));
        self.model.insert(frame, hash(key));
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Access(key) => self.access(key),
            Step::Evict => _ = self.evict(),
            Step::Remove(frame) => {
                if let Some(state) =
                    self.states.get_mut(frame as usize).filter(|state| state.is_resident)
                {
                    state.is_resident = false;
                    self.eviction.remove(frame);
                    self.model.remove(frame);
                }
            }
            Step::ToggleBusy(frame) => {
                if let Some(state) = self.states.get_mut(frame as usize) {
                    state.is_busy ^= true;
                }
            }
        }
        assert_eq!(self.eviction.queues.len(Queue::Small) as usize, self.model.small.len());
        assert_eq!(self.eviction.queues.len(Queue::Main) as usize, self.model.main.len());
    }
}

/// The frame that an eviction evicted, and the frames that it looked at.
fn evict_and_list(
    evict: impl FnOnce(&mut dyn FnMut(u32) -> Verdict) -> Option<u32>,
    mut verdict: impl FnMut(u32) -> Verdict,
) -> (Option<u32>, Vec<u32>) {
    let mut looked_at = Vec::new();
    let evicted = evict(&mut |frame| {
        looked_at.push(frame);
        verdict(frame)
    });
    (evicted, looked_at)
}

proptest! {
    #[test]
    fn both_implementations_look_at_the_same_folios_in_the_same_order(
        frames in frames(),
        steps in proptest::collection::vec(step(), 0..800),
    ) {
        let mut pair = Pair::new(frames);
        steps.into_iter().for_each(|step| pair.step(step));
        // All folios are still there, each once, and are evicted in the same order.
        pair.states.iter_mut().for_each(|state| state.is_busy = false);
        while !pair.eviction.is_empty() {
            pair.evict();
        }
        prop_assert!(pair.states.iter().all(|state| !state.is_resident));
    }
}

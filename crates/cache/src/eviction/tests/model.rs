//! The same policy again, with queues that are simply queues, and any orders of what may happen.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;

/// More than there are frames.
const KEYS: u64 = 56;

/// What stands for its hash: no two look alike, and they fall into all buckets alike.
fn hash(key: u64) -> u64 {
    (key + 1) << 48 | key
}

/// Of so many frames the ghost has one bucket and remembers no more than that has entries, or four buckets,
/// into none of which fall more keys than it has entries: it forgets nothing early, and the model is exact.
fn frames() -> impl Strategy<Value = u32> {
    prop_oneof![1..=17_u32, 37..=44_u32]
}

#[derive(Default)]
struct Model {
    frames: usize,
    small: VecDeque<u32>,
    main: VecDeque<u32>,
    /// Who was remembered, and as the how many-th.
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
        match known.map(|place| self.ghost.remove(place)) {
            Some(_) => self.main.push_back(frame),
            None => self.small.push_back(frame),
        }
    }

    fn remove(&mut self, frame: u32) {
        self.small.retain(|other| *other != frame);
        self.main.retain(|other| *other != frame);
    }

    fn evict(&mut self, mut ask: impl FnMut(u32) -> Answer) -> Option<u32> {
        let (mut swapped, mut busy_in_a_row) = (false, 0);
        for _ in 0..LOOKS {
            let due = self.small.len() >= self.small_share() || self.used_in_a_row >= REPRIEVES;
            let is_small = match (self.small.is_empty(), self.main.is_empty()) {
                (true, true) => return None,
                (false, false) => due != swapped,
                (is_empty, _) => !is_empty,
            };
            let queue = if is_small { &mut self.small } else { &mut self.main };
            let frame = queue.pop_front().expect("it is not empty");
            match ask(frame) {
                Answer::Leaves { key } => {
                    self.used_in_a_row = 0;
                    if is_small {
                        self.remembered += 1;
                        self.ghost.push((key, self.remembered));
                    }
                    return Some(frame);
                }
                Answer::Used => {
                    busy_in_a_row = 0;
                    self.used_in_a_row += u32::from(!is_small);
                    self.main.push_back(frame);
                }
                Answer::Busy => {
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
    /// Accesses a key: touches its folio, or evicts until a frame is free and brings it in.
    Access(u64),
    Evict,
    Remove(u32),
    /// Pins, dirties, cleans, unpins.
    Turn(u32),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        12 => (0..KEYS).prop_map(Step::Access),
        8 => (0..8_u64).prop_map(Step::Access),
        2 => Just(Step::Evict),
        1 => (0..44_u32).prop_map(Step::Remove),
        2 => (0..44_u32).prop_map(Step::Turn),
    ]
}

/// The state word of a folio, as the cache would keep it.
#[derive(Clone, Copy, Debug, Default)]
struct State {
    key: u64,
    is_resident: bool,
    is_busy: bool,
    touches: u8,
}

/// Both policies, and the folios that both ask.
struct Pair {
    eviction: Eviction,
    model: Model,
    states: Vec<State>,
}

impl Pair {
    fn new(frames: u32) -> Pair {
        let model = Model { frames: frames as usize, ..Model::default() };
        Pair {
            eviction: eviction(frames, 0),
            model,
            states: vec![State::default(); frames as usize],
        }
    }

    fn evict(&mut self) -> Option<u32> {
        let ask = |states: &mut [State], frame: u32| {
            let state = &mut states[frame as usize];
            assert!(state.is_resident);
            match state.touches {
                _ if state.is_busy => Answer::Busy,
                0 | 1 => Answer::Leaves { key: hash(state.key) },
                _ => {
                    state.touches -= 1;
                    Answer::Used
                }
            }
        };
        let mut theirs = self.states.clone();
        let expected = asked_of(|answer| self.model.evict(answer), |frame| ask(&mut theirs, frame));
        let states = &mut self.states;
        let found = asked_of(|answer| self.eviction.evict(answer), |frame| ask(states, frame));
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
            state.touches = (state.touches + 1).min(3);
            return;
        }
        let free =
            self.states.iter().position(|state| !state.is_resident).map(|frame| frame as u32);
        // When all are busy it does without.
        let Some(frame) = free.or_else(|| self.evict()).or_else(|| self.evict()) else { return };
        self.states[frame as usize] = State { key, is_resident: true, is_busy: false, touches: 1 };
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
            Step::Turn(frame) => {
                if let Some(state) = self.states.get_mut(frame as usize) {
                    state.is_busy ^= true;
                }
            }
        }
        assert_eq!(self.eviction.queues.len(Queue::Small) as usize, self.model.small.len());
        assert_eq!(self.eviction.queues.len(Queue::Main) as usize, self.model.main.len());
    }
}

/// What an eviction comes to, and whom it asked.
fn asked_of(
    evict: impl FnOnce(&mut dyn FnMut(u32) -> Answer) -> Option<u32>,
    mut answer: impl FnMut(u32) -> Answer,
) -> (Option<u32>, Vec<u32>) {
    let mut asked = Vec::new();
    let left = evict(&mut |frame| {
        asked.push(frame);
        answer(frame)
    });
    (left, asked)
}

proptest! {
    #[test]
    fn whatever_happens_the_same_are_asked_in_the_same_order(
        frames in frames(),
        steps in proptest::collection::vec(step(), 0..800),
    ) {
        let mut pair = Pair::new(frames);
        steps.into_iter().for_each(|step| pair.step(step));
        // All of them are there, each once, and leave in the same order.
        pair.states.iter_mut().for_each(|state| state.is_busy = false);
        while !pair.eviction.is_empty() {
            pair.evict();
        }
        prop_assert!(pair.states.iter().all(|state| !state.is_resident));
    }
}

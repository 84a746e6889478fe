//! The allocator, compared with a plain model that keeps the state of each block.

use std::cell::RefCell;
use std::collections::BTreeMap;

use proptest::prelude::*;
use uringfs_volume::{
    AllocationRequest, Allocator, InvalidRegion, REGION_BLOCKS, RegionSummary, Run, SpaceUsage,
};

/// Three regions and a short one; as many again after growing.
const BLOCKS: u64 = 3 * REGION_BLOCKS + 5_000;
const RESERVE: u64 = 700;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Block {
    Free,
    Used,
    Pending,
}

/// The records of the regions as they were last taken, and the number of blocks then.
struct Catalog {
    regions: RefCell<BTreeMap<u32, (RegionSummary, Vec<u8>)>>,
    blocks: u64,
}

impl Catalog {
    fn load(&self, region: u32) -> Result<Option<Vec<u8>>, InvalidRegion> {
        Ok(self.regions.borrow().get(&region).map(|(_, record)| record.clone()))
    }

    fn commit(&mut self, allocator: &mut Allocator) {
        self.blocks = allocator.space().total;
        for region in allocator.take_changed() {
            self.regions.borrow_mut().insert(region.index, (region.summary, region.record));
        }
    }

    fn open(&self) -> Allocator {
        let summaries: Vec<_> =
            self.regions.borrow().iter().map(|(region, known)| (*region, known.0)).collect();
        Allocator::open(self.blocks, RESERVE, summaries).unwrap()
    }
}

struct Model {
    allocator: Allocator,
    catalog: Catalog,
    blocks: Vec<Block>,
    used: Vec<Run>,
    pending: Vec<Run>,
    space: SpaceUsage,
}

/// Frees a part of an allocated run: from `from` to `to`, in 256ths of it.
#[derive(Clone, Debug)]
enum Step {
    Allocate {
        blocks: u64,
        min_blocks: u64,
        goal: Goal,
        caller: usize,
        reserved: bool,
    },
    Free {
        which: usize,
        from: u64,
        to: u64,
    },
    FreeWrongly {
        run: Run,
    },
    Claim {
        run: Run,
    },
    TakeFree {
        run: Run,
    },
    Release {
        which: usize,
    },
    Grow {
        by: u64,
    },
    /// In 256ths of the available blocks.
    Promise {
        part: u64,
    },
    /// In 256ths of the promised blocks.
    Redeem {
        part: u64,
    },
    Commit,
    Unload,
    Crash,
}

#[derive(Clone, Debug)]
enum Goal {
    Nowhere,
    BehindTheLast,
    At(u64),
}

fn runs() -> impl Strategy<Value = Run> {
    (0..BLOCKS + 10, 0..60u64).prop_map(|(start, length)| Run { start, length })
}

fn steps(count: usize) -> impl Strategy<Value = Vec<Step>> {
    let size = prop_oneof![10 => 1..9u64, 4 => 1..600u64, 1 => 1..REGION_BLOCKS * 2];
    let goal = prop_oneof![
        Just(Goal::Nowhere),
        Just(Goal::BehindTheLast),
        (0..BLOCKS + 9).prop_map(Goal::At)
    ];
    let allocate = (size, 1..=4u64, goal, 0..5usize, proptest::bool::weighted(0.2)).prop_map(
        |(blocks, quarter, goal, caller, reserved)| {
            let min_blocks = (blocks / quarter).clamp(1, REGION_BLOCKS);
            Step::Allocate { blocks, min_blocks, goal, caller, reserved }
        },
    );
    let step = prop_oneof![
        12 => allocate,
        6 => (any::<usize>(), 0..256u64, 1..=256u64).prop_map(|(which, from, to)| {
            Step::Free { which, from: from.min(to - 1), to }
        }),
        1 => runs().prop_map(|run| Step::FreeWrongly { run }),
        1 => runs().prop_map(|run| Step::Claim { run }),
        1 => runs().prop_map(|run| Step::TakeFree { run }),
        6 => any::<usize>().prop_map(|which| Step::Release { which }),
        1 => (0..2 * REGION_BLOCKS).prop_map(|by| Step::Grow { by }),
        1 => (0..=256u64).prop_map(|part| Step::Promise { part }),
        1 => (0..=256u64).prop_map(|part| Step::Redeem { part }),
        2 => Just(Step::Commit),
        1 => Just(Step::Unload),
        1 => Just(Step::Crash),
    ];
    proptest::collection::vec(step, 1..count)
}

impl Model {
    fn new() -> Model {
        let catalog = Catalog { regions: RefCell::default(), blocks: BLOCKS };
        Model {
            allocator: catalog.open(),
            catalog,
            blocks: vec![Block::Free; BLOCKS as usize],
            used: Vec::new(),
            pending: Vec::new(),
            space: SpaceUsage {
                total: BLOCKS,
                free: BLOCKS,
                pending: 0,
                reserved: RESERVE,
                delayed: 0,
            },
        }
    }

    fn all(&self, run: Run, state: Block) -> bool {
        run.end() <= self.space.total
            && self.blocks[run.start as usize..run.end() as usize].iter().all(|is| *is == state)
    }

    fn put(&mut self, run: Run, state: Block) {
        self.blocks[run.start as usize..run.end() as usize].fill(state);
    }

    /// The longest run of free blocks in one region.
    fn longest(&self) -> u64 {
        let runs = self.blocks.chunks(REGION_BLOCKS as usize);
        let runs = runs.flat_map(|region| region.split(|block| *block != Block::Free));
        runs.map(|run| run.len() as u64).max().unwrap()
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Allocate { blocks, min_blocks, ref goal, caller, reserved } => {
                let goal = match goal {
                    Goal::Nowhere => None,
                    Goal::BehindTheLast => self.used.last().map(|run| run.end()),
                    Goal::At(block) => Some(*block),
                };
                self.allocate(AllocationRequest { blocks, min_blocks, goal, caller }, reserved);
            }
            Step::Free { which, from, to } => {
                if self.used.is_empty() {
                    return;
                }
                let whole = self.used.swap_remove(which % self.used.len());
                let cut = |part: u64| whole.start + (whole.length * part / 256);
                let (start, end) = (cut(from), cut(to).max(cut(from) + 1));
                let run = Run { start, length: end - start };
                self.allocator.free(run, |region| self.catalog.load(region)).unwrap();
                self.put(run, Block::Pending);
                self.pending.push(run);
                self.space.pending += run.length;
                for (start, end) in [(whole.start, start), (end, whole.end())] {
                    if start < end {
                        self.used.push(Run { start, length: end - start });
                    }
                }
            }
            Step::FreeWrongly { run } => {
                if run.length == 0 || !self.all(run, Block::Used) {
                    let freed = self.allocator.free(run, |region| self.catalog.load(region));
                    assert_eq!(freed, Err(InvalidRegion::NotAllocated));
                }
            }
            Step::Claim { run } => {
                let claimed = self.allocator.claim(run, |region| self.catalog.load(region));
                if run.length > 0 && self.all(run, Block::Free) {
                    claimed.unwrap();
                    self.take(run);
                } else {
                    assert_eq!(claimed, Err(InvalidRegion::NotFree));
                }
            }
            Step::TakeFree { run } => {
                let taken = self.allocator.claim_free(run, |region| self.catalog.load(region));
                if run.length == 0 || run.end() > self.space.total {
                    return assert_eq!(taken, Err(InvalidRegion::Bounds));
                }
                taken.unwrap();
                let free: Vec<u64> = (run.start..run.end())
                    .filter(|block| self.blocks[*block as usize] == Block::Free)
                    .collect();
                for row in free.chunk_by(|block, next| block + 1 == *next) {
                    self.take(Run { start: row[0], length: row.len() as u64 });
                }
            }
            Step::Release { which } => {
                if !self.pending.is_empty() {
                    let run = self.pending.swap_remove(which % self.pending.len());
                    self.allocator.release(run);
                    self.put(run, Block::Free);
                    self.space.free += run.length;
                    self.space.pending -= run.length;
                }
            }
            Step::Grow { by } => {
                let blocks = (self.space.total + by).min(2 * BLOCKS).max(self.space.total);
                self.allocator.grow(blocks, |region| self.catalog.load(region)).unwrap();
                self.blocks.resize(blocks as usize, Block::Free);
                self.space.free += blocks - self.space.total;
                self.space.total = blocks;
            }
            Step::Promise { part } => {
                let blocks = self.space.available() * part / 256;
                self.allocator.reserve_delayed(blocks);
                self.space.delayed += blocks;
            }
            Step::Redeem { part } => {
                let blocks = self.space.delayed * part / 256;
                self.allocator.release_delayed(blocks);
                self.space.delayed -= blocks;
            }
            Step::Commit => self.catalog.commit(&mut self.allocator),
            Step::Unload => self.allocator.unload(0),
            Step::Crash => {
                self.catalog.commit(&mut self.allocator);
                self.allocator = self.catalog.open();
                for run in std::mem::take(&mut self.pending) {
                    self.put(run, Block::Free);
                    self.space.free += run.length;
                }
                (self.space.pending, self.space.delayed) = (0, 0);
            }
        }
        self.space.reserved = RESERVE.min(self.space.free);
        assert_eq!(self.allocator.space(), self.space);
    }

    fn allocate(&mut self, want: AllocationRequest, reserved: bool) {
        let load = |region| self.catalog.load(region);
        let (run, available) = match reserved {
            true => {
                let available = self.space.free.saturating_sub(self.space.delayed);
                (self.allocator.allocate_reserved(want, load), available)
            }
            false => {
                let available = self.space.free.saturating_sub(RESERVE + self.space.delayed);
                (self.allocator.allocate(want, load), available)
            }
        };
        let Some(run) = run.unwrap() else {
            assert!(available < want.min_blocks || self.longest() < want.min_blocks, "{want:?}");
            return;
        };
        assert!(
            (want.min_blocks..=want.blocks.min(available)).contains(&run.length),
            "{run:?} {want:?}"
        );
        assert!(self.all(run, Block::Free), "{run:?} is not free");
        let at_goal = want.goal.map(|start| Run { start, length: want.min_blocks });
        if let Some(at_goal) = at_goal
            && at_goal.start / REGION_BLOCKS == (at_goal.end() - 1) / REGION_BLOCKS
            && self.all(at_goal, Block::Free)
        {
            assert_eq!(run.start, at_goal.start);
        }
        self.take(run);
    }

    fn take(&mut self, run: Run) {
        self.put(run, Block::Used);
        self.used.push(run);
        self.space.free -= run.length;
    }

    /// All free blocks can be claimed, and no others.
    fn finish(mut self) {
        let mut start = 0;
        for blocks in self.blocks.chunk_by(|one, other| one == other) {
            let run = Run { start, length: blocks.len() as u64 };
            let claimed = self.allocator.claim(run, |region| self.catalog.load(region));
            assert_eq!(claimed.is_ok(), blocks[0] == Block::Free, "{run:?}");
            start = run.end();
        }
        assert_eq!(self.allocator.space().free, 0);
        let want = AllocationRequest { blocks: 1, min_blocks: 1, goal: None, caller: 0 };
        let run = self.allocator.allocate_reserved(want, |region| self.catalog.load(region));
        assert_eq!(run, Ok(None));
    }
}

proptest! {
    #[test]
    fn the_allocator_agrees_with_the_model_on_each_block(steps in steps(80)) {
        let mut model = Model::new();
        steps.iter().for_each(|step| model.step(step));
        model.finish();
    }
}

#[test]
fn the_allocator_agrees_with_the_model_after_many_steps() {
    let config = ProptestConfig::default();
    let config = ProptestConfig { cases: config.cases.div_ceil(32), ..config };
    proptest!(config, |(steps in steps(6_000))| {
        let mut model = Model::new();
        steps.iter().for_each(|step| model.step(step));
        model.finish();
    });
}

fn fresh(regions: u64) -> Allocator {
    Allocator::open(regions * REGION_BLOCKS, 0, []).unwrap()
}

fn nothing_stored(_: u32) -> Result<Option<Vec<u8>>, InvalidRegion> {
    Ok(None)
}

#[test]
fn files_of_different_threads_do_not_interleave() {
    let mut allocator = fresh(8);
    let mut ends = [None; 4];
    let mut runs = 0;
    // 8 MiB at a time, 256 MiB each: the whole device.
    for _ in 0..32 {
        for (caller, end) in ends.iter_mut().enumerate() {
            let want = AllocationRequest { blocks: 2048, min_blocks: 1, goal: *end, caller };
            let run = allocator.allocate(want, nothing_stored).unwrap().unwrap();
            assert_eq!(run.length, 2048);
            runs += usize::from(*end != Some(run.start));
            *end = Some(run.end());
        }
    }
    assert!(runs <= 8, "four files of two regions each have {runs} runs");
    assert_eq!(allocator.space().free, 0);
}

#[test]
fn small_files_of_a_thread_avoid_the_region_of_another() {
    let mut allocator = fresh(3);
    let used = Run { start: REGION_BLOCKS, length: REGION_BLOCKS + REGION_BLOCKS / 2 };
    allocator.claim(used, nothing_stored).unwrap();
    let mut write = |caller| {
        let want = AllocationRequest { blocks: 4, min_blocks: 1, goal: None, caller };
        allocator.allocate(want, nothing_stored).unwrap().unwrap().start / REGION_BLOCKS
    };
    // The first thread's region still has more free blocks than the other.
    for _ in 0..100 {
        assert_eq!([write(0), write(1)], [0, 2]);
    }
}

#[test]
fn pending_blocks_are_not_allocated_but_free_after_a_crash() {
    let mut allocator = fresh(1);
    let all = AllocationRequest { blocks: REGION_BLOCKS, min_blocks: 1, goal: None, caller: 0 };
    let run = allocator.allocate(all, nothing_stored).unwrap().unwrap();
    allocator.free(Run { start: 10, length: 5 }, nothing_stored).unwrap();
    assert_eq!(allocator.allocate(all, nothing_stored), Ok(None));
    let changed = allocator.take_changed();
    assert_eq!(allocator.take_changed(), []);
    let mut later = Allocator::open(REGION_BLOCKS, 0, [(0, changed[0].summary)]).unwrap();
    let stored = |_| Ok::<_, InvalidRegion>(Some(changed[0].record.clone()));
    let free = Some(Run { start: 10, length: 5 });
    assert_eq!(later.allocate(all, stored), Ok(free));
    allocator.release(Run { start: 10, length: 5 });
    assert_eq!(allocator.allocate(all, nothing_stored), Ok(free));
    assert_eq!(run, Run { start: 0, length: REGION_BLOCKS });
}

#[test]
fn only_metadata_uses_the_reserve() {
    let mut allocator = Allocator::open(REGION_BLOCKS, 100, []).unwrap();
    let all = AllocationRequest { blocks: REGION_BLOCKS, min_blocks: 1, goal: None, caller: 0 };
    let run = allocator.allocate(all, nothing_stored).unwrap().unwrap();
    assert_eq!(run.length, REGION_BLOCKS - 100);
    assert_eq!(
        allocator.allocate(AllocationRequest { blocks: 1, ..all }, nothing_stored),
        Ok(None)
    );
    let run = allocator.allocate_reserved(all, nothing_stored).unwrap().unwrap();
    assert_eq!(run.length, 100);
}

#[test]
fn a_failed_load_of_a_region_changes_nothing() {
    let mut allocator = fresh(3);
    let before = allocator.space();
    let refused = |region| if region == 1 { Err(InvalidRegion::Size) } else { Ok(None) };
    let over = Run { start: REGION_BLOCKS - 5, length: REGION_BLOCKS + 10 };
    assert_eq!(allocator.claim(over, refused), Err(InvalidRegion::Size));
    let want = AllocationRequest { blocks: 5, min_blocks: 5, goal: Some(REGION_BLOCKS), caller: 0 };
    assert_eq!(allocator.allocate(want, refused), Err(InvalidRegion::Size));
    assert_eq!(allocator.space(), before);
    allocator.claim(over, nothing_stored).unwrap();
    assert_eq!(allocator.take_changed().len(), 3);
}

#[test]
fn a_record_and_a_summary_that_disagree_are_refused() {
    let summary = RegionSummary { free: 7, longest: 7 };
    let mut allocator = Allocator::open(REGION_BLOCKS, 0, [(0, summary)]).unwrap();
    let want = AllocationRequest { blocks: 1, min_blocks: 1, goal: None, caller: 0 };
    assert_eq!(allocator.allocate(want, nothing_stored), Err(InvalidRegion::Summary));
    for (region, free, longest, reason) in [
        (1, 1, 1, InvalidRegion::Bounds),
        (0, 6, 7, InvalidRegion::Summary),
        (0, 1, 0, InvalidRegion::Summary),
        (0, 101, 101, InvalidRegion::Summary),
    ] {
        let known = [(region, RegionSummary { free, longest })];
        assert_eq!(Allocator::open(100, 0, known).err(), Some(reason));
    }
}

#[test]
#[should_panic(expected = "is not in the set")]
fn releasing_a_block_that_is_not_pending_panics() {
    let mut allocator = fresh(1);
    allocator.claim(Run { start: 0, length: 9 }, nothing_stored).unwrap();
    allocator.release(Run { start: 0, length: 9 });
}

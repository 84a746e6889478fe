//! The extent map, compared with a plain model that keeps each block of a file.

use std::ops::Range;

use proptest::prelude::*;
use uringfs_volume::{Extent, ExtentMap, ExtentOrHole, ExtentState, InvalidExtent};

/// For each block of a file: the block of the device, and its state.
#[derive(Clone, PartialEq, Debug)]
struct Model(Vec<Option<(u64, ExtentState)>>);

impl Model {
    /// The fewest extents that describe a range.
    fn extents(&self, range: Range<u64>) -> Vec<Extent> {
        let mut extents: Vec<Extent> = Vec::new();
        for offset in range {
            let Some(Some((start, state))) = self.0.get(offset as usize).copied() else { continue };
            let block = Extent { offset, start, length: 1, state };
            match extents.last_mut() {
                Some(last) if last.join(&block).is_some() => last.length += 1,
                _ => extents.push(block),
            }
        }
        extents
    }

    fn put(&mut self, range: Range<u64>, what: impl Fn(u64) -> Option<(u64, ExtentState)>) {
        for offset in range {
            self.0[offset as usize] = what(offset);
        }
    }

    fn agrees_with(&self, map: &ExtentMap) {
        let expected = self.extents(0..self.0.len() as u64);
        assert_eq!(map.iter().collect::<Vec<_>>(), expected);
        assert_eq!(map.len(), expected.len() as u64);
        assert_eq!(map.is_empty(), expected.is_empty());
        assert_eq!(map.blocks(), self.0.iter().flatten().count() as u64);
        let mut built = ExtentMap::new();
        expected.iter().for_each(|extent| built.push(*extent).unwrap());
        assert_eq!(*map, built);
    }
}

#[derive(Clone, Debug)]
enum Change {
    Insert { start: u64, state: ExtentState },
    Remove,
    Truncate,
    Convert,
    Push { start: u64 },
}

fn changes(
    blocks: u64,
    longest: u64,
    count: usize,
) -> impl Strategy<Value = Vec<(Change, Range<u64>)>> {
    let state = prop_oneof![Just(ExtentState::Written), Just(ExtentState::Unwritten)];
    // Few positions on the device, so that neighbours often join.
    let start = (0..4u64).prop_map(move |place| place * blocks);
    let change = prop_oneof![
        8 => (start.clone(), state).prop_map(|(start, state)| Change::Insert { start, state }),
        2 => Just(Change::Remove),
        1 => Just(Change::Truncate),
        4 => Just(Change::Convert),
        1 => start.prop_map(|start| Change::Push { start }),
    ];
    let range =
        (0..blocks, 1..=longest).prop_map(move |(at, length)| at..(at + length).min(blocks));
    proptest::collection::vec((change, range), 1..count)
}

/// Changes both and compares the results.
fn change(map: &mut ExtentMap, model: &mut Model, change: &Change, range: Range<u64>) {
    let blocks = model.0.len() as u64;
    let there = model.extents(range.clone());
    let length = range.end - range.start;
    match *change {
        Change::Insert { start, state } => {
            let start = start + range.start;
            let extent = Extent { offset: range.start, start, length, state };
            assert_eq!(map.insert(extent), there);
            model.put(range.clone(), |offset| Some((start + offset - range.start, state)));
        }
        Change::Remove => {
            assert_eq!(map.remove(range.clone()), there);
            model.put(range, |_| None);
        }
        Change::Truncate => {
            // Mostly near the end, so that the file becomes large.
            let end = blocks - length.min(blocks / 8);
            assert_eq!(map.truncate(end), model.extents(end..blocks));
            model.put(end..blocks, |_| None);
        }
        Change::Convert => {
            let unwritten = there.iter().filter(|extent| extent.state == ExtentState::Unwritten);
            assert_eq!(
                map.mark_written(range.clone()),
                unwritten.map(|extent| extent.length).sum::<u64>()
            );
            for block in model.0[range.start as usize..range.end as usize].iter_mut().flatten() {
                block.1 = ExtentState::Written;
            }
        }
        Change::Push { start } => {
            let start = start + range.start;
            let extent = Extent { offset: range.start, start, length, state: ExtentState::Written };
            let pushed = map.push(extent);
            if model.extents(range.start..blocks).is_empty() {
                assert_eq!(pushed, Ok(()));
                model.put(range, |offset| Some((start + offset - extent.offset, extent.state)));
            } else {
                assert_eq!(pushed, Err(InvalidExtent::Order));
            }
        }
    }
}

/// The model's content of `block`.
fn found(model: &Model, block: u64) -> ExtentOrHole {
    let all = model.extents(0..model.0.len() as u64);
    match all.iter().find(|extent| extent.end() > block) {
        Some(extent) if extent.offset <= block => ExtentOrHole::Extent(*extent),
        Some(extent) => ExtentOrHole::Hole { end: extent.offset },
        None => ExtentOrHole::Hole { end: u64::MAX },
    }
}

proptest! {
    #[test]
    fn a_map_agrees_with_the_model_on_each_block(changes in changes(96, 24, 60)) {
        let (mut map, mut model) = (ExtentMap::new(), Model(vec![None; 96]));
        let mut snapshots = Vec::new();
        for (kind, range) in &changes {
            snapshots.push((map.clone(), model.clone()));
            change(&mut map, &mut model, kind, range.clone());
            model.agrees_with(&map);
        }
        for block in [0, 1, 2, 94, 95, 96, 1000, u64::MAX].into_iter().chain(0..96) {
            prop_assert_eq!(map.find(block), found(&model, block));
            let rest: Vec<Extent> = map.iter().filter(|extent| extent.end() > block).collect();
            prop_assert_eq!(map.iter_from(block).collect::<Vec<_>>(), rest);
        }
        for (map, model) in &snapshots {
            model.agrees_with(map);
        }
    }
}

/// Blocks of a file whose branches are split, merged and dropped.
const LARGE: u64 = 60_000;

/// A file of which every block is an extent, written in a scattered order.
fn scattered() -> (ExtentMap, Model) {
    let (mut map, mut model) = (ExtentMap::new(), Model(vec![None; LARGE as usize]));
    for order in 0..LARGE {
        // Coprime to the number of blocks: each offset occurs once.
        let offset = order * 22_447 % LARGE;
        let start = 1_000_000 + 2 * order;
        let replaced =
            map.insert(Extent { offset, start, length: 1, state: ExtentState::Unwritten });
        assert_eq!(replaced, []);
        model.0[offset as usize] = Some((start, ExtentState::Unwritten));
    }
    (map, model)
}

#[test]
fn a_large_map_agrees_with_the_model_and_snapshots_stay() {
    let (map, model) = scattered();
    model.agrees_with(&map);
    let config = ProptestConfig::default();
    let config = ProptestConfig { cases: config.cases.div_ceil(32), ..config };
    proptest!(config, |(mut changes in changes(LARGE, 9_000, 40))| {
        // Finally the map shrinks, chunk by chunk.
        changes.extend((0..LARGE / 10_000).map(|step| (Change::Remove, step * 10_000 + 7..LARGE - 3)));
        let (mut now, mut expected) = (map.clone(), model.clone());
        let mut snapshots = Vec::new();
        for (step, (kind, range)) in changes.iter().enumerate() {
            change(&mut now, &mut expected, kind, range.clone());
            if step % 8 == 0 {
                expected.agrees_with(&now);
                snapshots.push((now.clone(), expected.clone()));
            }
        }
        expected.agrees_with(&now);
        snapshots.push((map.clone(), model.clone()));
        snapshots.iter().for_each(|(map, model)| model.agrees_with(map));
    });
}

#[test]
fn threads_read_a_snapshot_while_the_map_changes() {
    let (mut map, model) = scattered();
    let snapshot = &map.clone();
    std::thread::scope(|scope| {
        let readers = [0, 1].map(|_| scope.spawn(|| model.agrees_with(snapshot)));
        for offset in (0..LARGE).step_by(100) {
            map.remove(offset..offset + 50);
        }
        readers.into_iter().for_each(|reader| reader.join().unwrap());
    });
    assert_eq!(map.blocks(), LARGE / 2);
    assert_eq!(snapshot.blocks(), LARGE);
}

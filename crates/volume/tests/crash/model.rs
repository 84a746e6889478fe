//! The expected content of a volume, in plain maps: names, nodes, and for each block of a file
//! every content that it had. After a power cut a sector of a block in a state holds what it held
//! in that state, or a later write that is not known to be durable. Of the layout of files the
//! model knows only which block a write goes to.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::rc::Rc;

use uringfs_file::FallocateSize;
use uringfs_volume::{Rename, Time};

use crate::found::{Content, Entry, Found};

pub const BLOCK: usize = 4096;
pub const SECTOR: usize = 512;

/// Number of an operation, from 0.
pub type Step = usize;
/// Number of a file of any kind.
pub type Id = usize;
/// Number of a block that was allocated for a file.
pub type Cell = usize;

#[derive(Clone, Debug, PartialEq)]
pub enum Kind {
    Directory,
    Symlink(Vec<u8>),
    File(Layout),
}

/// A file's size, and its blocks.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Layout {
    pub size: usize,
    blocks: BTreeMap<usize, Block>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Block {
    cell: Cell,
    /// Otherwise it reads as zeros.
    is_written: bool,
}

/// A file of any kind.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    pub kind: Kind,
    pub owner: (u32, u32),
    pub permissions: u16,
    /// The modification time, if it was set explicitly and no write came after.
    pub modified: Option<Time>,
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// Names and their nodes.
#[derive(Clone, Default)]
pub struct State {
    names: BTreeMap<String, Id>,
    nodes: BTreeMap<Id, Rc<Node>>,
}

/// The content of a block after a write.
struct Version {
    step: Step,
    bytes: Box<[u8; BLOCK]>,
}

/// For each sector of a block, the step of its last durable write.
pub type Floors = HashMap<Cell, [Step; BLOCK / SECTOR]>;

#[derive(Default)]
pub struct Model {
    pub now: State,
    /// The current step.
    pub step: Step,
    cells: Vec<Vec<Version>>,
    next: Id,
}

impl State {
    pub fn find(&self, path: &str) -> Option<Id> {
        self.names.get(path).copied()
    }

    pub fn layout(&self, id: Id) -> Option<&Layout> {
        match &self.nodes.get(&id)?.kind {
            Kind::File(layout) => Some(layout),
            _ => None,
        }
    }

    /// Whether everything is the same except the content of files.
    pub fn has_names_of(&self, other: &State) -> bool {
        let is_like = |(one, other): (&Rc<Node>, &Rc<Node>)| {
            let are_files = matches!((&one.kind, &other.kind), (Kind::File(_), Kind::File(_)));
            (are_files || one.kind == other.kind)
                && (one.owner, one.permissions, &one.xattrs)
                    == (other.owner, other.permissions, &other.xattrs)
        };
        self.names == other.names && self.nodes.values().zip(other.nodes.values()).all(is_like)
    }

    fn is_directory(&self, path: &str) -> bool {
        path.is_empty() || self.find(path).is_some_and(|id| self.nodes[&id].kind == Kind::Directory)
    }

    /// Whether a name can be made: it does not exist, and its parent is a directory.
    pub fn is_free(&self, path: &str) -> bool {
        self.find(path).is_none() && self.is_directory(parent_of(path))
    }

    fn is_empty(&self, directory: &str) -> bool {
        !self.names.keys().any(|path| is_inside(path, directory))
    }

    fn node_mut(&mut self, id: Id) -> &mut Node {
        Rc::make_mut(self.nodes.get_mut(&id).expect("the caller has found the node"))
    }
}

fn parent_of(path: &str) -> &str {
    &path[..path.rfind('/').expect("paths begin with /")]
}

fn is_inside(path: &str, directory: &str) -> bool {
    path.strip_prefix(directory).is_some_and(|rest| rest.starts_with('/'))
}

/// Operations on names. Each returns whether it succeeds.
impl Model {
    pub fn make(&mut self, path: &str, kind: Kind, permissions: u16) -> bool {
        let is_free = self.now.is_free(path);
        if is_free {
            let (owner, modified, xattrs) = ((0, 0), None, BTreeMap::new());
            let node = Node { kind, owner, permissions, modified, xattrs };
            self.now.names.insert(path.into(), self.next);
            self.now.nodes.insert(self.next, Rc::new(node));
            self.next += 1;
        }
        is_free
    }

    pub fn link(&mut self, path: &str, new: &str) -> bool {
        match self.now.find(path) {
            Some(id) if !self.now.is_directory(path) && self.now.is_free(new) => {
                self.now.names.insert(new.into(), id);
                true
            }
            _ => false,
        }
    }

    pub fn remove(&mut self, path: &str) -> bool {
        !self.now.is_directory(path) && self.now.names.remove(path).is_some()
    }

    pub fn remove_directory(&mut self, path: &str) -> bool {
        self.now.is_directory(path)
            && self.now.is_empty(path)
            && self.now.names.remove(path).is_some()
    }

    pub fn rename(&mut self, path: &str, new: &str, how: Rename) -> bool {
        let state = &mut self.now;
        let (Some(moved), there) = (state.find(path), state.find(new)) else { return false };
        if !state.is_directory(parent_of(new)) || is_inside(new, path) {
            return false;
        }
        if there == Some(moved) {
            return how != Rename::NoReplace;
        }
        match (there, how) {
            (Some(_), Rename::NoReplace) | (None, Rename::Exchange) => return false,
            (Some(_), Rename::Exchange) if is_inside(path, new) => return false,
            (Some(_), Rename::Replace) => {
                let fits = state.is_directory(path) == state.is_directory(new);
                if !fits || !state.is_empty(new) {
                    return false;
                }
            }
            _ => {}
        }
        let is_of = |name: &str, of: &str| name == of || is_inside(name, of);
        let renamed = std::mem::take(&mut state.names).into_iter().filter_map(|(name, id)| {
            if is_of(&name, path) {
                return Some((format!("{new}{}", &name[path.len()..]), id));
            }
            match (is_of(&name, new), how) {
                (true, Rename::Exchange) => Some((format!("{path}{}", &name[new.len()..]), id)),
                (true, _) => None,
                (false, _) => Some((name, id)),
            }
        });
        state.names = renamed.collect();
        true
    }

    pub fn change(&mut self, path: &str, how: impl FnOnce(&mut Node)) -> bool {
        let found = self.now.find(path);
        found.map(|id| how(self.now.node_mut(id))).is_some()
    }
}

/// Operations on the content of files.
impl Model {
    pub fn write(&mut self, file: Id, offset: usize, bytes: &[u8]) {
        let size = self.layout_mut(file).size;
        if offset > size {
            self.zero_tail(file);
        }
        let end = offset + bytes.len();
        for block in blocks_around(offset..end) {
            let part = part_of(block, &(offset..end));
            let from = block * BLOCK + part.start - offset;
            let source = &bytes[from..from + part.len()];
            self.put(file, block, |content| content[part].copy_from_slice(source));
        }
        let layout = self.layout_mut(file);
        layout.size = layout.size.max(end);
    }

    /// Replaces whole blocks by new ones.
    pub fn replace(&mut self, file: Id, offset: usize, bytes: &[u8]) {
        if offset > self.layout_mut(file).size {
            self.zero_tail(file);
        }
        for block in blocks_around(offset..offset + bytes.len()) {
            self.layout_mut(file).blocks.remove(&block);
        }
        self.write(file, offset, bytes);
    }

    pub fn set_size(&mut self, file: Id, size: usize) {
        if size > self.layout_mut(file).size {
            self.zero_tail(file);
        }
        let layout = self.layout_mut(file);
        if size <= layout.size {
            layout.blocks.retain(|block, _| *block < size.div_ceil(BLOCK));
        }
        layout.size = size;
    }

    pub fn empty(&mut self, file: Id) {
        *self.layout_mut(file) = Layout::default();
    }

    pub fn allocate(&mut self, file: Id, range: Range<usize>, size: FallocateSize) {
        for block in blocks_around(range.clone()) {
            self.cell_of(file, block);
        }
        if size == FallocateSize::Extend && range.end > self.layout_mut(file).size {
            self.zero_tail(file);
            self.layout_mut(file).size = range.end;
        }
    }

    pub fn punch_hole(&mut self, file: Id, range: Range<usize>) {
        let whole = self.zero_ends(file, range);
        self.layout_mut(file).blocks.retain(|block, _| !whole.contains(block));
    }

    pub fn zero_range(&mut self, file: Id, range: Range<usize>, size: FallocateSize) {
        let whole = self.zero_ends(file, range.clone());
        for (_, block) in self.layout_mut(file).blocks.range_mut(whole) {
            block.is_written = false;
        }
        self.allocate(file, range, size);
    }

    /// Zeros the partial blocks of a range. Returns its whole blocks, including the last one of the
    /// file if the range reaches the end.
    fn zero_ends(&mut self, file: Id, range: Range<usize>) -> Range<usize> {
        let to_end = range.end >= self.layout_mut(file).size;
        let last = if to_end { range.end.div_ceil(BLOCK) } else { range.end / BLOCK };
        let whole = range.start.div_ceil(BLOCK)..last;
        for block in blocks_around(range.clone()).filter(|block| !whole.contains(block)) {
            if self.content(file, block).is_some() {
                let part = part_of(block, &range);
                self.put(file, block, |content| content[part].fill(0));
            }
        }
        whole.start..whole.end.max(whole.start)
    }

    /// Zeros the bytes of the last block past the end, before the file grows.
    fn zero_tail(&mut self, file: Id) {
        let size = self.layout_mut(file).size;
        if !size.is_multiple_of(BLOCK) && self.content(file, size / BLOCK).is_some() {
            self.put(file, size / BLOCK, |_| {});
        }
    }

    /// Writes a block. Bytes past the file's end are zeros.
    fn put(&mut self, file: Id, block: usize, fill: impl FnOnce(&mut [u8; BLOCK])) {
        let mut bytes = Box::new(*self.content(file, block).unwrap_or(&[0; BLOCK]));
        let inside = self.layout_mut(file).size.saturating_sub(block * BLOCK).min(BLOCK);
        bytes[inside..].fill(0);
        fill(&mut bytes);
        let cell = self.cell_of(file, block);
        self.cells[cell].push(Version { step: self.step, bytes });
        self.layout_mut(file).blocks.insert(block, Block { cell, is_written: true });
    }

    /// The content of a written block.
    fn content(&self, file: Id, block: usize) -> Option<&[u8; BLOCK]> {
        let block = self.now.layout(file)?.blocks.get(&block).filter(|block| block.is_written)?;
        Some(&*self.cells[block.cell].last().expect("the block is written").bytes)
    }

    fn cell_of(&mut self, file: Id, block: usize) -> Cell {
        let next = self.cells.len();
        let new = Block { cell: next, is_written: false };
        let cell = self.layout_mut(file).blocks.entry(block).or_insert(new).cell;
        if cell == next {
            self.cells.push(Vec::new());
        }
        cell
    }

    fn layout_mut(&mut self, file: Id) -> &mut Layout {
        let node = self.now.node_mut(file);
        node.modified = None;
        match &mut node.kind {
            Kind::File(layout) => layout,
            kind => panic!("{kind:?} has no content"),
        }
    }
}

fn blocks_around(range: Range<usize>) -> Range<usize> {
    range.start / BLOCK..range.end.div_ceil(BLOCK)
}

/// The part of a block in a range of the file.
fn part_of(block: usize, range: &Range<usize>) -> Range<usize> {
    let start = block * BLOCK;
    range.start.max(start) - start..range.end.min(start + BLOCK) - start
}

/// Comparisons with a volume.
impl Model {
    /// The current sectors of a file, or of a range of it.
    pub fn sectors(&self, file: Id, range: Range<usize>) -> Vec<(Cell, Range<usize>)> {
        let layout = self.now.layout(file).expect("the node is a file");
        let of_block = |(number, block): (&usize, &Block)| {
            let part = part_of(*number, &range);
            (block.cell, part.start / SECTOR..part.end.div_ceil(SECTOR))
        };
        layout.blocks.range(blocks_around(range.clone())).map(of_block).collect()
    }

    /// Returns how a volume differs from the state after `step`, where writes after `last` cannot
    /// be there.
    pub fn compare(
        &self,
        found: &Found,
        state: &State,
        step: Step,
        last: Step,
        floors: &Floors,
    ) -> Result<(), String> {
        if !found.0.keys().eq(state.names.keys()) {
            let (found, names): (Vec<_>, Vec<_>) =
                (found.0.keys().collect(), state.names.keys().collect());
            return Err(format!("{found:?} instead of {names:?}"));
        }
        let mut numbers = HashMap::new();
        for (path, entry) in &found.0 {
            let id = state.names[path];
            if *numbers.entry(id).or_insert(entry.number) != entry.number {
                return Err(format!("{path} and its other name are different files"));
            }
            let node = &state.nodes[&id];
            compare_attributes(entry, node).map_err(|flaw| format!("{path}: {flaw}"))?;
            if let (Content::File(bytes), Kind::File(layout)) = (&entry.content, &node.kind) {
                self.compare_bytes(bytes, layout, step, last, floors)
                    .map_err(|flaw| format!("{path}: {flaw}"))?;
            }
        }
        let different: std::collections::HashSet<_> = numbers.values().collect();
        if different.len() < numbers.len() {
            return Err("two files are the same".into());
        }
        Ok(())
    }

    fn compare_bytes(
        &self,
        bytes: &[u8],
        layout: &Layout,
        step: Step,
        last: Step,
        floors: &Floors,
    ) -> Result<(), String> {
        if bytes.len() != layout.size {
            return Err(format!("{} bytes instead of {}", bytes.len(), layout.size));
        }
        for (number, found) in bytes.chunks(SECTOR).enumerate() {
            let (block, sector) = (number * SECTOR / BLOCK, number % (BLOCK / SECTOR));
            let is_legal = match layout.blocks.get(&block) {
                Some(Block { cell, is_written: true }) => {
                    let least = floors.get(cell).map_or(step, |floors| floors[sector].max(step));
                    self.could_be(*cell, sector, found, least, last)
                }
                _ => found.iter().all(|byte| *byte == 0),
            };
            if !is_legal {
                let head = &found[..found.len().min(16)];
                return Err(format!("at {} the volume has {head:?}", number * SECTOR));
            }
        }
        Ok(())
    }

    /// Whether a sector may hold this: its content after `least`, or of a later write.
    fn could_be(&self, cell: Cell, sector: usize, found: &[u8], least: Step, last: Step) -> bool {
        let versions = &self.cells[cell];
        let behind = versions.partition_point(|version| version.step <= least);
        let possible = versions[behind.saturating_sub(1)..].iter();
        possible
            .take_while(|version| version.step <= last)
            .any(|version| version.bytes[sector * SECTOR..].starts_with(found))
    }
}

fn compare_attributes(entry: &Entry, node: &Node) -> Result<(), String> {
    let is_kind = match (&entry.content, &node.kind) {
        (Content::Directory, Kind::Directory) | (Content::File(_), Kind::File(_)) => true,
        (Content::Symlink(target), Kind::Symlink(expected)) => target == expected,
        _ => false,
    };
    let is_modified = node.modified.is_some_and(|time| time != entry.modified);
    if !is_kind || is_modified || (entry.owner, entry.permissions) != (node.owner, node.permissions)
    {
        return Err(format!("{entry:?} instead of {node:?}"));
    }
    if entry.xattrs != node.xattrs {
        return Err("different extended attributes".into());
    }
    Ok(())
}

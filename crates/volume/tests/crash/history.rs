//! A sequence of operations on a recording device, and the states that a power cut at each of its
//! events may leave: the state after some operation, never one before the last durable one.

use std::ffi::OsStr;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;

use uringfs_buffer::Buffer;
use uringfs_device::backend::sim::{Crash, Sim, SimOptions};
use uringfs_device::{Device, Errno};
use uringfs_file::{File, FileOp};
use uringfs_reactor::Reactor;
use uringfs_volume::{Follow, FormatOptions, OpenOptions, SetXattr, Time, Volume, VolumeOptions};

use crate::found::Found;
use crate::model::{BLOCK, Cell, Floors, Id, Kind, Layout, Model, SECTOR, State, Step};
use crate::operation::{Ends, HELD, Operation};
use crate::planted::reuse_block;

const SIZE: u64 = 16 << 20;
const ATTRIBUTE: &str = "user.x";
/// The target of symbolic links.
const NOWHERE: &[u8] = b"nowhere";

/// A volume in which most blocks that are allocated next hold foreign bytes.
pub fn with_foreign_bytes(options: impl FnOnce(SimOptions) -> SimOptions) -> Sim {
    let sim = Sim::new(options(SimOptions::new(SIZE)));
    let device = Device::new(sim.clone()).unwrap();
    Volume::format(&device, &FormatOptions::default()).unwrap();
    let volume = Volume::open_on(device).unwrap();
    let reactor = Reactor::new(Default::default()).unwrap();
    let file = volume.open_with("/foreign", create()).unwrap();
    assert!(reactor.block_on(file.write_at(Buffer::copy_of(&[0xee; 1 << 20]), 0)).0.is_ok());
    volume.sync().unwrap();
    volume.remove_file("/foreign").unwrap();
    drop((file, volume));
    sim
}

/// All blocks of a file.
const WHOLE: Range<usize> = 0..usize::MAX / BLOCK * BLOCK;

/// The bytes that a step writes. No other step or position has the same.
fn pattern(step: Step, length: usize) -> Vec<u8> {
    let words =
        (0..length.div_ceil(8)).map(|word| ((step as u64 + 1) << 32 | word as u64) << 1 | 1);
    let mut bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
    bytes.truncate(length);
    bytes
}

fn create() -> OpenOptions {
    OpenOptions::new().read(true).write(true).create(true).mode(0o600).direct(true)
}

/// The operations on a volume, and their durable states.
pub struct History {
    pub sim: Sim,
    model: Model,
    /// The number of events after each step, and the state then.
    steps: Vec<(u64, State)>,
    durable: Vec<DurablePoint>,
}

/// A guarantee that the state after a step is durable from an event on.
struct DurablePoint {
    at: u64,
    step: Step,
    what: Durable,
}

enum Durable {
    /// Everything.
    State,
    /// The bytes of these sectors.
    Sectors(Vec<(Cell, Range<usize>)>),
}

/// A history in progress.
pub struct Run<'r> {
    pub history: History,
    pub volume: Volume,
    pub reactor: &'r Reactor,
    pub held: Option<(Id, File)>,
}

impl<'r> Run<'r> {
    /// On a copy of a volume. `device` makes the device to open.
    pub fn on(
        base: &Sim,
        discard: bool,
        reactor: &'r Reactor,
        device: impl FnOnce(Sim) -> Device,
    ) -> Run<'r> {
        let sim = base.crash_image(Crash::KeepAll);
        let options = VolumeOptions::new().discard(discard);
        let volume = options.open_on(device(sim.clone())).unwrap();
        let (model, steps, durable) = (Model::default(), Vec::new(), Vec::new());
        let history = History { sim, model, steps, durable };
        let mut run = Run { history, volume, reactor, held: None };
        run.done();
        run.history.mark_durable(Durable::State);
        run
    }

    /// Cuts begin here.
    pub fn begin_cuts(&mut self) {
        self.history.sim.restart_record();
    }

    /// Removes a file, and overwrites its first block before the removal is committed.
    pub fn remove_and_reuse(&mut self, path: &'static str) {
        let (_, file) = self.target(path).expect("the path is a file");
        let read = file.read_at(Buffer::zeroed(BLOCK), 0);
        let (_, bytes) = self.reactor.block_on(read);
        drop(file);
        self.perform(Operation::Remove { path });
        reuse_block(&self.history.sim, self.volume.device(), &bytes);
    }

    pub fn perform_all(&mut self, operations: &[Operation]) {
        for operation in operations {
            self.perform(*operation);
        }
    }

    /// Performs it on the volume and on the model. They must agree on whether it succeeds.
    pub fn perform(&mut self, operation: Operation) {
        let (step, volume) = (self.history.steps.len(), self.volume.clone());
        let model = &mut self.history.model;
        model.step = step;
        let (done, expected) = match operation {
            Operation::Move { path, new, how } => {
                (volume.rename_with(path, new, how), model.rename(path, new, how))
            }
            Operation::Link { path, new } => (volume.hard_link(path, new), model.link(path, new)),
            Operation::Remove { path } => (volume.remove_file(path), model.remove(path)),
            Operation::MakeDirectory { path } => {
                (volume.create_dir_with_mode(path, 0o700), model.make(path, Kind::Directory, 0o700))
            }
            Operation::RemoveDirectory { path } => {
                (volume.remove_dir(path), model.remove_directory(path))
            }
            Operation::Symlink { path } => {
                let link = Kind::Symlink(NOWHERE.into());
                (volume.symlink(OsStr::from_bytes(NOWHERE), path), model.make(path, link, 0o777))
            }
            Operation::SetAttributes { path } => {
                let (owner, permissions) =
                    ((step as u32, step as u32 + 1), 0o600 + step as u16 % 8);
                // Beyond the range of 64-bit nanoseconds.
                let time = Time::new(step as i64 * 10_000_000_000, step as u32).unwrap();
                let set = volume.set_attributes(path, Follow::No, |inode| {
                    (inode.user, inode.group) = owner;
                    (inode.permissions, inode.modified) = (permissions, time);
                });
                let expected = model.change(path, |node| {
                    (node.owner, node.permissions) = (owner, permissions);
                    // A directory's times change with its names.
                    node.modified = (node.kind != Kind::Directory).then_some(time);
                });
                (set, expected)
            }
            Operation::SetXattr { path, length } => {
                let value = pattern(step, length);
                let set = volume.set_xattr(path, Follow::No, ATTRIBUTE, &value, SetXattr::Either);
                let mut expected = true;
                expected &= model.change(path, |node| match node.kind {
                    Kind::Symlink(_) => expected = false,
                    _ => drop(node.xattrs.insert(ATTRIBUTE.into(), value)),
                });
                (set, expected)
            }
            Operation::RemoveXattr { path } => {
                let mut was_there = false;
                model.change(path, |node| {
                    was_there = node.xattrs.remove(ATTRIBUTE.as_bytes()).is_some();
                });
                (volume.remove_xattr(path, Follow::No, ATTRIBUTE), was_there)
            }
            Operation::SyncAll => {
                let synced = volume.sync();
                self.done();
                self.history.mark_durable(Durable::State);
                return synced.unwrap();
            }
            Operation::Release => return self.held = None,
            Operation::Hold { path } => return self.held = self.target(path),
            _ => return self.perform_on_file(operation),
        };
        assert_eq!(done.is_ok(), expected, "{operation:?}: {done:?}");
        self.done();
    }

    fn perform_on_file(&mut self, operation: Operation) {
        let (Operation::Write { path, .. }
        | Operation::Append { path, .. }
        | Operation::SetSize { path, .. }
        | Operation::Truncate { path }
        | Operation::Allocate { path, .. }
        | Operation::PunchHole { path, .. }
        | Operation::ZeroRange { path, .. }
        | Operation::Sync { path }
        | Operation::Datasync { path }) = operation
        else {
            unreachable!("{operation:?} works on names");
        };
        if matches!(operation, Operation::Write { .. } | Operation::Append { .. }) {
            self.make_file(path);
        }
        let Some((id, file)) = self.target(path) else { return };
        let (step, reactor) = (self.history.steps.len(), self.reactor);
        let before = self.volume.statistics().commits;
        let model = &mut self.history.model;
        model.step = step;
        let wait =
            |operation: FileOp<Result<(), Errno>>| assert_eq!(reactor.block_on(operation), Ok(()));
        // The guarantee when the write has completed.
        let mut durable = None;
        match operation {
            Operation::Write { offset, length, ends, .. } => {
                let bytes = pattern(step, length);
                let (buffer, at) = (Buffer::copy_of(&bytes), offset as u64);
                let write = match ends {
                    Ends::Volatile => file.write_at(buffer, at),
                    Ends::Durable => file.write_durably(buffer, at),
                    Ends::Atomic => file.write_atomic(buffer, at),
                };
                assert_eq!(reactor.block_on(write).0, Ok(length));
                match ends {
                    Ends::Atomic => model.replace(id, offset, &bytes),
                    _ => model.write(id, offset, &bytes),
                }
                durable = (ends != Ends::Volatile).then_some(offset..offset + length);
            }
            Operation::Append { length, ends, .. } => {
                let (bytes, size) = (pattern(step, length), size_of(model, id));
                let append = match ends {
                    Ends::Volatile => file.append(Buffer::copy_of(&bytes)),
                    _ => file.append_durably(Buffer::copy_of(&bytes)),
                };
                assert_eq!(reactor.block_on(append).0, Ok(size as u64));
                model.write(id, size, &bytes);
                durable = (ends != Ends::Volatile).then_some(size..size + length);
            }
            Operation::SetSize { size, .. } => {
                wait(file.set_len(size as u64));
                model.set_size(id, size);
            }
            Operation::Truncate { .. } => {
                let truncate =
                    OpenOptions::new().read(true).write(true).truncate(true).direct(true);
                self.volume.open_with(path, truncate).unwrap();
                model.empty(id);
            }
            Operation::Allocate { offset, length, size, .. } => {
                wait(file.allocate(offset as u64, length as u64, size));
                model.allocate(id, offset..offset + length, size);
            }
            Operation::PunchHole { offset, length, .. } => {
                wait(file.punch_hole(offset as u64, length as u64));
                model.punch_hole(id, offset..offset + length);
            }
            Operation::ZeroRange { offset, length, size, .. } => {
                wait(file.zero_range(offset as u64, length as u64, size));
                model.zero_range(id, offset..offset + length, size);
            }
            Operation::Datasync { .. } => {
                wait(file.sync_data());
                durable = Some(WHOLE);
            }
            _ => {
                wait(file.sync_all());
                durable = Some(WHOLE);
            }
        }
        self.done();
        let is_sync = matches!(operation, Operation::Sync { .. });
        let history = &mut self.history;
        if let Some(range) = durable {
            // An operation that needs a commit makes everything durable.
            let takes_commit = self.volume.statistics().commits > before
                || history.has_new_layout(id)
                || is_sync && history.has_new_names();
            match takes_commit {
                true => history.mark_durable(Durable::State),
                false => history.mark_durable(Durable::Sectors(history.model.sectors(id, range))),
            }
        }
    }

    /// An open file, if the path names one.
    fn target(&self, path: &str) -> Option<(Id, File)> {
        if path == HELD {
            return self.held.clone();
        }
        let state = &self.history.model.now;
        let id = state.find(path).filter(|id| state.layout(*id).is_some())?;
        Some((
            id,
            self.volume
                .open_with(path, OpenOptions::new().read(true).write(true).direct(true))
                .unwrap(),
        ))
    }

    /// Makes a file if it does not exist and can be made. A step of its own.
    fn make_file(&mut self, path: &str) {
        let model = &mut self.history.model;
        if path != HELD && model.make(path, Kind::File(Layout::default()), 0o600) {
            self.volume.open_with(path, create()).unwrap();
            self.done();
        }
    }

    fn done(&mut self) {
        let history = &mut self.history;
        history.steps.push((history.events(), history.model.now.clone()));
    }

    /// Everything is durable.
    pub fn mark_all_durable(&mut self) {
        self.history.mark_durable(Durable::State);
    }

    /// Continues from what was found: the state after one of the steps that are not durable.
    pub fn continue_from(&mut self, found: &Found) {
        let history = &mut self.history;
        let last = history.steps.len() - 1;
        let floors = history.floors_at(u64::MAX);
        let is_as_after = |step: &Step| {
            let state = &history.steps[*step].1;
            history.model.compare(found, state, *step, last, &floors).is_ok()
        };
        let step = (history.durable_at(u64::MAX)..=last).rev().find(is_as_after);
        history.model.now = history.steps[step.expect("the state is one of the steps")].1.clone();
        self.done();
    }

    /// Closes the volume.
    pub fn end(self) -> History {
        let Run { mut history, volume, held, .. } = self;
        drop((volume, held));
        history.mark_durable(Durable::State);
        history
    }
}

fn size_of(model: &Model, file: Id) -> usize {
    model.now.layout(file).expect("the path is a file").size
}

impl History {
    fn events(&self) -> u64 {
        self.sim.events()
    }

    /// The state after the last step is durable from now on.
    fn mark_durable(&mut self, what: Durable) {
        let (at, step) = (self.events(), self.steps.len() - 1);
        self.durable.push(DurablePoint { at, step, what });
    }

    /// The last step of which everything is durable at an event.
    fn durable_at(&self, event: u64) -> Step {
        let points = self.durable.iter().filter(|point| point.at <= event);
        let of_all = points.filter(|point| matches!(point.what, Durable::State));
        of_all.map(|point| point.step).max().expect("the first state is durable")
    }

    /// Whether a file's size or blocks differ from the durable ones.
    fn has_new_layout(&self, file: Id) -> bool {
        let (_, durable) = &self.steps[self.durable_at(u64::MAX)];
        durable.layout(file) != self.model.now.layout(file)
    }

    /// Whether there are names or attributes that are not durable.
    fn has_new_names(&self) -> bool {
        let (_, durable) = &self.steps[self.durable_at(u64::MAX)];
        !durable.has_names_of(&self.model.now)
    }

    fn floors_at(&self, event: u64) -> Floors {
        let mut floors = Floors::new();
        for point in self.durable.iter().filter(|point| point.at <= event) {
            let Durable::Sectors(sectors) = &point.what else { continue };
            for (cell, sectors) in sectors {
                let floor = floors.entry(*cell).or_insert([0; BLOCK / SECTOR]);
                floor[sectors.clone()].fill(point.step);
            }
        }
        floors
    }

    /// Returns why a volume is impossible after a power cut at this event.
    pub fn judge(&self, found: &Found, cut: u64) -> Result<(), String> {
        let first = self.durable_at(cut);
        let under_way = self.steps.partition_point(|(end, _)| *end < cut);
        let last = under_way.min(self.steps.len() - 1).max(first);
        let floors = self.floors_at(cut);
        let compare = |step: Step| {
            let compared = self.model.compare(found, &self.steps[step].1, step, last, &floors);
            compared.map_err(|flaw| format!("after step {step}: {flaw}"))
        };
        // Errors are formatted only for an invalid image.
        if (first..=last).any(|step| compare(step).is_ok()) {
            return Ok(());
        }
        Err((first..=last).filter_map(|step| compare(step).err()).collect::<Vec<_>>().join("; "))
    }
}

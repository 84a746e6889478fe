//! What tasks wait for. An operation's requests are kept with its task. A
//! descriptor and a moment have a cell each, which holds who waits and then the
//! answer.

use std::task::Waker;

use rustix::io::Errno;
use uringfs_device::{DeviceIndex, Request, Tag};
use uringfs_ring::{Wait, Waited};

use crate::tasks::op_result::{Outcome, OutcomeCell, OutcomeSender};

/// Marks a tag as the reactor's own: the rest is a cell's index, or names an
/// operation's request.
pub(crate) const OWN_TAG: u64 = 1 << 63;
/// Marks an operation's request: below it a number, and the operation's task.
const OPERATION_TAG: u64 = 1 << 62;
const NUMBER_MASK: u32 = (1 << 30) - 1;

/// True for a tag that the caller gave.
#[inline(always)]
pub(crate) fn is_token(tag: Tag) -> bool {
    tag.0 & OWN_TAG == 0
}

/// True for the tag of an operation's request.
#[inline(always)]
pub(crate) fn is_operation(tag: Tag) -> bool {
    tag.0 >= OWN_TAG | OPERATION_TAG
}

/// The operation that has issued it.
#[inline(always)]
pub(crate) fn task_from_tag(tag: Tag) -> u32 {
    tag.0 as u32
}

pub(crate) fn cell_tag(cell: CellIndex) -> Tag {
    Tag(OWN_TAG | cell as u64)
}

pub(crate) fn cell_from_tag(tag: Tag) -> CellIndex {
    tag.0 as CellIndex
}

/// Where an operation is counted for quiescence.
pub(crate) type EpochHold = (DeviceIndex, u8);

/// The requests of one operation.
#[derive(Default)]
pub(crate) struct OperationRequests {
    awaited: Vec<Tag>,
    /// None waits for these any more, and a queue still has them.
    forgotten: Vec<Tag>,
    /// Of operations that have panicked: counted out with the last of those that are forgotten.
    epoch_holds: Vec<EpochHold>,
    /// What has ended and is not taken yet, each with its result written in it.
    ended: Vec<Request>,
    /// Of the last one; it goes on when another operation comes to the task,
    /// so that what comes late for the one before is not taken for its own.
    number: u32,
}

impl OperationRequests {
    /// The tag of a new request of the operation at `task`.
    #[inline(always)]
    pub(crate) fn open(&mut self, task: u32) -> Tag {
        self.number = self.number.wrapping_add(1) & NUMBER_MASK;
        let tag = Tag(OWN_TAG | OPERATION_TAG | (self.number as u64) << 32 | task as u64);
        self.awaited.push(tag);
        tag
    }

    /// Those that have not ended.
    pub(crate) fn awaited(&self) -> &[Tag] {
        &self.awaited
    }

    /// Keeps a request that has ended until it is taken. False when nobody waits
    /// for it: it is destroyed.
    #[inline(always)]
    pub(crate) fn complete(&mut self, request: Request) -> bool {
        let is_awaited = self.close(request.tag);
        if is_awaited {
            self.ended.push(request);
        }
        is_awaited
    }

    /// No more awaited. True when it was.
    #[inline(always)]
    fn close(&mut self, tag: Tag) -> bool {
        match self.awaited[..] {
            // As nearly always.
            [only] if only == tag => self.awaited.clear(),
            _ => match self.awaited.iter().position(|other| *other == tag) {
                Some(index) => drop(self.awaited.swap_remove(index)),
                None => return false,
            },
        }
        true
    }

    /// The request, when it has ended.
    #[inline(always)]
    pub(crate) fn take(&mut self, tag: Tag) -> Option<Request> {
        match self.ended.last() {
            None => None,
            Some(last) if last.tag == tag => self.ended.pop(),
            Some(_) => self.take_another(tag),
        }
    }

    #[inline(never)]
    fn take_another(&mut self, tag: Tag) -> Option<Request> {
        let index = self.ended.iter().position(|request| request.tag == tag)?;
        Some(self.ended.swap_remove(index))
    }

    /// None waits for this one any more. True when it is still to come.
    pub(crate) fn forget(&mut self, tag: Tag) -> bool {
        drop(self.take(tag));
        let is_to_come = self.close(tag);
        if is_to_come {
            self.forgotten.push(tag);
        }
        is_to_come
    }

    /// Keeps what an operation was counted in by until all that it has forgotten has ended. Given back where
    /// nothing has to end.
    pub(crate) fn hold_epoch(&mut self, epoch_holds: EpochHold) -> Option<EpochHold> {
        if self.forgotten.is_empty() {
            return Some(epoch_holds);
        }
        self.epoch_holds.push(epoch_holds);
        None
    }

    /// One that was forgotten has ended: what is to be counted out by it.
    #[cold]
    pub(crate) fn end_forgotten(&mut self, tag: Tag) -> Vec<EpochHold> {
        self.forgotten.retain(|other| *other != tag);
        if self.forgotten.is_empty() { std::mem::take(&mut self.epoch_holds) } else { Vec::new() }
    }
}

/// Names a cell.
pub(crate) type CellIndex = u32;

/// Who is told when a cell is answered.
#[derive(Debug)]
pub(crate) enum Waiter {
    /// Whoever is behind a waker.
    Waker(Waker),
    /// Whoever awaits a simple transfer, and its outcome.
    Result(OutcomeSender, Outcome),
    /// None yet.
    None,
}

/// What a cell was waiting for.
#[derive(Debug)]
pub(crate) enum WaitResult {
    /// The descriptor is ready, or the wait was cancelled.
    Descriptor(Wait, Result<Waited, Errno>),
    /// The moment has come.
    Timer,
}

/// Somebody waits for one thing.
pub(crate) enum WaitCell {
    Free,
    Waiting(Waiter),
    /// One of the reactor's operations waits, by its task: told without a waker.
    WaitingTask(u32),
    Ready(WaitResult),
    /// A simple transfer that somebody awaits: the answer goes straight to him.
    Transfer(OutcomeSender),
    /// The future is gone; the answer will be destroyed.
    Forgotten,
}

/// The cells of one reactor.
pub(crate) struct WaitCells {
    cells: Vec<WaitCell>,
    free: Vec<CellIndex>,
}

impl WaitCells {
    pub(crate) fn new() -> WaitCells {
        WaitCells { cells: Vec::new(), free: Vec::new() }
    }

    /// A cell that somebody is going to wait on.
    pub(crate) fn open(&mut self) -> CellIndex {
        self.insert(WaitCell::Waiting(Waiter::None))
    }

    /// A cell that knows whom a simple transfer's end goes to.
    pub(crate) fn open_transfer(&mut self, sender: OutcomeSender) -> CellIndex {
        self.insert(WaitCell::Transfer(sender))
    }

    /// Closes it: the read has ended, or was never issued.
    pub(crate) fn close_transfer(&mut self, index: CellIndex) -> OutcomeSender {
        match self.close(index) {
            WaitCell::Transfer(sender) => sender,
            _ => panic!("it was opened to be awaited"),
        }
    }

    fn close(&mut self, index: CellIndex) -> WaitCell {
        self.free.push(index);
        std::mem::replace(&mut self.cells[index as usize], WaitCell::Free)
    }

    /// The cell whose answer goes to `outcome`, while it is in flight.
    pub(crate) fn find_transfer(&self, receiver: &OutcomeCell) -> Option<CellIndex> {
        let is =
            |cell: &WaitCell| matches!(cell, WaitCell::Transfer(sender) if sender.is_for(receiver));
        self.cells.iter().position(is).map(|task| task as CellIndex)
    }

    fn insert(&mut self, cell: WaitCell) -> CellIndex {
        match self.free.pop() {
            Some(index) => {
                self.cells[index as usize] = cell;
                index
            }
            None => {
                self.cells.push(cell);
                (self.cells.len() - 1) as CellIndex
            }
        }
    }

    /// Leaves the answer and says whom to tell: a task is put among the woken.
    pub(crate) fn complete(
        &mut self,
        index: CellIndex,
        answer: WaitResult,
        woken: &mut Vec<u32>,
    ) -> Waiter {
        match std::mem::replace(&mut self.cells[index as usize], WaitCell::Ready(answer)) {
            WaitCell::Waiting(waiter) => waiter,
            WaitCell::WaitingTask(task) => {
                woken.push(task);
                Waiter::None
            }
            WaitCell::Forgotten => {
                self.close(index);
                Waiter::None
            }
            WaitCell::Free | WaitCell::Ready(_) | WaitCell::Transfer(_) => {
                panic!("a cell is answered once")
            }
        }
    }

    /// Takes the answer and frees the cell; else the task is to be told, or the waker. The cell as it was comes back
    /// in either case, to be dropped when the reactor is borrowed no more: a user's waker may call back into it.
    pub(crate) fn poll(&mut self, index: CellIndex, waiter: Result<u32, Waker>) -> WaitCell {
        let cell = &mut self.cells[index as usize];
        match cell {
            WaitCell::Ready(_) => self.close(index),
            WaitCell::Waiting(_) | WaitCell::WaitingTask(_) => {
                let next = match waiter {
                    Ok(task) => WaitCell::WaitingTask(task),
                    Err(waker) => WaitCell::Waiting(Waiter::Waker(waker)),
                };
                std::mem::replace(cell, next)
            }
            WaitCell::Free | WaitCell::Forgotten | WaitCell::Transfer(_) => {
                panic!("a cell is polled by its future only")
            }
        }
    }

    /// Takes those who answer simple transfers that never end.
    pub(crate) fn take_transfers(&mut self) -> Vec<OutcomeSender> {
        let awaited = self.cells.iter_mut().filter(|cell| matches!(cell, WaitCell::Transfer(_)));
        let senders = awaited.map(|cell| match std::mem::replace(cell, WaitCell::Forgotten) {
            WaitCell::Transfer(sender) => sender,
            _ => unreachable!("it was just matched"),
        });
        senders.collect()
    }

    /// The future of a cell is gone. The cell as it was comes back, to be dropped as in [`Self::poll`]: one that was
    /// waiting is still to be answered.
    pub(crate) fn forget(&mut self, index: CellIndex) -> WaitCell {
        let cell = &mut self.cells[index as usize];
        match cell {
            WaitCell::Waiting(_) | WaitCell::WaitingTask(_) => {
                std::mem::replace(cell, WaitCell::Forgotten)
            }
            _ => self.close(index),
        }
    }
}

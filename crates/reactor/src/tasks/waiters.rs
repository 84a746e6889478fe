//! The waits of tasks: the requests of an operation, which are kept with its task; and descriptors and timers, each with
//! a cell that holds the waiter and then the result.

use std::task::Waker;

use uringfs_device::{DeviceIndex, Errno, Request, Tag};
use uringfs_ring::{Wait, WaitOutput};

use crate::tasks::op_result::{OpResult, ResultReceiver, ResultSender};

/// Marks a tag of the reactor's own. The other bits are a cell's index, or identify an operation's request.
pub(crate) const OWN_TAG: u64 = 1 << 63;
/// Marks the tag of an operation's request. Below it are a number (30 bits) and the task (32 bits).
const OPERATION_TAG: u64 = 1 << 62;
const NUMBER_MASK: u32 = (1 << 30) - 1;
/// Marks the tag of a transfer of a batch. Below it are the number of the batch (29 bits) and the slot (32 bits).
const BATCH_TAG: u64 = 1 << 61;
/// The number of a batch is below it.
pub(crate) const MAX_BATCHES: u32 = 1 << 29;

/// True for a tag that is the caller's token.
#[inline(always)]
pub(crate) fn is_token(tag: Tag) -> bool {
    tag.0 & OWN_TAG == 0
}

/// True for the tag of an operation's request.
#[inline(always)]
pub(crate) fn is_operation(tag: Tag) -> bool {
    tag.0 >= OWN_TAG | OPERATION_TAG
}

/// The task whose operation issued the request.
#[inline(always)]
pub(crate) fn task_from_tag(tag: Tag) -> u32 {
    tag.0 as u32
}

/// The tag of the first slot of a batch. Those of the others follow.
pub(crate) fn batch_tag(number: u32) -> Tag {
    Tag(OWN_TAG | BATCH_TAG | u64::from(number) << 32)
}

/// True for the tag of a transfer of a batch.
pub(crate) fn is_batch(tag: Tag) -> bool {
    tag.0 & (OWN_TAG | OPERATION_TAG | BATCH_TAG) == OWN_TAG | BATCH_TAG
}

/// The number of the batch that issued the transfer.
pub(crate) fn batch_from_tag(tag: Tag) -> u32 {
    (tag.0 >> 32) as u32 & (MAX_BATCHES - 1)
}

/// True for the tag of a fast-path transfer that a caller awaits.
#[inline(always)]
pub(crate) fn is_awaited(tag: Tag) -> bool {
    tag.0 & (OWN_TAG | OPERATION_TAG | BATCH_TAG) == OWN_TAG
}

pub(crate) fn cell_tag(cell: CellIndex) -> Tag {
    Tag(OWN_TAG | cell as u64)
}

pub(crate) fn cell_from_tag(tag: Tag) -> CellIndex {
    tag.0 as CellIndex
}

/// A device, and the slot of the epoch that an operation is in there.
pub(crate) type EpochHold = (DeviceIndex, u16);

/// The requests of one operation.
#[derive(Default)]
pub(crate) struct OperationRequests {
    awaited: Vec<Tag>,
    /// A queue has these, and the operation no longer waits for them.
    forgotten: Vec<Tag>,
    /// Epochs that panicked operations are in. The reactor leaves them when the last forgotten request has ended.
    epoch_holds: Vec<EpochHold>,
    /// Requests that have ended and were not taken. Each holds its result.
    ended: Vec<Request>,
    /// The number of the last request. Continues when another operation gets the task, so that a late completion of the
    /// previous operation is not taken for one of its own.
    number: u32,
}

impl OperationRequests {
    /// The tag of a new request of the operation in `task`.
    #[inline(always)]
    pub(crate) fn open(&mut self, task: u32) -> Tag {
        self.number = self.number.wrapping_add(1) & NUMBER_MASK;
        let tag = Tag(OWN_TAG | OPERATION_TAG | (self.number as u64) << 32 | task as u64);
        self.awaited.push(tag);
        tag
    }

    /// The tags of requests that have not ended.
    pub(crate) fn awaited(&self) -> &[Tag] {
        &self.awaited
    }

    /// Keeps a request that has ended until it is taken. False when the operation does not wait for it: it is dropped.
    #[inline(always)]
    pub(crate) fn complete(&mut self, request: Request) -> bool {
        let is_awaited = self.close(request.tag);
        if is_awaited {
            self.ended.push(request);
        }
        is_awaited
    }

    /// Removes a tag from the awaited ones. False when it is not there.
    #[inline(always)]
    fn close(&mut self, tag: Tag) -> bool {
        match self.awaited[..] {
            // Nearly always.
            [only] if only == tag => self.awaited.clear(),
            _ => match self.awaited.iter().position(|other| *other == tag) {
                Some(index) => drop(self.awaited.swap_remove(index)),
                None => return false,
            },
        }
        true
    }

    /// The request, if it has ended.
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

    /// Stops waiting for a request. True when it has not ended.
    pub(crate) fn forget(&mut self, tag: Tag) -> bool {
        drop(self.take(tag));
        let is_to_come = self.close(tag);
        if is_to_come {
            self.forgotten.push(tag);
        }
        is_to_come
    }

    /// Keeps the operation in the epoch until all its forgotten requests have ended. Returns the epoch, to be left at once,
    /// when there are none.
    pub(crate) fn hold_epoch(&mut self, epoch_hold: EpochHold) -> Option<EpochHold> {
        if self.forgotten.is_empty() {
            return Some(epoch_hold);
        }
        self.epoch_holds.push(epoch_hold);
        None
    }

    /// A forgotten request has ended: returns the epochs to leave.
    #[cold]
    pub(crate) fn end_forgotten(&mut self, tag: Tag) -> Vec<EpochHold> {
        self.forgotten.retain(|other| *other != tag);
        if self.forgotten.is_empty() { std::mem::take(&mut self.epoch_holds) } else { Vec::new() }
    }
}

/// The index of a cell.
pub(crate) type CellIndex = u32;

/// The waiter of a cell, to wake when the cell gets its result.
#[derive(Debug)]
pub(crate) enum Waiter {
    /// A waker.
    Waker(Waker),
    /// The caller that awaits a fast-path transfer, with its result.
    Result(ResultSender, OpResult),
    /// Nothing to wake.
    None,
}

/// The target to wake when the cell gets its result, as its future requests.
#[derive(Debug)]
pub(crate) enum WakeTarget {
    /// The task of an operation, without a waker.
    Task(u32),
    /// A waker.
    Waker(Waker),
}

/// The result of a wait.
#[derive(Debug)]
pub(crate) enum WaitResult {
    /// The descriptor wait has ended, or was cancelled.
    Descriptor(Wait, Result<WaitOutput, Errno>),
    /// The timer has fired.
    Timer,
}

/// The state of one wait.
pub(crate) enum WaitCell {
    Free,
    Waiting(Waiter),
    /// An operation waits, by its task: woken without a waker.
    WaitingTask(u32),
    Ready(WaitResult),
    /// A fast-path transfer that a caller awaits. The result goes straight to the sender.
    Transfer(ResultSender),
    /// The future was dropped: the result will be dropped, too.
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

    /// A cell for a wait that begins.
    pub(crate) fn open(&mut self) -> CellIndex {
        self.insert(WaitCell::Waiting(Waiter::None))
    }

    /// A cell for a fast-path transfer that a caller awaits.
    pub(crate) fn open_transfer(&mut self, sender: ResultSender) -> CellIndex {
        self.insert(WaitCell::Transfer(sender))
    }

    /// Frees the cell: the transfer has ended, or was never issued.
    pub(crate) fn close_transfer(&mut self, index: CellIndex) -> ResultSender {
        match self.close(index) {
            WaitCell::Transfer(sender) => sender,
            _ => panic!("the cell does not belong to a transfer"),
        }
    }

    fn close(&mut self, index: CellIndex) -> WaitCell {
        self.free.push(index);
        std::mem::replace(&mut self.cells[index as usize], WaitCell::Free)
    }

    /// The cell of the transfer in flight whose result goes to `receiver`.
    pub(crate) fn find_transfer(&self, receiver: &ResultReceiver) -> Option<CellIndex> {
        let is =
            |cell: &WaitCell| matches!(cell, WaitCell::Transfer(sender) if sender.is_for(receiver));
        self.cells.iter().position(is).map(|index| index as CellIndex)
    }

    fn insert(&mut self, cell: WaitCell) -> CellIndex {
        match self.free.pop() {
            Some(index) => {
                let free = std::mem::replace(&mut self.cells[index as usize], cell);
                debug_assert!(matches!(free, WaitCell::Free));
                // It has nothing to drop, which the compiler does not know.
                std::mem::forget(free);
                index
            }
            None => {
                self.cells.push(cell);
                (self.cells.len() - 1) as CellIndex
            }
        }
    }

    /// Stores the result and returns the waiter to wake. The task of an operation goes to `woken` instead.
    pub(crate) fn complete(
        &mut self,
        index: CellIndex,
        result: WaitResult,
        woken: &mut Vec<u32>,
    ) -> Waiter {
        match std::mem::replace(&mut self.cells[index as usize], WaitCell::Ready(result)) {
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
                panic!("a cell gets one result")
            }
        }
    }

    /// Takes the result and frees the cell; without a result, sets the target to wake. Returns the previous state
    /// in both cases. Drop it when the reactor is no longer borrowed: a user's waker may call back into it.
    pub(crate) fn poll(&mut self, index: CellIndex, target: WakeTarget) -> WaitCell {
        let cell = &mut self.cells[index as usize];
        match cell {
            WaitCell::Ready(_) => self.close(index),
            WaitCell::Waiting(_) | WaitCell::WaitingTask(_) => {
                let next = match target {
                    WakeTarget::Task(task) => WaitCell::WaitingTask(task),
                    WakeTarget::Waker(waker) => WaitCell::Waiting(Waiter::Waker(waker)),
                };
                std::mem::replace(cell, next)
            }
            WaitCell::Free | WaitCell::Forgotten | WaitCell::Transfer(_) => {
                panic!("only its future polls a cell")
            }
        }
    }

    /// Takes the senders of all transfers in flight, which never end.
    pub(crate) fn take_transfers(&mut self) -> Vec<ResultSender> {
        let awaited = self.cells.iter_mut().filter(|cell| matches!(cell, WaitCell::Transfer(_)));
        let senders = awaited.map(|cell| match std::mem::replace(cell, WaitCell::Forgotten) {
            WaitCell::Transfer(sender) => sender,
            _ => unreachable!("filtered above"),
        });
        senders.collect()
    }

    /// The future of a cell was dropped. Returns the previous state, to be dropped as in [`Self::poll`]. A wait that has no
    /// result stays until it gets one.
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

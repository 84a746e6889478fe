//! What tasks wait for. An operation's requests are kept with its task. A
//! descriptor and a moment have a cell each, which holds who waits and then the
//! answer.

use std::task::Waker;

use rustix::io::Errno;
use uringfs_device::{DeviceIndex, Request, Tag};
use uringfs_ring::{Wait, Waited};

use crate::tasks::outcome::{Outcome, OutcomeCell, OutcomeSender};

/// Marks a tag as the reactor's own: the rest is a cell's index, or names an
/// operation's request.
pub(crate) const OWN_TAG: u64 = 1 << 63;
/// Marks an operation's request: below it a number, and the operation's place.
const OPERATION_TAG: u64 = 1 << 62;
const NUMBERS: u32 = (1 << 30) - 1;

/// True for a tag that the caller gave.
#[inline(always)]
pub(crate) fn is_token(tag: Tag) -> bool {
    tag.0 & OWN_TAG == 0
}

/// True for the tag of an operation's request.
#[inline(always)]
pub(crate) fn is_operations(tag: Tag) -> bool {
    tag.0 >= OWN_TAG | OPERATION_TAG
}

/// The operation that has issued it.
#[inline(always)]
pub(crate) fn place_of(tag: Tag) -> u32 {
    tag.0 as u32
}

pub(crate) fn tag_of_cell(cell: CellIndex) -> Tag {
    Tag(OWN_TAG | cell as u64)
}

pub(crate) fn cell_of(tag: Tag) -> CellIndex {
    tag.0 as CellIndex
}

/// Where an operation is counted for quiescence.
pub(crate) type CountedIn = (DeviceIndex, u8);

/// The requests of one operation.
#[derive(Default)]
pub(crate) struct Requests {
    awaited: Vec<Tag>,
    /// Nobody waits for these any more, and a queue still has them.
    forgotten: Vec<Tag>,
    /// Of operations that have panicked: counted out with the last of those that are forgotten.
    counted_in: Vec<CountedIn>,
    /// What has ended and is not taken yet, each with its result written in it.
    ended: Vec<Request>,
    /// Of the last one; it goes on when another operation comes to the place,
    /// so that what comes late for the one before is not taken for its own.
    number: u32,
}

impl Requests {
    /// The tag of a new request of the operation at `place`.
    #[inline(always)]
    pub(crate) fn open(&mut self, place: u32) -> Tag {
        self.number = self.number.wrapping_add(1) & NUMBERS;
        let tag = Tag(OWN_TAG | OPERATION_TAG | (self.number as u64) << 32 | place as u64);
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
    pub(crate) fn answer(&mut self, request: Request) -> bool {
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

    /// Nobody waits for this one any more. True when it is still to come.
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
    pub(crate) fn keep(&mut self, counted_in: CountedIn) -> Option<CountedIn> {
        if self.forgotten.is_empty() {
            return Some(counted_in);
        }
        self.counted_in.push(counted_in);
        None
    }

    /// One that was forgotten has ended: what is to be counted out by it.
    #[cold]
    pub(crate) fn end_forgotten(&mut self, tag: Tag) -> Vec<CountedIn> {
        self.forgotten.retain(|other| *other != tag);
        if self.forgotten.is_empty() { std::mem::take(&mut self.counted_in) } else { Vec::new() }
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
    Outcome(OutcomeSender, Outcome),
    /// Nobody yet.
    Nobody,
}

/// What a cell was waiting for.
#[derive(Debug)]
pub(crate) enum Answer {
    /// The descriptor is ready, or the wait was cancelled.
    Wait(Wait, Result<Waited, Errno>),
    /// The moment has come.
    Time,
}

/// Somebody waits for one thing.
pub(crate) enum Cell {
    Free,
    Waiting(Waiter),
    /// One of the reactor's operations waits, by its task: told without a waker.
    WaitingTask(u32),
    Answered(Answer),
    /// A simple transfer that somebody awaits: the answer goes straight to him.
    Awaited(OutcomeSender),
    /// The future is gone; the answer will be destroyed.
    Forgotten,
}

/// The cells of one reactor.
pub(crate) struct Cells {
    cells: Vec<Cell>,
    free: Vec<CellIndex>,
}

impl Cells {
    pub(crate) fn new() -> Cells {
        Cells { cells: Vec::new(), free: Vec::new() }
    }

    /// A cell that somebody is going to wait on.
    pub(crate) fn open(&mut self) -> CellIndex {
        self.insert(Cell::Waiting(Waiter::Nobody))
    }

    /// A cell that knows whom a simple transfer's end goes to.
    pub(crate) fn open_awaited(&mut self, outcome: OutcomeSender) -> CellIndex {
        self.insert(Cell::Awaited(outcome))
    }

    /// Closes it: the read has ended, or was never issued.
    pub(crate) fn close_awaited(&mut self, index: CellIndex) -> OutcomeSender {
        match self.close(index) {
            Cell::Awaited(outcome) => outcome,
            _ => panic!("it was opened to be awaited"),
        }
    }

    fn close(&mut self, index: CellIndex) -> Cell {
        self.free.push(index);
        std::mem::replace(&mut self.cells[index as usize], Cell::Free)
    }

    /// The cell whose answer goes to `outcome`, while it is in flight.
    pub(crate) fn of_outcome(&self, outcome: &OutcomeCell) -> Option<CellIndex> {
        let is = |cell: &Cell| matches!(cell, Cell::Awaited(sender) if sender.answers(outcome));
        self.cells.iter().position(is).map(|place| place as CellIndex)
    }

    fn insert(&mut self, cell: Cell) -> CellIndex {
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
    pub(crate) fn answer(
        &mut self,
        index: CellIndex,
        answer: Answer,
        woken: &mut Vec<u32>,
    ) -> Waiter {
        match std::mem::replace(&mut self.cells[index as usize], Cell::Answered(answer)) {
            Cell::Waiting(waiter) => waiter,
            Cell::WaitingTask(task) => {
                woken.push(task);
                Waiter::Nobody
            }
            Cell::Forgotten => {
                self.close(index);
                Waiter::Nobody
            }
            Cell::Free | Cell::Answered(_) | Cell::Awaited(_) => {
                panic!("a cell is answered once")
            }
        }
    }

    /// Takes the answer and frees the cell; else the task is to be told, or the waker. The cell as it was comes back
    /// in either case, to be dropped when the reactor is borrowed no more: a user's waker may call back into it.
    pub(crate) fn poll(&mut self, index: CellIndex, told: Result<u32, Waker>) -> Cell {
        let cell = &mut self.cells[index as usize];
        match cell {
            Cell::Answered(_) => self.close(index),
            Cell::Waiting(_) | Cell::WaitingTask(_) => {
                let next = match told {
                    Ok(task) => Cell::WaitingTask(task),
                    Err(waker) => Cell::Waiting(Waiter::Waker(waker)),
                };
                std::mem::replace(cell, next)
            }
            Cell::Free | Cell::Forgotten | Cell::Awaited(_) => {
                panic!("a cell is polled by its future only")
            }
        }
    }

    /// Takes those who answer simple transfers that never end.
    pub(crate) fn take_awaited(&mut self) -> Vec<OutcomeSender> {
        let awaited = self.cells.iter_mut().filter(|cell| matches!(cell, Cell::Awaited(_)));
        let senders = awaited.map(|cell| match std::mem::replace(cell, Cell::Forgotten) {
            Cell::Awaited(sender) => sender,
            _ => unreachable!("it was just matched"),
        });
        senders.collect()
    }

    /// The future of a cell is gone. The cell as it was comes back, to be dropped as in [`Self::poll`]: one that was
    /// waiting is still to be answered.
    pub(crate) fn forget(&mut self, index: CellIndex) -> Cell {
        let cell = &mut self.cells[index as usize];
        match cell {
            Cell::Waiting(_) | Cell::WaitingTask(_) => std::mem::replace(cell, Cell::Forgotten),
            _ => self.close(index),
        }
    }
}

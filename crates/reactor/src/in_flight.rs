//! What tasks wait for: a request's end, a descriptor, a moment. Each has a
//! cell that holds who waits and then the answer.

use std::task::Waker;

use rustix::io::Errno;
use uringfs_device::Request;
use uringfs_ring::{Wait, Waited};

use crate::completed::Fate;
use crate::handle::{Outcome, OutcomeCell};

/// Names a cell.
pub(crate) type CellIndex = u32;

/// Who is told when a cell is answered.
#[derive(Debug)]
pub(crate) enum Waiter {
    /// Whoever is behind a waker.
    Waker(Waker),
    /// Whoever awaits a simple read, and its outcome.
    Outcome(OutcomeCell, Outcome),
    /// Nobody yet.
    Nobody,
}

/// What a cell was waiting for.
#[derive(Debug)]
pub(crate) enum Answer {
    /// The request has ended: bytes done, or the error.
    Request(Request, Result<u64, Errno>),
    /// The descriptor is ready, or the wait was cancelled.
    Wait(Wait, Result<Waited, Errno>),
    /// The moment has come.
    Time,
}

enum Cell {
    Free,
    Waiting {
        waiter: Waiter,
        operation: Option<u32>,
    },
    /// One of the reactor's operations waits, by its task: told without a waker.
    WaitingTask {
        task: u32,
        operation: u32,
    },
    Answered(Answer),
    /// A simple read that somebody awaits: the answer goes straight to him.
    Awaited(OutcomeCell),
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

    /// A cell that `operation`, if any, waits on.
    pub(crate) fn open(&mut self, operation: Option<u32>) -> CellIndex {
        self.insert(Cell::Waiting { waiter: Waiter::Nobody, operation })
    }

    /// A cell whose answer goes straight to `outcome`.
    pub(crate) fn open_awaited(&mut self, outcome: OutcomeCell) -> CellIndex {
        self.insert(Cell::Awaited(outcome))
    }

    /// Closes a cell that was never issued.
    pub(crate) fn close(&mut self, index: CellIndex) {
        self.cells[index as usize] = Cell::Free;
        self.free.push(index);
    }

    pub(crate) fn is_outcome(&self, index: CellIndex) -> bool {
        matches!(self.cells[index as usize], Cell::Awaited(_))
    }

    /// The cell whose answer goes to `outcome`, while it is in flight.
    pub(crate) fn of_outcome(&self, outcome: &OutcomeCell) -> Option<CellIndex> {
        let is = |cell: &Cell| matches!(cell, Cell::Awaited(other) if other.is(outcome));
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
        let cell = &mut self.cells[index as usize];
        if let Cell::WaitingTask { task, .. } = *cell {
            *cell = Cell::Answered(answer);
            woken.push(task);
            return Waiter::Nobody;
        }
        match std::mem::replace(cell, Cell::Answered(answer)) {
            Cell::Waiting { waiter, .. } => waiter,
            Cell::Forgotten => {
                self.close(index);
                Waiter::Nobody
            }
            Cell::Awaited(outcome_cell) => {
                let answer = std::mem::replace(cell, Cell::Free);
                self.free.push(index);
                let Cell::Answered(Answer::Request(request, result)) = answer else {
                    unreachable!("only requests are awaited so")
                };
                let fate = if result.is_ok() { Fate::Done } else { Fate::Unknown };
                let outcome = Outcome { result, fate, payload: request.payload };
                Waiter::Outcome(outcome_cell, outcome)
            }
            Cell::Free | Cell::Answered(_) | Cell::WaitingTask { .. } => {
                panic!("a cell is answered once")
            }
        }
    }

    /// Takes the answer and frees the cell; else a task is to be told, or `waiter`.
    #[inline]
    pub(crate) fn poll(
        &mut self,
        index: CellIndex,
        task: Option<u32>,
        waiter: impl FnOnce() -> Waiter,
    ) -> Option<Answer> {
        let cell = &mut self.cells[index as usize];
        match cell {
            Cell::Answered(_) => {
                let Cell::Answered(answer) = std::mem::replace(cell, Cell::Free) else {
                    unreachable!("it was just matched")
                };
                self.free.push(index);
                Some(answer)
            }
            Cell::Waiting { waiter: place, operation } => {
                match (task, *operation) {
                    (Some(task), Some(operation)) => {
                        *cell = Cell::WaitingTask { task, operation };
                    }
                    _ => *place = waiter(),
                }
                None
            }
            Cell::WaitingTask { .. } => None,
            Cell::Free | Cell::Forgotten | Cell::Awaited(_) => {
                panic!("a cell is polled by its future only")
            }
        }
    }

    /// The future of a cell is gone. True when its answer is still to come.
    pub(crate) fn forget(&mut self, index: CellIndex) -> bool {
        let cell = &mut self.cells[index as usize];
        if matches!(cell, Cell::Waiting { .. } | Cell::WaitingTask { .. }) {
            *cell = Cell::Forgotten;
            return true;
        }
        *cell = Cell::Free;
        self.free.push(index);
        false
    }

    /// The cells that `operation` waits on.
    pub(crate) fn of_operation(&self, operation: u32) -> Vec<CellIndex> {
        let waits = |cell: &Cell| match cell {
            Cell::Waiting { operation: Some(other), .. } => *other == operation,
            Cell::WaitingTask { operation: other, .. } => *other == operation,
            _ => false,
        };
        (0..self.cells.len() as CellIndex)
            .filter(|index| waits(&self.cells[*index as usize]))
            .collect()
    }
}

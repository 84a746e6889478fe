//! Transfers of batches that have ended and that their batch has not found itself: those that needed more than one
//! step or a task, and those that a round of the loop has found.

use uringfs_device::Request;

use crate::tasks::waiters::{MAX_BATCHES, batch_from_tag};

/// The batches of one reactor.
#[derive(Default)]
pub(crate) struct Batches {
    /// The number of the next batch. Not reused soon, so that a late completion of a batch that was dropped is not
    /// taken for one of another batch.
    next: u32,
    /// By number, those that exist. There are few.
    ended: Vec<(u32, Vec<Request>)>,
    /// The requests in all of these lists.
    count: usize,
}

impl Batches {
    /// A number for a new batch.
    pub(crate) fn open(&mut self) -> u32 {
        let number = self.next;
        self.next = (number + 1) % MAX_BATCHES;
        self.ended.push((number, Vec::new()));
        number
    }

    /// Forgets a batch. Returns what has ended, to be dropped when the reactor is no longer borrowed.
    pub(crate) fn close(&mut self, number: u32) -> Vec<Request> {
        let position = self.ended.iter().position(|(other, _)| *other == number);
        let ended = position.map_or_else(Vec::new, |position| self.ended.swap_remove(position).1);
        self.count -= ended.len();
        ended
    }

    /// Keeps a transfer that has ended until its batch takes it. Returns it when the batch was dropped.
    pub(crate) fn end(&mut self, request: Request) -> Option<Request> {
        let number = batch_from_tag(request.tag);
        match self.ended.iter_mut().find(|(other, _)| *other == number) {
            Some((_, ended)) => {
                ended.push(request);
                self.count += 1;
                None
            }
            None => Some(request),
        }
    }

    /// True if there is nothing to take, for any batch.
    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The transfers of one batch that have ended.
    pub(crate) fn take(&mut self, number: u32) -> Vec<Request> {
        let ended = self.ended.iter_mut().find(|(other, _)| *other == number);
        let ended = ended.map(|(_, ended)| std::mem::take(ended)).unwrap_or_default();
        self.count -= ended.len();
        ended
    }
}

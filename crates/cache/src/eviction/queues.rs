//! Two queues of frames in one table of links. A frame is in at most one of them, and can be removed from any position
//! in constant time. A link takes eight bytes: frame numbers have 30 bits, and the two bits above hold the queue.

/// Bound for frames: at 4 KiB each almost 4 TiB.
pub(super) const MAX_FRAMES: u32 = NO_FRAME;

/// The link at either end of a queue.
const NO_FRAME: u32 = (1 << QUEUE_SHIFT) - 1;
const QUEUE_SHIFT: u32 = 30;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Queue {
    /// New folios. Most are evicted from here.
    Small,
    /// Folios that were used again.
    Main,
}

#[derive(Debug)]
pub(super) struct Queues {
    links: Vec<Link>,
    small: QueueEnds,
    main: QueueEnds,
}

/// A frame's neighbours. Both words change together, so they share a cache line.
#[derive(Clone, Copy, Debug)]
struct Link {
    older: u32,
    /// The newer neighbour. The bits above are 0 for a frame in no queue, 1 for small, 2 for main.
    newer_and_queue: u32,
}

#[derive(Debug)]
struct QueueEnds {
    oldest: u32,
    newest: u32,
    len: u32,
}

impl Queues {
    pub(super) fn new() -> Queues {
        Queues { links: Vec::new(), small: QueueEnds::EMPTY, main: QueueEnds::EMPTY }
    }

    /// Makes room for frame numbers below `frames`.
    pub(super) fn grow(&mut self, frames: u32) {
        assert!(frames <= MAX_FRAMES, "links name at most {MAX_FRAMES} frames, not {frames}");
        assert!(frames as usize >= self.links.len(), "the queues only grow");
        self.links.resize(frames as usize, Link::UNLINKED);
    }

    pub(super) fn len(&self, queue: Queue) -> u32 {
        match queue {
            Queue::Small => self.small.len,
            Queue::Main => self.main.len,
        }
    }

    /// The frame that has been in this queue for longest.
    pub(super) fn oldest(&self, queue: Queue) -> Option<u32> {
        let oldest = match queue {
            Queue::Small => self.small.oldest,
            Queue::Main => self.main.oldest,
        };
        (oldest != NO_FRAME).then_some(oldest)
    }

    /// Adds a frame, which is in no queue, as the newest of this one.
    pub(super) fn push(&mut self, frame: u32, queue: Queue) {
        assert!(self.links[frame as usize].queue().is_none(), "frame {frame} is in a queue");
        let ends = self.ends(queue);
        let newest = std::mem::replace(&mut ends.newest, frame);
        ends.len += 1;
        match newest {
            NO_FRAME => ends.oldest = frame,
            _ => self.links[newest as usize].set_newer(frame),
        }
        self.links[frame as usize] = Link::new(newest, queue);
    }

    /// Removes a frame from its queue.
    pub(super) fn unlink(&mut self, frame: u32) {
        let link = std::mem::replace(&mut self.links[frame as usize], Link::UNLINKED);
        let queue = link.queue().unwrap_or_else(|| panic!("frame {frame} is in no queue"));
        let (older, newer) = (link.older, link.newer());
        match older {
            NO_FRAME => self.ends(queue).oldest = newer,
            _ => self.links[older as usize].set_newer(newer),
        }
        match newer {
            NO_FRAME => self.ends(queue).newest = older,
            _ => self.links[newer as usize].older = older,
        }
        self.ends(queue).len -= 1;
    }

    fn ends(&mut self, queue: Queue) -> &mut QueueEnds {
        match queue {
            Queue::Small => &mut self.small,
            Queue::Main => &mut self.main,
        }
    }
}

impl Link {
    const UNLINKED: Link = Link { older: NO_FRAME, newer_and_queue: NO_FRAME };

    /// The link of a queue's newest frame.
    fn new(older: u32, queue: Queue) -> Link {
        let tag = match queue {
            Queue::Small => 1,
            Queue::Main => 2,
        };
        Link { older, newer_and_queue: tag << QUEUE_SHIFT | NO_FRAME }
    }

    fn queue(self) -> Option<Queue> {
        match self.newer_and_queue >> QUEUE_SHIFT {
            0 => None,
            1 => Some(Queue::Small),
            _ => Some(Queue::Main),
        }
    }

    fn newer(self) -> u32 {
        self.newer_and_queue & NO_FRAME
    }

    fn set_newer(&mut self, newer: u32) {
        self.newer_and_queue = self.newer_and_queue & !NO_FRAME | newer;
    }
}

impl QueueEnds {
    const EMPTY: QueueEnds = QueueEnds { oldest: NO_FRAME, newest: NO_FRAME, len: 0 };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queues(small: &[u32], main: &[u32]) -> Queues {
        let mut queues = Queues::new();
        queues.grow(8);
        small.iter().for_each(|frame| queues.push(*frame, Queue::Small));
        main.iter().for_each(|frame| queues.push(*frame, Queue::Main));
        queues
    }

    /// Empties a queue, oldest first.
    fn drain(queues: &mut Queues, queue: Queue) -> Vec<u32> {
        let take = || {
            let oldest = queues.oldest(queue)?;
            queues.unlink(oldest);
            Some(oldest)
        };
        let drained = std::iter::from_fn(take).collect();
        assert_eq!(queues.len(queue), 0);
        drained
    }

    #[test]
    fn a_link_is_eight_bytes() {
        assert_eq!(size_of::<Link>(), 8);
    }

    #[test]
    fn each_queue_is_first_in_first_out() {
        let mut queues = queues(&[3, 1, 7], &[0, 6]);
        assert_eq!((queues.len(Queue::Small), queues.len(Queue::Main)), (3, 2));
        assert_eq!(drain(&mut queues, Queue::Small), [3, 1, 7]);
        assert_eq!(drain(&mut queues, Queue::Main), [0, 6]);
    }

    #[test]
    fn a_frame_can_be_unlinked_at_any_position() {
        for (taken, left) in [(3, [1, 7, 2]), (1, [3, 7, 2]), (7, [3, 1, 2]), (2, [3, 1, 7])] {
            let mut queues = queues(&[5], &[3, 1, 7, 2]);
            queues.unlink(taken);
            queues.unlink(5);
            assert_eq!(queues.oldest(Queue::Small), None);
            queues.push(taken, Queue::Small);
            queues.push(5, Queue::Main);
            assert_eq!(drain(&mut queues, Queue::Small), [taken]);
            assert_eq!(drain(&mut queues, Queue::Main), [&left[..], &[5]].concat());
        }
    }

    #[test]
    fn growing_keeps_the_order() {
        let mut queues = queues(&[3, 1], &[0]);
        queues.grow(5000);
        queues.push(4999, Queue::Small);
        assert_eq!(drain(&mut queues, Queue::Small), [3, 1, 4999]);
    }

    #[test]
    #[should_panic(expected = "frame 3 is in a queue")]
    fn a_frame_in_a_queue_cannot_be_pushed() {
        queues(&[3], &[]).push(3, Queue::Main);
    }

    #[test]
    #[should_panic(expected = "frame 3 is in no queue")]
    fn a_frame_in_no_queue_cannot_be_unlinked() {
        let mut queues = queues(&[3], &[]);
        queues.unlink(3);
        queues.unlink(3);
    }
}

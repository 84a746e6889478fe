//! The tasks of one reactor: operations, which always run to their end, and
//! futures that the user has spawned.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Wake, Waker};

use crate::letters::{Letter, Letterbox};

/// A future that stays on its thread.
pub(crate) type LocalFuture = Pin<Box<dyn Future<Output = ()>>>;

/// Who owns a task's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TaskKind {
    /// Runs to its end even when the reactor is dropped.
    Operation,
    /// Destroyed with the reactor.
    Spawned,
}

/// The task that [`crate::Reactor::block_on`] runs.
pub(crate) const ROOT: u32 = u32::MAX;
/// Outside any task.
pub(crate) const NO_TASK: u32 = u32::MAX - 1;

struct Task {
    /// Absent while it is polled, and when the place is free.
    future: Option<LocalFuture>,
    kind: TaskKind,
    alive: bool,
    queued: bool,
    /// Made once a place and used by every task that comes to it: a late wake
    /// polls the wrong task once, which is harmless.
    waker: Option<Waker>,
}

/// The tasks of one reactor.
pub(crate) struct Tasks {
    tasks: Vec<Task>,
    free: Vec<u32>,
    ready: VecDeque<u32>,
    operations: usize,
    letterbox: Arc<Letterbox>,
}

struct TaskWaker {
    task: u32,
    letterbox: Arc<Letterbox>,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // A reactor that is gone has no tasks to wake.
        let _ = self.letterbox.post(Letter::Wake(self.task));
    }
}

/// A waker that writes the reactor to poll `task`.
pub(crate) fn waker_of(task: u32, letterbox: &Arc<Letterbox>) -> Waker {
    Waker::from(Arc::new(TaskWaker { task, letterbox: letterbox.clone() }))
}

impl Tasks {
    pub(crate) fn new(letterbox: Arc<Letterbox>) -> Tasks {
        Tasks {
            tasks: Vec::new(),
            free: Vec::new(),
            ready: VecDeque::new(),
            operations: 0,
            letterbox,
        }
    }

    /// Adds a task, ready to be polled.
    pub(crate) fn add(&mut self, kind: TaskKind, future: LocalFuture) -> u32 {
        let place = self.free.pop().unwrap_or_else(|| {
            self.tasks.push(Task { future: None, kind, alive: false, queued: false, waker: None });
            (self.tasks.len() - 1) as u32
        });
        let task = &mut self.tasks[place as usize];
        task.future = Some(future);
        task.kind = kind;
        task.alive = true;
        self.operations += (kind == TaskKind::Operation) as usize;
        self.make_ready(place);
        place
    }

    /// Puts a task in the queue of those to poll, unless it is there.
    pub(crate) fn make_ready(&mut self, place: u32) {
        if let Some(task) = self.tasks.get_mut(place as usize)
            && task.alive
            && !task.queued
        {
            task.queued = true;
            self.ready.push_back(place);
        }
    }

    /// The next task to poll, its future and its waker. [`Self::put_back`] or
    /// [`Self::finish`] must follow.
    pub(crate) fn take_ready(&mut self) -> Option<(u32, LocalFuture, Waker)> {
        let place = self.ready.pop_front()?;
        let task = &mut self.tasks[place as usize];
        task.queued = false;
        let waker = task.waker.take().unwrap_or_else(|| waker_of(place, &self.letterbox));
        let future = task.future.take().expect("a ready task is not being polled");
        Some((place, future, waker))
    }

    pub(crate) fn put_back(&mut self, place: u32, future: LocalFuture, waker: Waker) {
        let task = &mut self.tasks[place as usize];
        task.future = Some(future);
        task.waker = Some(waker);
    }

    /// The task has ended; its place, with its waker, is free for the next.
    pub(crate) fn finish(&mut self, place: u32, waker: Waker) {
        self.tasks[place as usize].waker = Some(waker);
        self.free_place(place);
    }

    fn free_place(&mut self, place: u32) {
        let task = &mut self.tasks[place as usize];
        task.alive = false;
        self.operations -= (task.kind == TaskKind::Operation) as usize;
        if task.queued {
            self.ready.retain(|other| *other != place);
            self.tasks[place as usize].queued = false;
        }
        self.free.push(place);
    }

    pub(crate) fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Tasks ready now.
    pub(crate) fn ready(&self) -> usize {
        self.ready.len()
    }

    /// Operations that have not ended.
    pub(crate) fn operations(&self) -> usize {
        self.operations
    }

    /// Takes out every future the user has spawned, to be dropped.
    pub(crate) fn take_spawned(&mut self) -> Vec<LocalFuture> {
        let mut futures = Vec::new();
        for place in 0..self.tasks.len() {
            let task = &mut self.tasks[place];
            if task.alive && task.kind == TaskKind::Spawned && task.future.is_some() {
                futures.extend(task.future.take());
                self.free_place(place as u32);
            }
        }
        futures
    }
}

//! The tasks of one reactor: operations, which always run to their end, and
//! futures that the user has spawned.

use std::any::{Any, TypeId};
use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use crate::letters::{Letter, Letterbox};

/// A future that stays on its thread, in a box that the next of its type uses again.
pub(crate) type LocalFuture = Pin<Box<dyn Reusable>>;

/// A box with a future in it, or empty.
pub(crate) trait Reusable {
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()>;
    /// Destroys the future and keeps the box.
    fn empty(self: Pin<Box<Self>>, boxes: &mut Boxes);
}

impl<F: Future<Output = ()> + 'static> Reusable for Option<F> {
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        self.as_pin_mut().expect("a task's box is full until it has ended").poll(context)
    }

    fn empty(mut self: Pin<Box<Self>>, boxes: &mut Boxes) {
        self.as_mut().set(None);
        let pool = boxes.of::<F>();
        if pool.len() < MAX_BOXES {
            pool.push(self);
        }
    }
}

/// Empty boxes of each type kept for the next future.
const MAX_BOXES: usize = 1024;

/// Empty boxes by the type of future: an operation then allocates nothing.
#[derive(Default)]
pub(crate) struct Boxes {
    pools: Vec<(TypeId, Box<dyn Any>)>,
}

type Pool<F> = Vec<Pin<Box<Option<F>>>>;

impl Boxes {
    fn of<F: 'static>(&mut self) -> &mut Pool<F> {
        let id = TypeId::of::<F>();
        let place = self.pools.iter().position(|(other, _)| *other == id).unwrap_or_else(|| {
            self.pools.push((id, Box::new(Pool::<F>::new())));
            self.pools.len() - 1
        });
        self.pools[place].1.downcast_mut().expect("listed by its own type")
    }

    fn fill<F: Future<Output = ()> + 'static>(&mut self, future: F) -> LocalFuture {
        match self.of::<F>().pop() {
            Some(mut empty) => {
                empty.as_mut().set(Some(future));
                empty
            }
            None => Box::pin(Some(future)),
        }
    }
}

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

/// A task that is being polled.
pub(crate) struct Taken {
    pub(crate) place: u32,
    pub(crate) future: LocalFuture,
    pub(crate) waker: Waker,
}

/// The tasks of one reactor.
pub(crate) struct Tasks {
    tasks: Vec<Task>,
    free: Vec<u32>,
    ready: VecDeque<u32>,
    operations: usize,
    boxes: Boxes,
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
            boxes: Boxes::default(),
            letterbox,
        }
    }

    /// Adds a task, to be polled at once: [`Self::put_back`] or [`Self::finish`]
    /// must follow.
    pub(crate) fn add<F: Future<Output = ()> + 'static>(
        &mut self,
        kind: TaskKind,
        future: F,
    ) -> Taken {
        let place = self.free.pop().unwrap_or_else(|| {
            self.tasks.push(Task { future: None, kind, alive: false, queued: false, waker: None });
            (self.tasks.len() - 1) as u32
        });
        let future = self.boxes.fill(future);
        let task = &mut self.tasks[place as usize];
        task.kind = kind;
        task.alive = true;
        self.operations += (kind == TaskKind::Operation) as usize;
        let waker = task.waker.take().unwrap_or_else(|| waker_of(place, &self.letterbox));
        Taken { place, future, waker }
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
    pub(crate) fn take_ready(&mut self) -> Option<Taken> {
        let place = self.ready.pop_front()?;
        let task = &mut self.tasks[place as usize];
        task.queued = false;
        let waker = task.waker.take().unwrap_or_else(|| waker_of(place, &self.letterbox));
        let future = task.future.take().expect("a ready task is not being polled");
        Some(Taken { place, future, waker })
    }

    pub(crate) fn put_back(&mut self, taken: Taken) {
        let task = &mut self.tasks[taken.place as usize];
        task.future = Some(taken.future);
        task.waker = Some(taken.waker);
    }

    /// The task has ended; its place, its waker and its box are free for the next.
    pub(crate) fn finish(&mut self, taken: Taken) {
        self.tasks[taken.place as usize].waker = Some(taken.waker);
        self.free_place(taken.place);
        taken.future.empty(&mut self.boxes);
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

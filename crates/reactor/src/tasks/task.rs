//! The tasks of one reactor: operations, which always run to their end, and futures that the user spawned.

use std::any::{Any, TypeId};
use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};

use uringfs_device::{Errno, Request, Tag};

use crate::tasks::operation_state::{OperationState, Requester};
use crate::tasks::waiters::{EpochHold, OperationRequests, task_from_tag};

/// The memory of a future. The next task with a future of this type reuses it, so a task allocates nothing.
pub(crate) struct TaskSlot<F> {
    /// A late wake polls the next task in this slot, which is harmless.
    waker: Waker,
    future: Pin<Box<Option<F>>>,
}

/// A slot with its future's type erased.
pub(crate) trait AnyTaskSlot: Any {
    /// Polls the future, and drops it when it has ended.
    fn poll(&mut self) -> Poll<()>;
}

impl<F> TaskSlot<F> {
    #[cold]
    #[inline(never)]
    fn empty(waker: Waker) -> Box<TaskSlot<F>> {
        Box::new(TaskSlot { waker, future: Box::pin(None) })
    }
}

impl<F: Future<Output = ()> + 'static> AnyTaskSlot for TaskSlot<F> {
    fn poll(&mut self) -> Poll<()> {
        let future = self.future.as_mut().as_pin_mut();
        let future = future.expect("a slot has a future until its task has ended");
        ready!(future.poll(&mut Context::from_waker(&self.waker)));
        self.future.set(None);
        Poll::Ready(())
    }
}

/// Free tasks whose futures had one type.
struct SlotPool {
    type_id: TypeId,
    free: Vec<u32>,
}

/// The index of the future that [`crate::Reactor::block_on`] runs. Not in the table.
pub(crate) const ROOT: u32 = u32::MAX;

struct Task {
    /// Absent while the task is polled. Without a future when the task is free.
    slot: Option<Box<dyn AnyTaskSlot>>,
    /// The pool that the task returns to when it is free.
    pool: u32,
    alive: bool,
    queued: bool,
    /// Present for an operation, which runs to its end even when the reactor is dropped. A spawned future is dropped then.
    operation: Option<OperationState>,
    requests: OperationRequests,
}

/// A task that is being polled.
pub(crate) struct RunningTask<H: ?Sized = dyn AnyTaskSlot> {
    pub(crate) index: u32,
    pub(crate) slot: Box<H>,
}

impl<F: Future<Output = ()> + 'static> RunningTask<TaskSlot<F>> {
    /// Fills the slot, ready to be polled.
    #[inline(always)]
    pub(crate) fn with_future(mut self, future: F) -> RunningTask {
        self.slot.future.set(Some(future));
        RunningTask { index: self.index, slot: self.slot }
    }
}

/// The destination of a request that has ended.
pub(crate) enum Delivery {
    /// Its operation waits for it: poll this task.
    ToTask(RunningTask),
    /// Its operation is being polled, and finds it there.
    Stored,
    /// Its operation no longer waits for it. With the last request of operations that have panicked come the epochs to
    /// leave.
    Late(Vec<EpochHold>),
}

/// The tasks of one reactor.
pub(crate) struct Tasks {
    tasks: Vec<Task>,
    pools: Vec<SlotPool>,
    ready: VecDeque<u32>,
    /// Ready futures that the user spawned, while the thread blocks and runs only operations: see
    /// [`Self::hold_spawned`].
    held: Option<Vec<u32>>,
    operations: usize,
    /// Those of them that have a token.
    with_tokens: usize,
    /// Makes the waker of a task. Only a new task needs it.
    make_waker: Box<dyn Fn(u32) -> Waker>,
}

impl Tasks {
    pub(crate) fn new(make_waker: Box<dyn Fn(u32) -> Waker>) -> Tasks {
        Tasks {
            tasks: Vec::new(),
            pools: Vec::new(),
            ready: VecDeque::new(),
            held: None,
            operations: 0,
            with_tokens: 0,
            make_waker,
        }
    }

    /// Allocates a task with an empty slot. The caller fills the slot and polls it at once: [`Self::put_back`] or
    /// [`Self::finish`] must follow.
    #[inline(always)]
    pub(crate) fn allocate<F: Future<Output = ()> + 'static>(
        &mut self,
        operation: Option<OperationState>,
    ) -> RunningTask<TaskSlot<F>> {
        self.operations += operation.is_some() as usize;
        self.with_tokens += operation.as_ref().is_some_and(OperationState::has_token) as usize;
        let type_id = TypeId::of::<F>();
        let pool = self.pools.iter_mut().find(|pool| pool.type_id == type_id);
        let Some(index) = pool.and_then(|pool| pool.free.pop()) else {
            return self.allocate_new(type_id, operation);
        };
        let task = &mut self.tasks[index as usize];
        task.alive = true;
        task.operation = operation;
        let slot = task.slot.take().map(|slot| slot as Box<dyn Any>);
        let slot = slot.map(|slot| slot.downcast().expect("the pool has one type of future"));
        let new = || TaskSlot::empty((self.make_waker)(index));
        RunningTask { index, slot: slot.unwrap_or_else(new) }
    }

    #[cold]
    #[inline(never)]
    fn allocate_new<F>(
        &mut self,
        type_id: TypeId,
        operation: Option<OperationState>,
    ) -> RunningTask<TaskSlot<F>> {
        let known = self.pools.iter().position(|pool| pool.type_id == type_id);
        let pool = known.unwrap_or_else(|| {
            self.pools.push(SlotPool { type_id, free: Vec::new() });
            self.pools.len() - 1
        }) as u32;
        let index = self.tasks.len() as u32;
        self.tasks.push(Task {
            slot: None,
            pool,
            alive: true,
            queued: false,
            operation,
            requests: OperationRequests::default(),
        });
        RunningTask { index, slot: TaskSlot::empty((self.make_waker)(index)) }
    }

    /// Queues a task to be polled, unless it is queued.
    pub(crate) fn make_ready(&mut self, index: u32) {
        if let Some(task) = self.tasks.get_mut(index as usize)
            && task.alive
            && !task.queued
        {
            task.queued = true;
            match &mut self.held {
                Some(held) if task.operation.is_none() => held.push(index),
                _ => self.ready.push_back(index),
            }
        }
    }

    /// From now on only operations become ready.
    pub(crate) fn hold_spawned(&mut self) {
        let is_operation = |index: &u32| self.tasks[*index as usize].operation.is_some();
        let (operations, spawned): (VecDeque<_>, VecDeque<_>) =
            self.ready.drain(..).partition(is_operation);
        self.ready = operations;
        self.held.get_or_insert_default().extend(spawned);
    }

    /// Futures that the user spawned become ready again.
    pub(crate) fn release_spawned(&mut self) {
        self.ready.extend(self.held.take().into_iter().flatten());
    }

    /// Takes a task out of the queue.
    #[cold]
    fn unqueue(&mut self, index: u32) {
        self.ready.retain(|other| *other != index);
        if let Some(held) = &mut self.held {
            held.retain(|other| *other != index);
        }
    }

    /// The next task to poll. [`Self::put_back`] or [`Self::finish`] must follow.
    pub(crate) fn take_ready(&mut self) -> Option<RunningTask> {
        let index = self.ready.pop_front()?;
        self.tasks[index as usize].queued = false;
        Some(self.take(index).expect("a queued task is not being polled"))
    }

    #[inline(always)]
    fn take(&mut self, index: u32) -> Option<RunningTask> {
        let slot = self.tasks[index as usize].slot.take()?;
        Some(RunningTask { index, slot })
    }

    #[inline(always)]
    pub(crate) fn put_back(&mut self, task: RunningTask) {
        self.tasks[task.index as usize].slot = Some(task.slot);
    }

    /// The task has ended: frees it and its slot.
    #[inline(always)]
    pub(crate) fn finish(&mut self, RunningTask { index, slot }: RunningTask) {
        let task = &mut self.tasks[index as usize];
        task.slot = Some(slot);
        task.alive = false;
        if task.queued {
            task.queued = false;
            self.unqueue(index);
        }
        let pool = self.tasks[index as usize].pool;
        self.pools[pool as usize].free.push(index);
    }

    pub(crate) fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// The number of tasks in the queue.
    pub(crate) fn ready(&self) -> usize {
        self.ready.len()
    }

    /// The number of operations that have not ended.
    #[inline(always)]
    pub(crate) fn operations(&self) -> usize {
        self.operations
    }

    /// The number of operations with a token that have not ended. The depth bounds these.
    #[inline(always)]
    pub(crate) fn with_tokens(&self) -> usize {
        self.with_tokens
    }

    /// Takes the requesters of all operations, to report to them that the operations never end.
    pub(crate) fn take_requesters(&mut self) -> Vec<Requester> {
        let operations = self.tasks.iter_mut().filter_map(|task| task.operation.as_mut());
        operations.map(OperationState::take_requester).collect()
    }

    /// The state of an operation that has not ended.
    #[inline(always)]
    pub(crate) fn operation(&mut self, index: u32) -> &mut OperationState {
        let operation = &mut self.tasks[index as usize].operation;
        operation.as_mut().expect("an operation has a state until it ends")
    }

    /// The operations whose state `matches`.
    pub(crate) fn find_operations(&self, matches: impl Fn(&OperationState) -> bool) -> Vec<u32> {
        let matches =
            |index: &u32| self.tasks[*index as usize].operation.as_ref().is_some_and(&matches);
        (0..self.tasks.len() as u32).filter(matches).collect()
    }

    /// The operation has ended, and its task is about to end.
    #[inline(always)]
    pub(crate) fn end_operation(&mut self, index: u32) -> OperationState {
        let ended = self.tasks[index as usize].operation.take().expect("an operation ends once");
        self.operations -= 1;
        self.with_tokens -= ended.has_token() as usize;
        ended
    }

    /// The requests of an operation.
    #[inline(always)]
    pub(crate) fn requests(&mut self, index: u32) -> &mut OperationRequests {
        &mut self.tasks[index as usize].requests
    }

    /// The tag of a new request of an operation. With it, the reason why a cancelled operation must not issue it.
    #[inline(always)]
    pub(crate) fn open_request(&mut self, index: u32) -> (Tag, Option<Errno>) {
        let task = &mut self.tasks[index as usize];
        let operation = task.operation.as_ref().expect("an operation has a state until it ends");
        (task.requests.open(index), operation.cancelled)
    }

    /// Stores a request that has ended with its operation. When the operation waits for it, returns its task to be polled.
    #[inline(always)]
    pub(crate) fn deliver(&mut self, request: Request) -> Delivery {
        let (index, tag) = (task_from_tag(request.tag), request.tag);
        if !self.requests(index).complete(request) {
            return Delivery::Late(self.requests(index).end_forgotten(tag));
        }
        self.take(index).map_or(Delivery::Stored, Delivery::ToTask)
    }

    /// The task's future has panicked and was dropped: frees the task.
    #[cold]
    pub(crate) fn discard(&mut self, index: u32) {
        let task = &mut self.tasks[index as usize];
        task.alive = false;
        if std::mem::take(&mut task.queued) {
            self.unqueue(index);
        }
        let pool = self.tasks[index as usize].pool;
        self.pools[pool as usize].free.push(index);
    }

    /// Takes all spawned futures, to be dropped. Their tasks are not reused.
    pub(crate) fn take_spawned(&mut self) -> Vec<Box<dyn AnyTaskSlot>> {
        let spawned = |task: &&mut Task| task.alive && task.operation.is_none();
        let slots = self.tasks.iter_mut().filter(spawned).filter_map(|task| {
            let slot = task.slot.take()?;
            (task.alive, task.queued) = (false, false);
            Some(slot)
        });
        let slots = slots.collect();
        self.ready.retain(|index| self.tasks[*index as usize].alive);
        slots
    }
}

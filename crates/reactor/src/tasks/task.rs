//! The tasks of one reactor: operations, which always run to their end, and
//! futures that the user has spawned.

use std::any::{Any, TypeId};
use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};

use rustix::io::Errno;
use uringfs_device::{Request, Tag};

use crate::tasks::operation_state::{Asker, OperationState};
use crate::tasks::waiters::{CountedIn, Requests, place_of};

/// Where a future lives until it has ended, and after it others of its type: a
/// task then allocates nothing.
pub(crate) struct Home<F> {
    /// A late wake polls the next task that lives here, which is harmless.
    waker: Waker,
    future: Pin<Box<Option<F>>>,
}

/// A home whose future's type is forgotten.
pub(crate) trait AnyHome: Any {
    /// Polls the future, and destroys it when it has ended.
    fn poll(&mut self) -> Poll<()>;
}

impl<F> Home<F> {
    #[cold]
    #[inline(never)]
    fn empty(waker: Waker) -> Box<Home<F>> {
        Box::new(Home { waker, future: Box::pin(None) })
    }
}

impl<F: Future<Output = ()> + 'static> AnyHome for Home<F> {
    fn poll(&mut self) -> Poll<()> {
        let future = self.future.as_mut().as_pin_mut();
        let future = future.expect("a task has a future until it has ended");
        ready!(future.poll(&mut Context::from_waker(&self.waker)));
        self.future.set(None);
        Poll::Ready(())
    }
}

/// Free places whose tasks had futures of one type.
struct Pool {
    type_id: TypeId,
    free: Vec<u32>,
}

/// The task that [`crate::Reactor::block_on`] runs.
pub(crate) const ROOT: u32 = u32::MAX;

struct Task {
    /// Absent while it is polled; without a future when the place is free.
    home: Option<Box<dyn AnyHome>>,
    /// Where the place goes when it is free.
    pool: u32,
    alive: bool,
    queued: bool,
    /// What is known of it when it is an operation, which runs to its end even
    /// when the reactor is dropped. What was spawned is destroyed then.
    operation: Option<OperationState>,
    requests: Requests,
}

/// A task that is being polled.
pub(crate) struct Taken<H: ?Sized = dyn AnyHome> {
    pub(crate) place: u32,
    pub(crate) home: Box<H>,
}

impl<F: Future<Output = ()> + 'static> Taken<Home<F>> {
    /// With its future, to be polled.
    #[inline(always)]
    pub(crate) fn filled(mut self, future: F) -> Taken {
        self.home.future.set(Some(future));
        Taken { place: self.place, home: self.home }
    }
}

/// What became of a request that has ended.
pub(crate) enum Delivered {
    /// Its operation waits for it and is to be polled.
    To(Taken),
    /// Nobody waits for it any more. With the last one of operations that have panicked comes what is to be
    /// counted out.
    Late(Vec<CountedIn>),
}

/// The tasks of one reactor.
pub(crate) struct Tasks {
    tasks: Vec<Task>,
    pools: Vec<Pool>,
    ready: VecDeque<u32>,
    operations: usize,
    /// Those among them that somebody asked for.
    asked: usize,
    /// Makes the waker of a task; only a new task needs it.
    waker_of: Box<dyn Fn(u32) -> Waker>,
}

impl Tasks {
    pub(crate) fn new(waker_of: Box<dyn Fn(u32) -> Waker>) -> Tasks {
        Tasks {
            tasks: Vec::new(),
            pools: Vec::new(),
            ready: VecDeque::new(),
            operations: 0,
            asked: 0,
            waker_of,
        }
    }

    /// A place and an empty home for a task, which is to be filled and polled at
    /// once: [`Self::put_back`] or [`Self::finish`] must follow.
    #[inline(always)]
    pub(crate) fn open<F: Future<Output = ()> + 'static>(
        &mut self,
        operation: Option<OperationState>,
    ) -> Taken<Home<F>> {
        self.operations += operation.is_some() as usize;
        self.asked += operation.as_ref().is_some_and(OperationState::is_asked) as usize;
        let type_id = TypeId::of::<F>();
        let pool = self.pools.iter_mut().find(|pool| pool.type_id == type_id);
        let Some(place) = pool.and_then(|pool| pool.free.pop()) else {
            return self.open_new(type_id, operation);
        };
        let task = &mut self.tasks[place as usize];
        task.alive = true;
        task.operation = operation;
        let home = task.home.take().map(|home| home as Box<dyn Any>);
        let home = home.map(|home| home.downcast().expect("the pool is of this type"));
        let new = || Home::empty((self.waker_of)(place));
        Taken { place, home: home.unwrap_or_else(new) }
    }

    #[cold]
    #[inline(never)]
    fn open_new<F>(
        &mut self,
        type_id: TypeId,
        operation: Option<OperationState>,
    ) -> Taken<Home<F>> {
        let known = self.pools.iter().position(|pool| pool.type_id == type_id);
        let pool = known.unwrap_or_else(|| {
            self.pools.push(Pool { type_id, free: Vec::new() });
            self.pools.len() - 1
        }) as u32;
        let place = self.tasks.len() as u32;
        self.tasks.push(Task {
            home: None,
            pool,
            alive: true,
            queued: false,
            operation,
            requests: Requests::default(),
        });
        Taken { place, home: Home::empty((self.waker_of)(place)) }
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

    /// The next task to poll. [`Self::put_back`] or [`Self::finish`] must follow.
    pub(crate) fn take_ready(&mut self) -> Option<Taken> {
        let place = self.ready.pop_front()?;
        self.tasks[place as usize].queued = false;
        Some(self.take(place).expect("a ready task is not being polled"))
    }

    #[inline(always)]
    fn take(&mut self, place: u32) -> Option<Taken> {
        let home = self.tasks[place as usize].home.take()?;
        Some(Taken { place, home })
    }

    #[inline(always)]
    pub(crate) fn put_back(&mut self, taken: Taken) {
        self.tasks[taken.place as usize].home = Some(taken.home);
    }

    /// The task has ended; its place and its home are free for the next.
    #[inline(always)]
    pub(crate) fn finish(&mut self, Taken { place, home }: Taken) {
        let task = &mut self.tasks[place as usize];
        task.home = Some(home);
        task.alive = false;
        if task.queued {
            task.queued = false;
            self.ready.retain(|other| *other != place);
        }
        self.pools[task.pool as usize].free.push(place);
    }

    pub(crate) fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Tasks ready now.
    pub(crate) fn ready(&self) -> usize {
        self.ready.len()
    }

    /// Operations that have not ended.
    #[inline(always)]
    pub(crate) fn operations(&self) -> usize {
        self.operations
    }

    /// Those that somebody asked for, whom the depth bounds.
    #[inline(always)]
    pub(crate) fn asked(&self) -> usize {
        self.asked
    }

    /// Takes those who wait for operations, to be answered that these never end.
    pub(crate) fn take_askers(&mut self) -> Vec<Asker> {
        let operations = self.tasks.iter_mut().filter_map(|task| task.operation.as_mut());
        operations.map(OperationState::take_asker).collect()
    }

    /// What is known of an operation that has not ended.
    #[inline(always)]
    pub(crate) fn operation(&mut self, place: u32) -> &mut OperationState {
        let operation = &mut self.tasks[place as usize].operation;
        operation.as_mut().expect("an operation is known until it ends")
    }

    /// The operations that `matches` is true of.
    pub(crate) fn find_operations(&self, matches: impl Fn(&OperationState) -> bool) -> Vec<u32> {
        let matches =
            |place: &u32| self.tasks[*place as usize].operation.as_ref().is_some_and(&matches);
        (0..self.tasks.len() as u32).filter(matches).collect()
    }

    /// The operation has ended; its task is about to.
    #[inline(always)]
    pub(crate) fn end_operation(&mut self, place: u32) -> OperationState {
        let ended = self.tasks[place as usize].operation.take().expect("an operation ends once");
        self.operations -= 1;
        self.asked -= ended.is_asked() as usize;
        ended
    }

    /// What the operation has asked of devices.
    #[inline(always)]
    pub(crate) fn requests(&mut self, place: u32) -> &mut Requests {
        &mut self.tasks[place as usize].requests
    }

    /// The tag of a new request of an operation, or why it is to issue none.
    #[inline(always)]
    pub(crate) fn open_request(&mut self, place: u32) -> (Tag, Option<Errno>) {
        let task = &mut self.tasks[place as usize];
        let operation = task.operation.as_ref().expect("an operation is known until it ends");
        (task.requests.open(place), operation.stop)
    }

    /// Leaves a request that has ended with its operation, which is to be polled
    /// when it waits for it.
    #[inline(always)]
    pub(crate) fn deliver(&mut self, request: Request) -> Delivered {
        let (place, tag) = (place_of(request.tag), request.tag);
        if !self.requests(place).answer(request) {
            return Delivered::Late(self.requests(place).end_forgotten(tag));
        }
        self.take(place).map_or(Delivered::Late(Vec::new()), Delivered::To)
    }

    /// Its future has panicked and is destroyed: the place is free for the next.
    #[cold]
    pub(crate) fn lose(&mut self, place: u32) {
        let task = &mut self.tasks[place as usize];
        task.alive = false;
        if std::mem::take(&mut task.queued) {
            self.ready.retain(|other| *other != place);
        }
        self.pools[task.pool as usize].free.push(place);
    }

    /// Takes out every future the user has spawned, to be dropped. Their places
    /// are not used again.
    pub(crate) fn take_spawned(&mut self) -> Vec<Box<dyn AnyHome>> {
        let spawned = |task: &&mut Task| task.alive && task.operation.is_none();
        let homes = self.tasks.iter_mut().filter(spawned).filter_map(|task| {
            let home = task.home.take()?;
            (task.alive, task.queued) = (false, false);
            Some(home)
        });
        let homes = homes.collect();
        self.ready.retain(|place| self.tasks[*place as usize].alive);
        homes
    }
}

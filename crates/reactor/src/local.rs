//! [`LocalReactor`]: a reactor for the tasks that it runs.

use std::fmt;
use std::rc::Rc;

use crate::event_loop::core::{Current, ReactorCore};
use crate::tasks::join::{JoinHandle, joinable};

/// A handle to a thread's reactor for the tasks that it runs: clone it into them. A [`Reactor`](crate::Reactor) has its
/// methods, too. Operations that are begun after the reactor was dropped do not end.
///
/// ```
/// use std::os::unix::net::UnixStream;
/// use std::sync::Arc;
/// # mod uringfs { pub use uringfs_buffer::*; pub use uringfs_reactor::*; }
/// use uringfs::{Buffer, Reactor, ReactorOptions};
///
/// let reactor = Reactor::new(ReactorOptions::new())?;
/// let (ours, theirs) = UnixStream::pair()?;
/// let (ours, theirs) = (Arc::new(ours.into()), Arc::new(theirs.into()));
/// let local = reactor.local().clone();
/// let echo = reactor.spawn(async move {
///     let (received, mut buffer) = local.receive(&theirs, Buffer::zeroed(4096), None).await;
///     buffer.truncate(received?);
///     local.send_vectored(&theirs, vec![buffer], None).await.0
/// });
/// reactor.block_on(async {
///     reactor.send(&ours, Buffer::copy_of(b"hello"), None).await.0?;
///     let (received, buffer) = reactor.receive(&ours, Buffer::zeroed(4096), None).await;
///     assert_eq!(&buffer[..received?], b"hello");
///     assert_eq!(echo.await.expect("the task does not panic"), Ok(5));
///     Ok(())
/// })
/// # .map_err(|errno: uringfs_device::Errno| errno.into())
/// # as std::io::Result<()>;
/// # Ok::<_, std::io::Error>(())
/// ```
#[derive(Clone)]
pub struct LocalReactor {
    pub(crate) inner: Rc<ReactorCore>,
}

impl LocalReactor {
    /// Runs a future on this reactor, beside its other work. Await the handle for its output, or drop the handle: the
    /// task continues. The future is dropped with the reactor, finished or not.
    ///
    /// When the future panics, the caller that turns the reactor panics, with the handle or without it. Other tasks
    /// continue with the next turn, and the handle then returns [`JoinError::Panicked`](crate::JoinError::Panicked).
    pub fn spawn<T: 'static>(&self, future: impl Future<Output = T> + 'static) -> JoinHandle<T> {
        let (handle, future) = joinable(future);
        let task = self.inner.tasks.borrow_mut().allocate(None);
        let _current = Current::set(&self.inner);
        let _running = self.inner.enter_user_code();
        self.inner.poll_task(task.with_future(future));
        handle
    }
}

impl fmt::Debug for LocalReactor {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "LocalReactor of {}", self.inner.name)
    }
}

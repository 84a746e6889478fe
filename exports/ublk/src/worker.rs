//! The thread of one queue, with its reactor.

use std::cell::Cell;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread::{self, JoinHandle};

use rustix::event::{EventfdFlags, eventfd};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use uringfs::reactor::{PollEvents, Require};
use uringfs::{Errno, Reactor, ReactorOptions};

use crate::queue::Queue;

/// A thread that serves a queue until its device is stopped.
#[derive(Debug)]
pub(crate) struct Worker {
    thread: JoinHandle<io::Result<()>>,
}

impl Worker {
    /// Starts the thread, which keeps to these processors as far as it may run there, and waits until the kernel has all
    /// entries of the queue. `on_end` is called when the first of
    /// them comes back for good, and whenever the thread ends.
    ///
    /// # Errors
    /// When the reactor cannot be made, or the thread; why the kernel refuses the entries.
    pub(crate) fn start(
        queue: Queue,
        processors: Vec<usize>,
        options: ReactorOptions,
        on_end: impl Fn() + Clone + Send + 'static,
    ) -> io::Result<Worker> {
        let (sender, receiver) = channel();
        let thread = thread::Builder::new()
            .name(format!("uringfs-ublk-{}", queue.number))
            .spawn(move || run(queue, &processors, options, on_end, &sender))?;
        match receiver.recv() {
            Ok(()) => Ok(Worker { thread }),
            // It has ended, with an error.
            Err(_) => Err(match thread.join() {
                Ok(Err(error)) => error,
                _ => io::Error::other("the thread of a queue has ended"),
            }),
        }
    }

    /// Waits for the end of the thread.
    ///
    /// # Errors
    /// Why it ended, if not because its device was stopped.
    pub(crate) fn join(self) -> io::Result<()> {
        self.thread
            .join()
            .unwrap_or_else(|_| Err(io::Error::other("the thread of a queue panicked")))
    }
}

/// Keeps this thread to processors, as far as it may run there. Without any of them, or where that is refused, it stays where
/// it is.
fn keep_to(processors: &[usize]) {
    let Ok(allowed) = sched_getaffinity(None) else { return };
    let mut wanted = CpuSet::new();
    let usable = processors.iter().filter(|it| **it < CpuSet::MAX_CPU && allowed.is_set(**it));
    usable.for_each(|processor| wanted.set(*processor));
    if wanted.count() > 0 {
        let _ = sched_setaffinity(None, &wanted);
    }
}

fn run(
    queue: Queue,
    processors: &[usize],
    options: ReactorOptions,
    on_end: impl Fn() + Clone + Send + 'static,
    ready: &Sender<()>,
) -> io::Result<()> {
    // The kernel may wait for this thread to write back memory: then no allocation of it may wait for write-back. It
    // needs CAP_SYS_RESOURCE.
    let _ = rustix::process::configure_io_flusher_behavior(true);
    let reactor = Reactor::new(options.commands(true).require(Require::Ring))?;
    keep_to(processors);
    // Dropped before the reactor, which waits until the kernel has given all entries back: that takes a stop of the
    // device.
    let _ended = CallOnDrop(on_end.clone());
    let has_ended = Rc::new(Cell::new(false));
    let tasks = queue.serve(&reactor, {
        let has_ended = has_ended.clone();
        move || {
            has_ended.set(true);
            on_end();
        }
    })?;
    reactor.block_on(async {
        // The ring takes its entries in their order: once this one is done, the kernel has the others, or has refused
        // them.
        let event = Arc::new(eventfd(0, EventfdFlags::CLOEXEC)?);
        reactor.poll(&event, PollEvents::OUT, None).await?;
        if !has_ended.get() {
            let _ = ready.send(());
        }
        let mut result = Ok(());
        for task in tasks {
            match task.await.expect("no task panics, and the reactor is there") {
                Errno::NODEV => {}
                errno => result = Err(errno.into()),
            }
        }
        result
    })
}

struct CallOnDrop<F: Fn()>(F);

impl<F: Fn()> Drop for CallOnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use uringfs::File;
    use uringfs::device::Device;
    use uringfs::device::backend::memory::Memory;
    use uringfs::file::FileOptions;
    use uringfs::reactor::RequestCounters;

    use super::*;
    use crate::channel::CopiedBy;
    use crate::operations::ServedFile;
    use crate::request::Bounds;

    #[test]
    fn a_thread_keeps_to_processors_that_it_may_run_on() {
        thread::spawn(|| {
            let before = sched_getaffinity(None).unwrap();
            let is_allowed = |processor: &usize| before.is_set(*processor);
            let one = (0..CpuSet::MAX_CPU).find(is_allowed).unwrap();
            for nowhere in [vec![], vec![usize::MAX]] {
                keep_to(&nowhere);
                assert_eq!(sched_getaffinity(None).unwrap(), before);
            }
            keep_to(&[one, usize::MAX]);
            let now = sched_getaffinity(None).unwrap();
            assert!(now.count() == 1 && now.is_set(one));
        })
        .join()
        .unwrap();
    }

    /// An ordinary file has no commands. Without io_uring, the reactor is refused.
    #[test]
    fn a_queue_whose_entries_the_kernel_refuses_is_an_error() {
        let channel = tempfile::tempfile().unwrap();
        channel.set_len(1 << 20).unwrap();
        let device = Device::new(Memory::new(1 << 20).unwrap()).unwrap();
        let queue = Queue {
            number: 0,
            depth: 4,
            channel: Arc::new(channel.into()),
            copied_by: CopiedBy::Server,
            file: Arc::new(ServedFile::new(
                File::from_device(device, FileOptions::new()),
                false,
                false,
            )),
            bounds: Bounds { capacity: 1 << 20, max_io_bytes: 65536, read_only: false },
            counters: Arc::new([RequestCounters::default()]),
        };
        let ends = Arc::new(AtomicUsize::new(0));
        let on_end = {
            let ends = ends.clone();
            move || {
                ends.fetch_add(1, Ordering::Relaxed);
            }
        };
        let error = Worker::start(queue, Vec::new(), ReactorOptions::new(), on_end).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::Unsupported, "{error}");
        assert!(ends.load(Ordering::Relaxed) > 0);
    }
}

//! Requests on their way to devices and back. Knows nothing of the loop.

// The modules, top down: each imports only from those below it.

// Completions of a batch, from the kernel's queue to its slots.
pub(crate) mod batch_slots;
// Queues and devices: where a request goes, and how its completions are found.
pub(crate) mod dispatch;
// Requests in flight, and what the end of a step means.
pub(crate) mod in_flight;
// A device that a reactor serves, with its queues.
pub(crate) mod attachment;
// The choice of a device's queue.
pub(crate) mod choose;
// The queue that carries a device's requests.
pub(crate) mod route;
// The io_uring instances of a reactor.
pub(crate) mod rings;
// Requests that are submitted under a lock.
pub(crate) mod submission_lock;
// Waiting in epoll.
pub(crate) mod poller;
// The thread of `completion=worker`.
pub(crate) mod completion_worker;

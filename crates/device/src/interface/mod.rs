//! The interfaces of back ends and queues, and the names of queues.

// The trait of every back end.
pub(crate) mod backend;
// The queue that calibration has chosen for a device.
pub(crate) mod choice;
// The names of the queues.
pub(crate) mod kind;
// The trait of every queue.
pub(crate) mod queue;

//! The interfaces of back ends and queues, and the names of queues.

// The trait of every back end.
pub(crate) mod backend;
// The result of a device's calibration.
pub(crate) mod calibration;
// The names of the queues.
pub(crate) mod kind;
// The trait of every queue.
pub(crate) mod queue;

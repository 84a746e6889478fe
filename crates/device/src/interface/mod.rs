//! The interfaces of back ends and queues, and the names of queues.

// What every back end implements.
pub(crate) mod backend;
// The queue that calibration has chosen for a device.
pub(crate) mod choice;
// The names of the queues.
pub(crate) mod kind;
// What every queue implements.
pub(crate) mod queue;

//! OperationRequests on their way to devices and back. Knows nothing of the loop.

pub(crate) mod dispatch;

pub(crate) mod attachment;

pub(crate) mod choose;

pub(crate) mod route;

pub(crate) mod rings;

pub(crate) mod submission_lock;

pub(crate) mod poller;

pub(crate) mod completion_worker;

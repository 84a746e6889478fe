//! Commands to NVMe namespaces, without the block layer (`IORING_OP_URING_CMD` on `/dev/ngXnY`, Linux 5.19).
//!
//! A [`NvmeRing`] executes the same [`Transfer`](crate::Transfer)s as a [`Ring`](crate::Ring). Each step is one
//! [`NvmeCommand`] of a [`Namespace`]; a failed one ends with an [`NvmeStatus`]. The kernel neither splits, retries,
//! merges nor cancels commands. Registered memory and polling for commands need Linux 6.1.

// The ring.
mod ring;
// Encodes submission entries.
mod sqe;
// A namespace, and its commands.
mod command;
// Why a controller has failed a command.
mod status;

pub use command::{Namespace, NvmeCommand, Opcode, WriteMode};
pub use ring::NvmeRing;
pub use status::NvmeStatus;

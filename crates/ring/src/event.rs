//! Completions of waits and messages.

use uringfs_errno::Errno;

use crate::in_flight::{RequestId, RequestKind, Slots, not_in_flight};
use crate::message::Messages;
use crate::wait::{Wait, WaitOutput};

/// A completion other than that of a transfer.
#[derive(Debug)]
pub enum Event {
    /// A wait has completed, or was cancelled.
    Wait {
        /// The wait, its memory included.
        wait: Wait,
        /// The tag it was pushed with.
        tag: u64,
        /// Its result.
        result: Result<WaitOutput, Errno>,
    },
    /// Another ring has sent a message.
    Message,
}

/// Decodes a completion other than that of a transfer. `None` if the ring handles it itself.
#[cold]
pub(crate) fn decode(
    waits: &mut Slots<(Wait, u64)>,
    messages: &mut Messages,
    id: RequestId,
    result: i32,
) -> Option<Event> {
    let result =
        if result < 0 { Err(Errno::from_raw_os_error(-result)) } else { Ok(result as u32) };
    match id.kind() {
        RequestKind::Wait => {
            let ended = waits.end(id).unwrap_or_else(|| not_in_flight());
            let (wait, tag) = ended.take();
            let result = result.map(|value| wait.decode(value));
            Some(Event::Wait { wait, tag, result })
        }
        RequestKind::Message => Some(Event::Message),
        RequestKind::Internal => {
            messages.end(id, result.is_err());
            None
        }
        RequestKind::Transfer | RequestKind::Pinned => not_in_flight(),
    }
}

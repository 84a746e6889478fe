//! `completion=worker`: a thread that every completion goes through before the
//! thread that asked hears of it. One hand-off each way.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use uringfs_device::Completion;

use crate::wake::message::{Message, ReactorMailbox};

/// A thread that hands completions back.
pub(crate) struct CompletionWorker {
    send: Option<Sender<Vec<Completion>>>,
    thread: Option<JoinHandle<()>>,
}

impl CompletionWorker {
    /// Starts the thread; `mailbox` is where completions go back to.
    pub(crate) fn start<A: Send + 'static>(
        mailbox: Arc<ReactorMailbox<A>>,
    ) -> std::io::Result<CompletionWorker> {
        let (send, receive) = channel();
        let thread = std::thread::Builder::new()
            .name("uringfs-complete".into())
            .spawn(move || run(receive, &mailbox))?;
        Ok(CompletionWorker { send: Some(send), thread: Some(thread) })
    }

    /// Hands over what was reaped in one go.
    pub(crate) fn send(&self, completions: Vec<Completion>) {
        let send = self.send.as_ref().expect("the worker runs until it is dropped");
        let sent = send.send(completions);
        assert!(sent.is_ok(), "the worker runs until it is dropped");
    }
}

fn run<A>(receive: Receiver<Vec<Completion>>, mailbox: &ReactorMailbox<A>) {
    while let Ok(completions) = receive.recv() {
        // A reactor that has gone has drained first, so nothing is lost.
        let _ = mailbox.post(Message::FromWorker(completions));
    }
}

impl Drop for CompletionWorker {
    fn drop(&mut self) {
        self.send = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

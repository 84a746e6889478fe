//! `completion=worker`: every completion goes through a worker thread and back to the thread that issued the request. One
//! hand-off each way.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use uringfs_device::StepCompletion;

use crate::wake::message::{Message, ReactorMailbox};

/// A thread that returns completions to the reactor.
pub(crate) struct CompletionWorker {
    send: Option<Sender<Vec<StepCompletion>>>,
    thread: Option<JoinHandle<()>>,
}

impl CompletionWorker {
    /// Starts the thread, which returns completions to `mailbox`.
    pub(crate) fn start<A: Send + 'static>(
        mailbox: Arc<ReactorMailbox<A>>,
    ) -> std::io::Result<CompletionWorker> {
        let (send, receive) = channel();
        let thread = std::thread::Builder::new()
            .name("uringfs-complete".into())
            .spawn(move || run(receive, &mailbox))?;
        Ok(CompletionWorker { send: Some(send), thread: Some(thread) })
    }

    /// Sends the completions of one reap.
    pub(crate) fn send(&self, completions: Vec<StepCompletion>) {
        let send = self.send.as_ref().expect("the worker runs until it is dropped");
        let sent = send.send(completions);
        assert!(sent.is_ok(), "the worker runs until it is dropped");
    }
}

fn run<A>(receive: Receiver<Vec<StepCompletion>>, mailbox: &ReactorMailbox<A>) {
    while let Ok(completions) = receive.recv() {
        // A reactor drains before it is dropped, so nothing is lost.
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

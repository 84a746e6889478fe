//! `completion=worker`: a thread that every completion goes through before the
//! thread that asked hears of it. One hand-off each way.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use uringfs_device::Completion;

use crate::wake::message::{Letter, Letterbox};

/// A thread that hands completions back.
pub(crate) struct Worker {
    send: Option<Sender<Vec<Completion>>>,
    thread: Option<JoinHandle<()>>,
}

impl Worker {
    /// Starts the thread; `home` is where completions go back to.
    pub(crate) fn start<A: Send + 'static>(home: Arc<Letterbox<A>>) -> std::io::Result<Worker> {
        let (send, receive) = channel();
        let thread = std::thread::Builder::new()
            .name("uringfs-complete".into())
            .spawn(move || run(receive, &home))?;
        Ok(Worker { send: Some(send), thread: Some(thread) })
    }

    /// Hands over what was reaped in one go.
    pub(crate) fn hand_over(&self, completions: Vec<Completion>) {
        let send = self.send.as_ref().expect("the worker runs until it is dropped");
        let sent = send.send(completions);
        assert!(sent.is_ok(), "the worker runs until it is dropped");
    }
}

fn run<A>(receive: Receiver<Vec<Completion>>, home: &Letterbox<A>) {
    while let Ok(completions) = receive.recv() {
        // A reactor that has gone has drained first, so nothing is lost.
        let _ = home.post(Letter::Completed(completions));
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.send = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

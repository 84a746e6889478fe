//! Threads without a reactor are spread among the background reactors.

use std::sync::mpsc::channel;
use std::thread::{self, ThreadId};

use uringfs_reactor::{background_reactor, set_background_reactors};

/// The thread of the background reactor that serves the calling thread.
fn served_by() -> ThreadId {
    let (send, receive) = channel();
    assert!(background_reactor().unwrap().run(move |_| send.send(thread::current().id()).unwrap()));
    receive.recv().unwrap()
}

fn of_new_thread() -> ThreadId {
    thread::spawn(served_by).join().unwrap()
}

#[test]
fn threads_are_spread_and_each_keeps_its_reactor() {
    set_background_reactors(1);
    let only = served_by();
    assert_eq!(of_new_thread(), only);

    set_background_reactors(2);
    let served = [of_new_thread(), of_new_thread(), of_new_thread(), of_new_thread()];
    assert_eq!(served[0], served[2]);
    assert_eq!(served[1], served[3]);
    assert_ne!(served[0], served[1]);
    assert!(served.contains(&only), "a reactor that has started is used");
    let own = served_by();
    for _ in 0..3 {
        assert_eq!(served_by(), own);
    }
    assert!(std::panic::catch_unwind(|| set_background_reactors(0)).is_err());
    assert!(std::panic::catch_unwind(|| set_background_reactors(65)).is_err());
}

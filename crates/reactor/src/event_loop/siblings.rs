//! The other reactors of a thread. One that waits for what another of them has begun would wait for ever
//! while it goes, since the other is not turned meanwhile: so it turns them, too.

use std::cell::RefCell;
use std::rc::{Rc, Weak};

use crate::event_loop::core::{Current, Inner};

thread_local! {
    static REACTORS: RefCell<Vec<Weak<Inner>>> = const { RefCell::new(Vec::new()) };
}

/// What the other reactors of a thread may do for one that goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Siblings {
    /// Nothing: there are none.
    None,
    /// Go on: they have been turned.
    Turned,
    /// Nothing before this one is gone: it goes inside of what one of them runs.
    Running,
}

/// This thread has another reactor.
pub(crate) fn register(inner: &Rc<Inner>) {
    REACTORS.with_borrow_mut(|reactors| {
        reactors.retain(|other| other.strong_count() > 0);
        reactors.push(Rc::downgrade(inner));
    });
}

/// Turns the thread's reactors but this one. They submit and do not wait.
pub(crate) fn turn(inner: &Rc<Inner>) -> Siblings {
    let reactors = REACTORS.try_with(|reactors| reactors.borrow().clone());
    // None while the thread ends.
    let reactors = reactors.unwrap_or_default();
    let others = reactors.iter().filter_map(Weak::upgrade);
    let mut siblings = Siblings::None;
    for other in others.filter(|other| !Rc::ptr_eq(other, inner)) {
        let is_in_use = other.io.try_borrow_mut().is_err();
        if is_in_use || other.is_in_user_code() {
            siblings = Siblings::Running;
            continue;
        }
        if other.is_forked() {
            continue;
        }
        if siblings == Siblings::None {
            siblings = Siblings::Turned;
        }
        let _current = Current::set(&other);
        other.progress();
        // If they cannot be submitted now, its own next wait says so.
        let _ = other.submit();
        // A foreign loop may sleep for it, and not know of new timers.
        other.ask_for_turn();
    }
    siblings
}

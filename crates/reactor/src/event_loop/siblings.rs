//! The reactors of a thread. A reactor that is being dropped may wait for an operation of a sibling, which makes
//! no progress unless it is turned. So a drop turns the siblings, too.

use std::cell::RefCell;
use std::rc::{Rc, Weak};

use crate::event_loop::core::{Current, ReactorCore};

thread_local! {
    static REACTORS: RefCell<Vec<Weak<ReactorCore>>> = const { RefCell::new(Vec::new()) };
}

/// The state of a thread's other reactors after [`turn`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Siblings {
    /// There are none.
    None,
    /// They were turned and make progress.
    Turned,
    /// One of them runs the code that drops this reactor. It makes no progress before the drop has ended.
    Running,
}

/// Records another reactor of this thread.
pub(crate) fn register(reactor: &Rc<ReactorCore>) {
    REACTORS.with_borrow_mut(|reactors| {
        reactors.retain(|other| other.strong_count() > 0);
        reactors.push(Rc::downgrade(reactor));
    });
}

/// The reactors of this thread.
pub(crate) fn reactors_of_thread() -> impl Iterator<Item = Rc<ReactorCore>> {
    let reactors = REACTORS.try_with(|reactors| reactors.borrow().clone());
    // This fails while the thread's locals are destroyed.
    reactors.unwrap_or_default().into_iter().filter_map(|reactor| reactor.upgrade())
}

/// True if this thread has a reactor: it makes progress only while the thread turns it.
pub fn thread_has_reactor() -> bool {
    let is_alive = |reactor: &Weak<ReactorCore>| reactor.strong_count() > 0;
    // This fails while the thread's locals are destroyed.
    REACTORS.try_with(|reactors| reactors.borrow().iter().any(is_alive)).unwrap_or(false)
}

/// Turns the thread's other reactors. They submit and do not wait.
pub(crate) fn turn(reactor: &Rc<ReactorCore>) -> Siblings {
    let mut siblings = Siblings::None;
    for other in reactors_of_thread().filter(|other| !Rc::ptr_eq(other, reactor)) {
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
        other.run_rounds();
        // If the submission fails now, the sibling's own next wait reports it.
        let _ = other.submit();
        // A foreign loop that sleeps for the sibling does not know of new timers.
        other.request_turn();
    }
    siblings
}

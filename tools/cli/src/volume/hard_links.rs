//! Files of several names: `put` and `get` copy one where they meet its first name, and make links to it of
//! the others.

use std::collections::HashMap;
use std::hash::Hash;

/// The files of several names that have been seen; `K` tells them apart, `P` is the path of a copy.
pub struct HardLinks<K, P> {
    seen: HashMap<K, SeenFile<P>>,
}

struct SeenFile<P> {
    first: P,
    /// Names that have not been seen.
    left: u32,
    state: CopyState<P>,
}

enum CopyState<P> {
    /// On its way; these are to become links to it.
    Pending(Vec<P>),
    Done,
    Failed,
}

/// What a name becomes.
#[derive(Debug, PartialEq, Eq)]
pub enum LinkAction<P> {
    /// The first of its file, which is to be copied.
    Copy,
    /// A link, once the copy is there.
    Wait,
    /// A link to the copy.
    Link(P),
    /// Nothing: there is no copy.
    Fail(P),
}

impl<K: Eq + Hash, P: Clone> HardLinks<K, P> {
    pub fn new() -> Self {
        Self { seen: HashMap::new() }
    }

    /// One of the `names` names of a file, of which the copy gets this path.
    pub fn add_name(&mut self, file: K, names: u32, path: &P) -> LinkAction<P> {
        if names < 2 {
            return LinkAction::Copy;
        }
        let Some(seen) = self.seen.get_mut(&file) else {
            let (first, state) = (path.clone(), CopyState::Pending(Vec::new()));
            self.seen.insert(file, SeenFile { first, left: names - 1, state });
            return LinkAction::Copy;
        };
        seen.left = seen.left.saturating_sub(1);
        let first = seen.first.clone();
        match &mut seen.state {
            CopyState::Pending(waiting) => {
                waiting.push(path.clone());
                LinkAction::Wait
            }
            CopyState::Done => {
                if seen.left == 0 {
                    self.seen.remove(&file);
                }
                LinkAction::Link(first)
            }
            CopyState::Failed => LinkAction::Fail(first),
        }
    }

    /// The copy is there; these wait to be links to it.
    pub fn copy_done(&mut self, file: &K) -> Vec<P> {
        let waiting = self.settle(file, CopyState::Done);
        if self.seen.get(file).is_some_and(|seen| seen.left == 0) {
            self.seen.remove(file);
        }
        waiting
    }

    /// No copy becomes of it; these have waited for one.
    pub fn copy_failed(&mut self, file: &K) -> Vec<P> {
        self.settle(file, CopyState::Failed)
    }

    fn settle(&mut self, file: &K, state: CopyState<P>) -> Vec<P> {
        match self.seen.get_mut(file).map(|seen| std::mem::replace(&mut seen.state, state)) {
            Some(CopyState::Pending(waiting)) => waiting,
            _ => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_become_links_once_the_copy_is_there() {
        let mut links = HardLinks::new();
        assert_eq!(links.add_name(1, 1, &"alone"), LinkAction::Copy);
        assert_eq!(links.add_name(7, 3, &"a"), LinkAction::Copy);
        assert_eq!(links.add_name(7, 3, &"b"), LinkAction::Wait);
        assert_eq!(links.copy_done(&7), ["b"]);
        assert_eq!(links.add_name(7, 3, &"c"), LinkAction::Link("a"));
        assert!(links.seen.is_empty(), "all its names have been seen");
        assert_eq!(links.add_name(8, 9, &"d"), LinkAction::Copy);
        assert_eq!(links.add_name(8, 9, &"e"), LinkAction::Wait);
        assert_eq!(links.copy_failed(&8), ["e"]);
        assert_eq!(links.add_name(8, 9, &"f"), LinkAction::Fail("d"));
    }
}

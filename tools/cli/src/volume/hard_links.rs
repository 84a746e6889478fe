//! Files with several names. `put` and `get` copy such a file at its first name, and create hard links to the copy
//! for its other names.

use std::collections::HashMap;
use std::hash::Hash;

/// The files with several names seen so far. `K` identifies a file, `P` is the path of a copy.
pub struct HardLinks<K, P> {
    files: HashMap<K, SeenFile<P>>,
}

struct SeenFile<P> {
    first: P,
    /// The number of names not seen yet.
    left: u32,
    state: CopyState<P>,
}

enum CopyState<P> {
    /// The copy is in progress. These paths will become links to it.
    Pending(Vec<P>),
    Done,
    Failed,
}

/// The action for a name of a file.
#[derive(Debug, PartialEq, Eq)]
pub enum LinkAction<P> {
    /// Copy the file: this is its first name.
    Copy,
    /// Wait: the name becomes a link when the copy is done.
    Wait,
    /// Create a link to the copy at this path.
    Link(P),
    /// Fail: the copy at this path failed.
    Fail(P),
}

impl<K: Eq + Hash, P: Clone> HardLinks<K, P> {
    pub fn new() -> Self {
        Self { files: HashMap::new() }
    }

    /// Records a name of a file that has `names` names; a copy or link would get this path.
    pub fn add_name(&mut self, file: K, names: u32, path: &P) -> LinkAction<P> {
        if names < 2 {
            return LinkAction::Copy;
        }
        let Some(seen) = self.files.get_mut(&file) else {
            let (first, state) = (path.clone(), CopyState::Pending(Vec::new()));
            self.files.insert(file, SeenFile { first, left: names - 1, state });
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
                    self.files.remove(&file);
                }
                LinkAction::Link(first)
            }
            CopyState::Failed => LinkAction::Fail(first),
        }
    }

    /// Records that the copy is done. Returns the paths that wait to become links.
    pub fn copy_done(&mut self, file: &K) -> Vec<P> {
        let waiting = self.settle(file, CopyState::Done);
        if self.files.get(file).is_some_and(|seen| seen.left == 0) {
            self.files.remove(file);
        }
        waiting
    }

    /// Records that the copy failed. Returns the paths that waited for it.
    pub fn copy_failed(&mut self, file: &K) -> Vec<P> {
        self.settle(file, CopyState::Failed)
    }

    fn settle(&mut self, file: &K, state: CopyState<P>) -> Vec<P> {
        match self.files.get_mut(file).map(|seen| std::mem::replace(&mut seen.state, state)) {
            Some(CopyState::Pending(waiting)) => waiting,
            _ => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_become_links_when_the_copy_is_done() {
        let mut links = HardLinks::new();
        assert_eq!(links.add_name(1, 1, &"alone"), LinkAction::Copy);
        assert_eq!(links.add_name(7, 3, &"a"), LinkAction::Copy);
        assert_eq!(links.add_name(7, 3, &"b"), LinkAction::Wait);
        assert_eq!(links.copy_done(&7), ["b"]);
        assert_eq!(links.add_name(7, 3, &"c"), LinkAction::Link("a"));
        assert!(links.files.is_empty(), "all names were seen");
        assert_eq!(links.add_name(8, 9, &"d"), LinkAction::Copy);
        assert_eq!(links.add_name(8, 9, &"e"), LinkAction::Wait);
        assert_eq!(links.copy_failed(&8), ["e"]);
        assert_eq!(links.add_name(8, 9, &"f"), LinkAction::Fail("d"));
    }
}

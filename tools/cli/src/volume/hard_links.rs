//! Files of several names: `put` and `get` copy one where they meet its first name, and make links to it of
//! the others.

use std::collections::HashMap;
use std::hash::Hash;

/// The files of several names that have been met; `K` tells them apart, `P` is the path of a copy.
pub struct HardLinks<K, P> {
    met: HashMap<K, Met<P>>,
}

struct Met<P> {
    first: P,
    /// Names that have not been met.
    left: u32,
    state: State<P>,
}

enum State<P> {
    /// On its way; these are to become links to it.
    Awaited(Vec<P>),
    There,
    Lost,
}

/// What a name becomes.
#[derive(Debug, PartialEq, Eq)]
pub enum Name<P> {
    /// The first of its file, which is to be copied.
    First,
    /// A link, once the copy is there.
    Waits,
    /// A link to the copy.
    LinkTo(P),
    /// Nothing: there is no copy.
    Lost(P),
}

impl<K: Eq + Hash, P: Clone> HardLinks<K, P> {
    pub fn new() -> Self {
        Self { met: HashMap::new() }
    }

    /// One of the `names` names of a file, of which the copy gets this path.
    pub fn meet(&mut self, file: K, names: u32, path: &P) -> Name<P> {
        if names < 2 {
            return Name::First;
        }
        let Some(met) = self.met.get_mut(&file) else {
            let (first, state) = (path.clone(), State::Awaited(Vec::new()));
            self.met.insert(file, Met { first, left: names - 1, state });
            return Name::First;
        };
        met.left = met.left.saturating_sub(1);
        let first = met.first.clone();
        match &mut met.state {
            State::Awaited(waiting) => {
                waiting.push(path.clone());
                Name::Waits
            }
            State::There => {
                if met.left == 0 {
                    self.met.remove(&file);
                }
                Name::LinkTo(first)
            }
            State::Lost => Name::Lost(first),
        }
    }

    /// The copy is there; these wait to be links to it.
    pub fn is_there(&mut self, file: &K) -> Vec<P> {
        let waiting = self.end(file, State::There);
        if self.met.get(file).is_some_and(|met| met.left == 0) {
            self.met.remove(file);
        }
        waiting
    }

    /// No copy becomes of it; these have waited for one.
    pub fn is_lost(&mut self, file: &K) -> Vec<P> {
        self.end(file, State::Lost)
    }

    fn end(&mut self, file: &K, state: State<P>) -> Vec<P> {
        match self.met.get_mut(file).map(|met| std::mem::replace(&mut met.state, state)) {
            Some(State::Awaited(waiting)) => waiting,
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
        assert_eq!(links.meet(1, 1, &"alone"), Name::First);
        assert_eq!(links.meet(7, 3, &"a"), Name::First);
        assert_eq!(links.meet(7, 3, &"b"), Name::Waits);
        assert_eq!(links.is_there(&7), ["b"]);
        assert_eq!(links.meet(7, 3, &"c"), Name::LinkTo("a"));
        assert!(links.met.is_empty(), "all its names have been met");
        assert_eq!(links.meet(8, 9, &"d"), Name::First);
        assert_eq!(links.meet(8, 9, &"e"), Name::Waits);
        assert_eq!(links.is_lost(&8), ["e"]);
        assert_eq!(links.meet(8, 9, &"f"), Name::Lost("d"));
    }
}

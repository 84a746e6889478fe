//! What a path means, seen from a module: every `use` on the way is followed to where a thing is
//! defined.

use std::collections::BTreeSet;

use crate::tree::{Found, Meaning, Scope, Tree};

/// The names that are being looked up. `use drive::drive` asks for `drive` while it is looked up: then
/// no `use` is followed again.
type Asked = BTreeSet<(usize, String)>;

impl Tree {
    /// What `path` leads to in `module`, inside of `blocks` with names of their own, the innermost
    /// last. A name may stand for several things; one of another crate, or of a variable, for none.
    pub(crate) fn resolve(
        &self,
        module: usize,
        blocks: &[Scope],
        path: &[String],
    ) -> BTreeSet<Found> {
        let named = blocks.iter().rev().find_map(|block| {
            let found = self.in_scope(module, block, path.first()?, &mut Asked::new());
            (!found.is_empty()).then_some(found)
        });
        match named {
            Some(found) => self.follow(found, &path[1..], &mut Asked::new()),
            None => self.resolve_path(module, path, &mut Asked::new()),
        }
    }

    fn resolve_path(&self, module: usize, path: &[String], asked: &mut Asked) -> BTreeSet<Found> {
        let mut rest = path;
        let mut start = None;
        while let Some((first, after)) = rest.split_first() {
            start = match (first.as_str(), start) {
                ("crate", None) => Some(0),
                ("self", None) => Some(module),
                ("super", _) => self.modules[start.unwrap_or(module)].parent,
                _ => break,
            };
            rest = after;
        }
        match (start, rest.split_first()) {
            (Some(start), _) => self.follow([Found::Module(start)].into(), rest, asked),
            (None, Some((first, after))) => {
                self.follow(self.name(module, first, asked), after, asked)
            }
            (None, None) => BTreeSet::new(),
        }
    }

    fn follow(
        &self,
        mut found: BTreeSet<Found>,
        rest: &[String],
        asked: &mut Asked,
    ) -> BTreeSet<Found> {
        for name in rest {
            let mut next = BTreeSet::new();
            // What is no module but has a module's name is a function or a macro: nothing is in it.
            if found.iter().any(|place| matches!(place, Found::Module(_))) {
                found.retain(|place| matches!(place, Found::Module(_)));
            }
            for place in found {
                let Found::Module(module) = place else {
                    // An enum, for example: its variants are where it is.
                    next.insert(place);
                    continue;
                };
                let inside = self.name(module, name, asked);
                if inside.is_empty() {
                    // A macro may have made it.
                    next.insert(Found::ItemOf(module));
                }
                next.extend(inside);
            }
            found = next;
        }
        found
    }

    /// What a name stands for in a module.
    fn name(&self, module: usize, name: &str, asked: &mut Asked) -> BTreeSet<Found> {
        let key = (module, name.to_owned());
        let scope = &self.modules[module].scope;
        if !asked.insert(key.clone()) {
            let meanings = scope.names.get(name).into_iter().flatten();
            return meanings
                .filter_map(|meaning| match meaning {
                    Meaning::Found(place) => Some(*place),
                    Meaning::Path(_) => None,
                })
                .collect();
        }
        let found = self.in_scope(module, scope, name, asked);
        asked.remove(&key);
        found
    }

    fn in_scope(
        &self,
        module: usize,
        scope: &Scope,
        name: &str,
        asked: &mut Asked,
    ) -> BTreeSet<Found> {
        let mut found = BTreeSet::new();
        for meaning in scope.names.get(name).into_iter().flatten() {
            match meaning {
                Meaning::Found(place) => drop(found.insert(*place)),
                Meaning::Path(path) => {
                    let places = self.resolve_path(module, path, asked);
                    // A parent hands on; what is had from any other file is imported from that too.
                    let hands_on = self.modules.iter().any(|child| child.parent == Some(module));
                    if places.is_empty() || !hands_on {
                        found.insert(Found::ItemOf(module));
                    }
                    found.extend(places);
                }
            }
        }
        if !found.is_empty() {
            return found;
        }
        for glob in &scope.globs {
            for place in self.resolve_path(module, glob, asked) {
                if let Found::Module(source) = place {
                    found.extend(self.name(source, name, asked));
                }
            }
        }
        found
    }
}

//! Resolves a path, as seen from a module. Every `use` on the way is followed to the definition.

use std::collections::BTreeSet;

use crate::tree::{Binding, Scope, Target, Tree};

/// The names whose resolution is under way. `use drive::drive` needs `drive` to resolve `drive`: a second look-up of
/// the same name follows no `use`.
type Visiting = BTreeSet<(usize, String)>;

impl Tree {
    /// The targets of `path` in `module`, inside `blocks` with their own names, the innermost last. A name may have
    /// several targets. A name of another crate, or of a variable, has none.
    pub(crate) fn resolve(
        &self,
        module: usize,
        blocks: &[Scope],
        path: &[String],
    ) -> BTreeSet<Target> {
        let named = blocks.iter().rev().find_map(|block| {
            let found = self.in_scope(module, block, path.first()?, &mut Visiting::new());
            (!found.is_empty()).then_some(found)
        });
        match named {
            Some(found) => self.follow(found, &path[1..], &mut Visiting::new()),
            None => self.resolve_path(module, path, &mut Visiting::new()),
        }
    }

    fn resolve_path(
        &self,
        module: usize,
        path: &[String],
        visiting: &mut Visiting,
    ) -> BTreeSet<Target> {
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
            (Some(start), _) => self.follow([Target::Module(start)].into(), rest, visiting),
            (None, Some((first, after))) => {
                self.follow(self.name(module, first, visiting), after, visiting)
            }
            (None, None) => BTreeSet::new(),
        }
    }

    fn follow(
        &self,
        mut found: BTreeSet<Target>,
        rest: &[String],
        visiting: &mut Visiting,
    ) -> BTreeSet<Target> {
        for name in rest {
            let mut next = BTreeSet::new();
            // A non-module with the name of a module is a function or a macro, which contains no names.
            if found.iter().any(|place| matches!(place, Target::Module(_))) {
                found.retain(|place| matches!(place, Target::Module(_)));
            }
            for place in found {
                let Target::Module(module) = place else {
                    // An enum, for example: its variants are in the same file.
                    next.insert(place);
                    continue;
                };
                let inside = self.name(module, name, visiting);
                if inside.is_empty() {
                    // A macro may have defined it.
                    next.insert(Target::ItemOf(module));
                }
                next.extend(inside);
            }
            found = next;
        }
        found
    }

    /// The targets of a name in a module.
    fn name(&self, module: usize, name: &str, visiting: &mut Visiting) -> BTreeSet<Target> {
        let key = (module, name.to_owned());
        let scope = &self.modules[module].scope;
        if !visiting.insert(key.clone()) {
            let bindings = scope.names.get(name).into_iter().flatten();
            return bindings
                .filter_map(|binding| match binding {
                    Binding::Target(place) => Some(*place),
                    Binding::Path(_) => None,
                })
                .collect();
        }
        let found = self.in_scope(module, scope, name, visiting);
        visiting.remove(&key);
        found
    }

    fn in_scope(
        &self,
        module: usize,
        scope: &Scope,
        name: &str,
        visiting: &mut Visiting,
    ) -> BTreeSet<Target> {
        let mut found = BTreeSet::new();
        for binding in scope.names.get(name).into_iter().flatten() {
            match binding {
                Binding::Target(place) => drop(found.insert(*place)),
                Binding::Path(path) => {
                    let places = self.resolve_path(module, path, visiting);
                    // A re-export by a parent leads only to the definition. A re-export by another file is also a
                    // dependency on that file.
                    let is_parent = self.modules.iter().any(|child| child.parent == Some(module));
                    if places.is_empty() || !is_parent {
                        found.insert(Target::ItemOf(module));
                    }
                    found.extend(places);
                }
            }
        }
        if !found.is_empty() {
            return found;
        }
        for glob in &scope.globs {
            for place in self.resolve_path(module, glob, visiting) {
                if let Target::Module(source) = place {
                    found.extend(self.name(source, name, visiting));
                }
            }
        }
        found
    }
}

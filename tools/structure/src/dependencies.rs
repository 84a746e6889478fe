//! The dependencies between files: which file imports which names from which other. Looks at every path in the code,
//! also in macros' tokens.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::PathBuf;

use proc_macro2::TokenStream;
use syn::visit::{self, Visit};
use syn::{Attribute, Block, Item, ItemMod, ItemUse, Meta, Path, Stmt, VisRestricted};

use crate::excluded::is_excluded;
use crate::tokens::paths_in;
use crate::tree::{Scope, Target, Tree, imports_of, name_of};

/// One file imports these names from another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dependency {
    /// The file that imports.
    pub from: PathBuf,
    /// The file that defines them.
    pub to: PathBuf,
    /// The names; `*` is a glob.
    pub names: BTreeSet<String>,
    /// The root file lists the module of `to` above that of `from`.
    pub is_upward: bool,
}

impl fmt::Display for Dependency {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let names: Vec<_> = self.names.iter().map(String::as_str).collect();
        write!(f, "{} -> {}: {}", self.from.display(), self.to.display(), names.join(", "))
    }
}

/// All dependencies between the files of a crate.
pub(crate) fn dependencies(tree: &Tree) -> Vec<Dependency> {
    let mut visitor = Visitor { tree, module: 0, blocks: Vec::new(), found: BTreeMap::new() };
    for (number, module) in tree.modules.iter().enumerate() {
        visitor.module = number;
        module.items.iter().for_each(|item| visitor.visit_item(item));
    }
    visitor.found.into_values().collect()
}

struct Visitor<'t> {
    tree: &'t Tree,
    /// The module that is being visited, and its enclosing blocks with their own names.
    module: usize,
    blocks: Vec<Scope>,
    found: BTreeMap<(PathBuf, PathBuf), Dependency>,
}

impl Visitor<'_> {
    fn path(&mut self, path: &[String]) {
        for target in self.resolve(path) {
            // A path to a module by itself uses nothing in it.
            if let Target::ItemOf(module) = target {
                self.add(module, self.name_in(path, target));
            }
        }
    }

    fn resolve(&self, path: &[String]) -> BTreeSet<Target> {
        self.tree.resolve(self.module, &self.blocks, path)
    }

    /// The segment of a path that names the target item: not a variant, and not a function of a type.
    fn name_in<'p>(&self, path: &'p [String], target: Target) -> &'p str {
        let end = (1..path.len()).find(|end| {
            let found = self.resolve(&path[..*end]);
            found.contains(&target) && !found.iter().any(|other| matches!(other, Target::Module(_)))
        });
        &path[end.unwrap_or(path.len()) - 1]
    }

    fn add(&mut self, target: usize, name: &str) {
        let (from, to) = (&self.tree.modules[self.module], &self.tree.modules[target]);
        if from.file == to.file {
            return;
        }
        let key = (from.file.clone(), to.file.clone());
        let dependency = self.found.entry(key).or_insert_with_key(|(from, to)| Dependency {
            from: from.clone(),
            to: to.clone(),
            names: BTreeSet::new(),
            is_upward: false,
        });
        dependency.names.insert(name.to_owned());
        // The root file itself has no position among the modules.
        dependency.is_upward |= matches!((from.top, to.top), (Some(from), Some(to)) if to < from);
    }

    /// Whether a module is a descendant of the one that is being visited.
    fn is_inside(&self, mut module: usize) -> bool {
        while let Some(parent) = self.tree.modules[module].parent {
            if parent == self.module {
                return true;
            }
            module = parent;
        }
        false
    }

    fn tokens(&mut self, tokens: &TokenStream) {
        paths_in(tokens.clone(), &[], &mut |path| self.path(path));
    }
}

/// Visits nodes unless they are excluded.
macro_rules! unless_excluded {
    ($($visit:ident($node:ident),)*) => {
        $(fn $visit(&mut self, node: &'ast syn::$node) {
            if !is_excluded(node) {
                visit::$visit(self, node);
            }
        })*
    };
}

impl<'ast> Visit<'ast> for Visitor<'_> {
    unless_excluded! {
        visit_arm(Arm),
        visit_field(Field),
        visit_field_value(FieldValue),
        visit_impl_item(ImplItem),
        visit_item(Item),
        visit_stmt(Stmt),
        visit_trait_item(TraitItem),
        visit_variant(Variant),
    }

    fn visit_path(&mut self, path: &'ast Path) {
        if path.leading_colon.is_none() {
            let names: Vec<_> =
                path.segments.iter().map(|segment| name_of(&segment.ident)).collect();
            self.path(&names);
        }
        visit::visit_path(self, path);
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        for import in imports_of(item) {
            for target in self.resolve(&import.path) {
                let (Target::Module(module) | Target::ItemOf(module)) = target;
                // A module that re-exports names of its children does not depend on them.
                if import.is_reexport && self.is_inside(module) {
                    continue;
                }
                match (&import.name, target) {
                    (None, _) => self.add(module, "*"),
                    (Some(_), Target::ItemOf(_)) => {
                        self.add(module, self.name_in(&import.path, target));
                    }
                    (Some(_), Target::Module(_)) => {}
                }
            }
        }
    }

    /// The tree already holds it as a separate module.
    fn visit_item_mod(&mut self, _: &'ast ItemMod) {}

    /// `pub(in path)` does not import the path.
    fn visit_vis_restricted(&mut self, _: &'ast VisRestricted) {}

    fn visit_block(&mut self, block: &'ast Block) {
        let mut scope = Scope::default();
        for statement in &block.stmts {
            if let Stmt::Item(item @ Item::Use(_)) = statement
                && !is_excluded(item)
            {
                scope.add(self.module, item);
            }
        }
        self.blocks.push(scope);
        visit::visit_block(self, block);
        self.blocks.pop();
    }

    fn visit_macro(&mut self, called: &'ast syn::Macro) {
        self.visit_path(&called.path);
        self.tokens(&called.tokens);
    }

    fn visit_attribute(&mut self, attribute: &'ast Attribute) {
        match &attribute.meta {
            Meta::List(list) => self.tokens(&list.tokens),
            other => visit::visit_meta(self, other),
        }
    }
}

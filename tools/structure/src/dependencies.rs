//! Which file imports what from which other: every path in the code, also those in macros' tokens.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::PathBuf;

use proc_macro2::TokenStream;
use syn::visit::{self, Visit};
use syn::{Attribute, Block, Item, ItemMod, ItemUse, Meta, Path, Stmt, VisRestricted};

use crate::left_out::is_left_out;
use crate::tokens::paths_in;
use crate::tree::{Found, Scope, Tree, imports_of, name_of};

/// One file imports these names from another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Arrow {
    /// The file that imports.
    pub from: PathBuf,
    /// The file that defines them.
    pub to: PathBuf,
    /// The names; `*` is a glob.
    pub names: BTreeSet<String>,
    /// It leads to a module that the root file lists above the one it comes from.
    pub up: bool,
}

impl fmt::Display for Arrow {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let names: Vec<_> = self.names.iter().map(String::as_str).collect();
        write!(f, "{} -> {}: {}", self.from.display(), self.to.display(), names.join(", "))
    }
}

/// All arrows between the files of a crate.
pub(crate) fn arrows(tree: &Tree) -> Vec<Arrow> {
    let mut visitor = Visitor { tree, module: 0, blocks: Vec::new(), found: BTreeMap::new() };
    for (number, module) in tree.modules.iter().enumerate() {
        visitor.module = number;
        module.items.iter().for_each(|item| visitor.visit_item(item));
    }
    visitor.found.into_values().collect()
}

struct Visitor<'t> {
    tree: &'t Tree,
    /// The module that is being read, and the blocks in it that have names of their own.
    module: usize,
    blocks: Vec<Scope>,
    found: BTreeMap<(PathBuf, PathBuf), Arrow>,
}

impl Visitor<'_> {
    fn path(&mut self, path: &[String]) {
        for place in self.resolve(path) {
            // To name a module is not yet to use something of it.
            if let Found::ItemOf(module) = place {
                self.arrow(module, self.name_in(path, place));
            }
        }
    }

    fn resolve(&self, path: &[String]) -> BTreeSet<Found> {
        self.tree.resolve(self.module, &self.blocks, path)
    }

    /// The part of a path that names what is in that place: not a variant, not a function of a type.
    fn name_in<'p>(&self, path: &'p [String], place: Found) -> &'p str {
        let end = (1..path.len()).find(|end| {
            let found = self.resolve(&path[..*end]);
            found.contains(&place) && !found.iter().any(|place| matches!(place, Found::Module(_)))
        });
        &path[end.unwrap_or(path.len()) - 1]
    }

    fn arrow(&mut self, target: usize, name: &str) {
        let (from, to) = (&self.tree.modules[self.module], &self.tree.modules[target]);
        if from.file == to.file {
            return;
        }
        let key = (from.file.clone(), to.file.clone());
        let arrow = self.found.entry(key).or_insert_with_key(|(from, to)| Arrow {
            from: from.clone(),
            to: to.clone(),
            names: BTreeSet::new(),
            up: false,
        });
        arrow.names.insert(name.to_owned());
        // The root file is not one of its modules.
        arrow.up |= matches!((from.top, to.top), (Some(from), Some(to)) if to < from);
    }

    /// Whether a module lies inside of the one that is being read.
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

/// Visits nodes unless they are left out.
macro_rules! unless_left_out {
    ($($visit:ident($node:ident),)*) => {
        $(fn $visit(&mut self, node: &'ast syn::$node) {
            if !is_left_out(node) {
                visit::$visit(self, node);
            }
        })*
    };
}

impl<'ast> Visit<'ast> for Visitor<'_> {
    unless_left_out! {
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
            for place in self.resolve(&import.path) {
                let (Found::Module(module) | Found::ItemOf(module)) = place;
                // A parent that shows what its children have does not use it.
                if import.reexported && self.is_inside(module) {
                    continue;
                }
                match (&import.name, place) {
                    (None, _) => self.arrow(module, "*"),
                    (Some(_), Found::ItemOf(_)) => {
                        self.arrow(module, self.name_in(&import.path, place));
                    }
                    (Some(_), Found::Module(_)) => {}
                }
            }
        }
    }

    /// The tree has it as a module of its own.
    fn visit_item_mod(&mut self, _: &'ast ItemMod) {}

    /// The place up to which something is visible is not imported.
    fn visit_vis_restricted(&mut self, _: &'ast VisRestricted) {}

    fn visit_block(&mut self, block: &'ast Block) {
        let mut scope = Scope::default();
        for statement in &block.stmts {
            if let Stmt::Item(item @ Item::Use(_)) = statement
                && !is_left_out(item)
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

//! The modules of a crate, as its files declare them, and the names in each.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

use syn::ext::IdentExt;
use syn::{
    Expr, ExprLit, Ident, Item, ItemMacro, ItemMod, ItemUse, Lit, Meta, UseTree, Visibility,
};

use crate::excluded::{excludes, is_excluded};

/// All modules of a crate. The first is the root.
pub(crate) struct Tree {
    pub(crate) modules: Vec<Module>,
}

/// A module: a file, or a part of one.
pub(crate) struct Module {
    pub(crate) file: PathBuf,
    pub(crate) parent: Option<usize>,
    /// The top-level module that this one is or belongs to. Numbers of top-level modules are in the order of the root
    /// file.
    pub(crate) top: Option<usize>,
    pub(crate) scope: Scope,
    /// All items except modules.
    pub(crate) items: Vec<Item>,
}

/// The names of a module or of a block.
#[derive(Default)]
pub(crate) struct Scope {
    pub(crate) names: BTreeMap<String, Vec<Binding>>,
    pub(crate) globs: Vec<Vec<String>>,
}

/// The binding of a name.
pub(crate) enum Binding {
    Target(Target),
    /// A `use` of this path.
    Path(Vec<String>),
}

/// The resolved target of a name.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Target {
    Module(usize),
    /// An item that this module defines, or imports from another crate.
    ItemOf(usize),
}

/// One name, or one glob, of a `use`.
pub(crate) struct Import {
    pub(crate) path: Vec<String>,
    /// The name that it gets here; none for a glob.
    pub(crate) name: Option<String>,
    /// The `use` has a visibility.
    pub(crate) is_reexport: bool,
}

impl Tree {
    /// Reads the root file and all files declared below it. `read` returns the text of a file.
    pub(crate) fn read(
        root: &Path,
        read: &dyn Fn(&Path) -> Option<String>,
    ) -> Result<Tree, String> {
        let mut reader = Reader { read, modules: Vec::new() };
        let items =
            reader.parse(root)?.ok_or_else(|| format!("{} excludes itself", root.display()))?;
        reader.add(None, root, parent_of(root), items)?;
        Ok(Tree { modules: reader.modules })
    }
}

struct Reader<'a> {
    read: &'a dyn Fn(&Path) -> Option<String>,
    /// The modules so far, each before its descendants.
    modules: Vec<Module>,
}

impl Reader<'_> {
    /// Adds a module and its descendants, whose files are in `folder`.
    fn add(
        &mut self,
        parent: Option<usize>,
        file: &Path,
        folder: &Path,
        items: Vec<Item>,
    ) -> Result<usize, String> {
        let number = self.modules.len();
        let top = parent.map(|parent| self.modules[parent].top.unwrap_or(number));
        let (file, scope) = (file.to_owned(), Scope::default());
        self.modules.push(Module { file, parent, top, scope, items: Vec::new() });

        for item in items.into_iter().filter(|item| !is_excluded(item)) {
            match item {
                Item::Mod(declared) => {
                    let name = name_of(&declared.ident);
                    if let Some(child) = self.add_declared(number, folder, declared)? {
                        let child = Binding::Target(Target::Module(child));
                        self.modules[number].scope.bind(name, child);
                    }
                }
                item => {
                    self.modules[number].scope.add(number, &item);
                    self.modules[number].items.push(item);
                }
            }
        }
        Ok(number)
    }

    /// Adds the module that a `mod` declares, inline or in a file; none if that file excludes itself.
    fn add_declared(
        &mut self,
        parent: usize,
        folder: &Path,
        declared: ItemMod,
    ) -> Result<Option<usize>, String> {
        let name = name_of(&declared.ident);
        let above = self.modules[parent].file.clone();
        let path = path_attribute(&declared);
        if let Some((_, items)) = declared.content {
            let folder = folder.join(path.unwrap_or(name));
            return self.add(Some(parent), &above, &folder, items).map(Some);
        }
        let (file, inside) = if let Some(path) = path {
            // In an inline module, the path is relative to that module's folder.
            let in_file = |module: usize| self.modules[module].file == above;
            let inline = self.modules[parent].parent.is_some_and(in_file);
            let file = without_dots(&if inline { folder } else { parent_of(&above) }.join(path));
            let inside = parent_of(&file).to_owned();
            (file, inside)
        } else {
            let (alone, inside) = (folder.join(format!("{name}.rs")), folder.join(name));
            let is_alone = (self.read)(&alone).is_some();
            (if is_alone { alone } else { inside.join("mod.rs") }, inside)
        };
        match self.parse(&file)? {
            Some(items) => self.add(Some(parent), &file, &inside, items).map(Some),
            None => Ok(None),
        }
    }

    /// The items of a file; none if the file excludes itself.
    fn parse(&self, path: &Path) -> Result<Option<Vec<Item>>, String> {
        let text = (self.read)(path).ok_or_else(|| format!("{} does not exist", path.display()))?;
        let file =
            syn::parse_file(&text).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok((!excludes(&file.attrs)).then_some(file.items))
    }
}

impl Scope {
    /// Adds the names that an item of this module defines.
    pub(crate) fn add(&mut self, module: usize, item: &Item) {
        let name = match item {
            Item::Const(item) => &item.ident,
            Item::Enum(item) => &item.ident,
            Item::Fn(item) => &item.sig.ident,
            Item::Macro(ItemMacro { ident: Some(name), .. }) => name,
            Item::Static(item) => &item.ident,
            Item::Struct(item) => &item.ident,
            Item::Trait(item) => &item.ident,
            Item::TraitAlias(item) => &item.ident,
            Item::Type(item) => &item.ident,
            Item::Union(item) => &item.ident,
            Item::Use(item) => {
                for import in imports_of(item) {
                    match import.name {
                        Some(name) => self.bind(name, Binding::Path(import.path)),
                        None => self.globs.push(import.path),
                    }
                }
                return;
            }
            _ => return,
        };
        self.bind(name_of(name), Binding::Target(Target::ItemOf(module)));
    }

    fn bind(&mut self, name: String, binding: Binding) {
        self.names.entry(name).or_default().push(binding);
    }
}

/// The imports of a `use`, without those of other crates as far as that is visible without name resolution.
pub(crate) fn imports_of(item: &ItemUse) -> Vec<Import> {
    let mut imports = Vec::new();
    if item.leading_colon.is_none() {
        flatten(&item.tree, &mut Vec::new(), &mut |path, name| {
            let is_reexport = !matches!(item.vis, Visibility::Inherited);
            imports.push(Import { path, name, is_reexport });
        });
    }
    imports
}

fn flatten(
    tree: &UseTree,
    before: &mut Vec<String>,
    each: &mut dyn FnMut(Vec<String>, Option<String>),
) {
    let (last, name) = match tree {
        UseTree::Path(path) => {
            before.push(name_of(&path.ident));
            flatten(&path.tree, before, each);
            before.pop();
            return;
        }
        UseTree::Group(group) => {
            return group.items.iter().for_each(|tree| flatten(tree, before, each));
        }
        UseTree::Glob(_) => return each(before.clone(), None),
        UseTree::Name(name) => (&name.ident, &name.ident),
        UseTree::Rename(renamed) => (&renamed.ident, &renamed.rename),
    };
    let mut path = before.clone();
    // `a::{self}` is `a`.
    if last != "self" || path.is_empty() {
        path.push(name_of(last));
    }
    let name = if name == "self" { path.last().cloned() } else { Some(name_of(name)) };
    each(path, name);
}

/// A name without its `r#` prefix, if it has one.
pub(crate) fn name_of(ident: &Ident) -> String {
    ident.unraw().to_string()
}

fn path_attribute(declared: &ItemMod) -> Option<String> {
    declared.attrs.iter().find_map(|attribute| match &attribute.meta {
        Meta::NameValue(pair) if pair.path.is_ident("path") => match &pair.value {
            Expr::Lit(ExprLit { lit: Lit::Str(path), .. }) => Some(path.value()),
            _ => None,
        },
        _ => None,
    })
}

fn parent_of(file: &Path) -> &Path {
    file.parent().unwrap_or(Path::new(""))
}

/// Normalizes a path, so that each file has one path: `a/../b.rs` becomes `b.rs`.
fn without_dots(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for component in path.components() {
        match component {
            Component::ParentDir if plain.file_name().is_some() => {
                plain.pop();
            }
            Component::CurDir => {}
            other => plain.push(other),
        }
    }
    plain
}

//! The modules of a crate as its files declare them, and the names that each of them has.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

use syn::ext::IdentExt;
use syn::{
    Expr, ExprLit, Ident, Item, ItemMacro, ItemMod, ItemUse, Lit, Meta, UseTree, Visibility,
};

use crate::left_out::{is_left_out, leave_out};

/// All modules of a crate; the first is its root.
pub(crate) struct Tree {
    pub(crate) modules: Vec<Module>,
}

/// A module: a file, or a part of one.
pub(crate) struct Module {
    pub(crate) file: PathBuf,
    pub(crate) parent: Option<usize>,
    /// The module of the root file that this one is or is in. Their numbers are in the order in which
    /// the root file lists them.
    pub(crate) top: Option<usize>,
    pub(crate) scope: Scope,
    /// All that is in it but modules.
    pub(crate) items: Vec<Item>,
}

/// The names of a module or of a block.
#[derive(Default)]
pub(crate) struct Scope {
    pub(crate) names: BTreeMap<String, Vec<Meaning>>,
    pub(crate) globs: Vec<Vec<String>>,
}

/// What a name stands for.
pub(crate) enum Meaning {
    Found(Found),
    /// What this path leads to.
    Path(Vec<String>),
}

/// What a name stands for in the end.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Found {
    Module(usize),
    /// Something that this module defines, or takes from another crate.
    ItemOf(usize),
}

/// One name, or one glob, of a `use`.
pub(crate) struct Import {
    pub(crate) path: Vec<String>,
    /// The name that it gets here; a glob has none.
    pub(crate) name: Option<String>,
    /// Others can have it from here.
    pub(crate) reexported: bool,
}

impl Tree {
    /// Reads the root file and all that are declared below it; `read` gives the text of a file.
    pub(crate) fn read(
        root: &Path,
        read: &dyn Fn(&Path) -> Option<String>,
    ) -> Result<Tree, String> {
        let mut reader = Reader { read, modules: Vec::new() };
        let items = reader.parse(root)?.ok_or_else(|| format!("{} is left out", root.display()))?;
        reader.add(None, root, parent_of(root), items)?;
        Ok(Tree { modules: reader.modules })
    }
}

struct Reader<'a> {
    read: &'a dyn Fn(&Path) -> Option<String>,
    /// Those that are known so far, each before those inside of it.
    modules: Vec<Module>,
}

impl Reader<'_> {
    /// Adds a module and those inside of it, whose files lie in `folder`.
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

        for item in items.into_iter().filter(|item| !is_left_out(item)) {
            match item {
                Item::Mod(declared) => {
                    let name = name_of(&declared.ident);
                    if let Some(child) = self.add_declared(number, folder, declared)? {
                        let child = Meaning::Found(Found::Module(child));
                        self.modules[number].scope.mean(name, child);
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

    /// Adds what a `mod` declares, inline or in a file; nothing if that file leaves itself out.
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
            // Seen from an inline module it lies in the folder of that module.
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

    /// What is in a file; nothing if it leaves itself out.
    fn parse(&self, path: &Path) -> Result<Option<Vec<Item>>, String> {
        let text = (self.read)(path).ok_or_else(|| format!("{} is not there", path.display()))?;
        let file =
            syn::parse_file(&text).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok((!leave_out(&file.attrs)).then_some(file.items))
    }
}

impl Scope {
    /// Learns the names that an item of this module gives.
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
                        Some(name) => self.mean(name, Meaning::Path(import.path)),
                        None => self.globs.push(import.path),
                    }
                }
                return;
            }
            _ => return,
        };
        self.mean(name_of(name), Meaning::Found(Found::ItemOf(module)));
    }

    fn mean(&mut self, name: String, meaning: Meaning) {
        self.names.entry(name).or_default().push(meaning);
    }
}

/// What a `use` imports from this crate, as far as that can be seen without looking names up.
pub(crate) fn imports_of(item: &ItemUse) -> Vec<Import> {
    let mut imports = Vec::new();
    if item.leading_colon.is_none() {
        flatten(&item.tree, &mut Vec::new(), &mut |path, name| {
            let reexported = !matches!(item.vis, Visibility::Inherited);
            imports.push(Import { path, name, reexported });
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

/// A name without the `r#` that it may be written with.
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

/// `a/../b.rs` is `b.rs`, and one file has one path.
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

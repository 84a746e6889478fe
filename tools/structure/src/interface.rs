//! Public items that name a type of another project's crate: a new version of that crate would break their users.

use std::path::{Path, PathBuf};

use quote::ToTokens;
use syn::visit::{self, Visit};
use syn::{
    Attribute, Fields, FnArg, Ident, ImplItem, ImplItemConst, ImplItemFn, ImplItemType, Item,
    ItemImpl, Signature, TraitItemFn, Type, TypePath, Variant, Visibility,
};

use crate::tokens::paths_in;
use crate::tree::{Binding, Module, Tree, name_of};

/// A public item that names a type of another crate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leak {
    /// The file of the item.
    pub file: PathBuf,
    /// The path, as the file names it.
    pub path: String,
    /// The crate.
    pub of: String,
}

/// The paths to `crates` that public items of the crate with this root file name. `read` returns the text of a file.
/// An item that is `#[doc(hidden)]` is not public.
///
/// # Errors
/// A file is missing, or cannot be parsed.
pub fn leaks(
    root: &Path,
    read: &dyn Fn(&Path) -> Option<String>,
    crates: &[String],
) -> Result<Vec<Leak>, String> {
    let tree = Tree::read(root, read)?;
    let mut found = Vec::new();
    for module in &tree.modules {
        visit_public(module, &mut |_, path| {
            if let Some(of) = crate_of(module, path).filter(|name| crates.contains(name)) {
                let path = path.join("::");
                found.push(Leak { file: module.file.clone(), path, of: of.clone() });
            }
        });
    }
    Ok(found)
}

/// The first part of a path, with imports resolved. A name without a `use` is a crate's only if something follows it.
fn crate_of<'a>(module: &'a Module, path: &'a [String]) -> Option<&'a String> {
    match module.scope.names.get(&path[0]).map(Vec::as_slice) {
        Some([Binding::Path(import), ..]) => import.first(),
        Some(_) => None,
        None => (path.len() > 1).then_some(&path[0]),
    }
}

/// Calls `each` for each path in the public items of a module, with the name of the item: of an `impl` that of its type.
/// An item that is `#[doc(hidden)]` is not public.
pub(crate) fn visit_public(module: &Module, each: &mut dyn FnMut(&str, &[String])) {
    let mut public = Public { module, item: String::new(), each };
    module.items.iter().for_each(|item| public.visit_item(item));
}

/// Visits what a user of public items sees.
struct Public<'a> {
    module: &'a Module,
    /// The name of the item that is being visited.
    item: String,
    each: &'a mut dyn FnMut(&str, &[String]),
}

impl Public<'_> {
    fn tokens(&mut self, part: &impl ToTokens) {
        let Public { item, each, .. } = self;
        paths_in(part.to_token_stream(), &[], &mut |path| each(item, path));
    }

    /// False for a type that this module defines and does not make public.
    fn may_be_public(&self, of: &Type) -> bool {
        let Type::Path(TypePath { path, .. }) = of else { return true };
        let is_of = |name: &Ident| path.segments.len() == 1 && path.segments[0].ident == *name;
        !self.module.items.iter().any(|item| match item {
            Item::Struct(item) => is_of(&item.ident) && !is_public(&item.vis),
            Item::Enum(item) => is_of(&item.ident) && !is_public(&item.vis),
            _ => false,
        })
    }

    fn fields(&mut self, fields: &Fields, all: bool) {
        for field in fields {
            if all || is_public(&field.vis) {
                self.tokens(&field.ty);
            }
        }
    }
}

impl Visit<'_> for Public<'_> {
    fn visit_item(&mut self, item: &Item) {
        let Some((name, attributes)) = name_and_attributes(item) else { return };
        if is_hidden(attributes) {
            return;
        }
        self.item = name;
        match item {
            Item::Const(item) if is_public(&item.vis) => self.tokens(&item.ty),
            Item::Static(item) if is_public(&item.vis) => self.tokens(&item.ty),
            Item::Type(item) if is_public(&item.vis) => self.tokens(&item.ty),
            Item::Fn(item) if is_public(&item.vis) => self.visit_signature(&item.sig),
            Item::Enum(item) if is_public(&item.vis) => visit::visit_item_enum(self, item),
            Item::Struct(item) if is_public(&item.vis) => {
                self.tokens(&item.generics);
                self.fields(&item.fields, false);
            }
            Item::Trait(item) if is_public(&item.vis) => {
                self.tokens(&item.supertraits);
                visit::visit_item_trait(self, item);
            }
            Item::Impl(item) if self.may_be_public(&item.self_ty) => self.visit_item_impl(item),
            Item::Use(item) if is_public(&item.vis) => self.tokens(&item.tree),
            _ => {}
        }
    }

    fn visit_variant(&mut self, variant: &Variant) {
        self.fields(&variant.fields, true);
    }

    fn visit_trait_item_fn(&mut self, item: &TraitItemFn) {
        if !is_hidden(&item.attrs) {
            self.visit_signature(&item.sig);
        }
    }

    fn visit_signature(&mut self, signature: &Signature) {
        self.tokens(&signature.generics);
        signature.generics.where_clause.iter().for_each(|clause| self.tokens(clause));
        self.tokens(&signature.output);
        for input in &signature.inputs {
            if let FnArg::Typed(argument) = input {
                self.tokens(&argument.ty);
            }
        }
    }

    fn visit_item_impl(&mut self, item: &ItemImpl) {
        if let Some((path, _)) = &item.trait_ {
            self.tokens(path);
        }
        for part in &item.items {
            match part {
                ImplItem::Fn(ImplItemFn { vis, sig, attrs, .. })
                    if is_public(vis) && !is_hidden(attrs) =>
                {
                    self.visit_signature(sig);
                }
                ImplItem::Const(ImplItemConst { vis, ty, .. }) if is_public(vis) => self.tokens(ty),
                ImplItem::Type(ImplItemType { ty, .. }) => self.tokens(ty),
                _ => {}
            }
        }
    }
}

/// The name of an item and its attributes; of an `impl` the name of its type. None for items without a public part.
fn name_and_attributes(item: &Item) -> Option<(String, &[Attribute])> {
    let (name, attributes) = match item {
        Item::Const(item) => (&item.ident, &item.attrs),
        Item::Static(item) => (&item.ident, &item.attrs),
        Item::Type(item) => (&item.ident, &item.attrs),
        Item::Fn(item) => (&item.sig.ident, &item.attrs),
        Item::Enum(item) => (&item.ident, &item.attrs),
        Item::Struct(item) => (&item.ident, &item.attrs),
        Item::Trait(item) => (&item.ident, &item.attrs),
        Item::Impl(item) => match &*item.self_ty {
            Type::Path(TypePath { path, .. }) => (&path.segments.last()?.ident, &item.attrs),
            _ => return Some((String::new(), &item.attrs)),
        },
        Item::Use(item) => return Some((String::new(), &item.attrs)),
        _ => return None,
    };
    Some((name_of(name), attributes))
}

fn is_public(visibility: &Visibility) -> bool {
    matches!(visibility, Visibility::Public(_))
}

fn is_hidden(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("doc")
            && attribute.meta.to_token_stream().to_string().contains("hidden")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_of_other_crates_are_found_in_public_items_only() {
        let source = "
            use other::{Error, Seen as Alias, thing};
            use std::io;
            mod inner;
            pub fn returned() -> Result<(), Error> { thing() }
            pub(crate) fn own() -> Error { thing() }
            fn private(_: Error) {}
            pub struct Fields { pub public: Vec<Alias>, private: Error }
            pub enum Kind { One(other::a::B) }
            pub trait Does { fn it(&self) -> io::Result<Error>; }
            impl Fields { pub fn get(&self) -> &Alias { let _: Error; todo!() } fn own(&self) -> Error {} }
            impl From<Error> for Fields { fn from(_: Error) -> Fields { todo!() } }
            #[doc(hidden)]
            impl From<Alias> for Kind { fn from(_: Alias) -> Kind { todo!() } }
            pub fn thing() {}
            struct Hidden;
            impl From<Error> for Hidden { fn from(_: Error) -> Hidden { todo!() } }
            struct HiddenOf<'a>(&'a ());
            impl From<Error> for HiddenOf<'_> { fn from(_: Error) -> Self { todo!() } }
            pub use other::again;
        ";
        let read = |path: &Path| match path.to_str()? {
            "lib.rs" => Some(source.to_owned()),
            "inner.rs" => Some("pub fn f(error: Error, inner: other::C) {} struct Error;".into()),
            _ => None,
        };
        let found = leaks("lib.rs".as_ref(), &read, &["other".to_owned()]).unwrap();
        let paths: Vec<_> = found.iter().map(|leak| leak.path.as_str()).collect();
        assert_eq!(
            paths,
            [
                "Error",
                "Alias",
                "other::a::B",
                "Error",
                "Alias",
                "Error",
                "other::again",
                "other::C"
            ]
        );
        assert!(found.iter().all(|leak| leak.of == "other"));
    }
}

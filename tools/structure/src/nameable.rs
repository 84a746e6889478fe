//! Types that a user of a crate meets in the signatures of public items, but cannot name, since the crate does not
//! re-export them. Compares names, not paths: a type of std that has the name of one of ours counts as ours.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use syn::{Item, Visibility};

use crate::interface::visit_public;
use crate::tree::{Tree, imports_of, name_of};

/// The public interface of a crate: the types that it defines, and those that its items mention.
#[derive(Debug)]
pub struct Interface {
    /// The public types and traits that the crate defines, with their files.
    pub types: BTreeSet<(PathBuf, String)>,
    /// The paths that its root file makes public.
    pub reexports: BTreeSet<Vec<String>>,
    /// An item's name, and a name in its public signature.
    pub mentions: BTreeSet<(String, String)>,
}

/// Reads the interface of the crate with this root file. `read` returns the text of a file.
///
/// # Errors
/// A file is missing, or cannot be parsed.
pub fn interface(root: &Path, read: &dyn Fn(&Path) -> Option<String>) -> Result<Interface, String> {
    let tree = Tree::read(root, read)?;
    let (mut types, mut reexports) = (BTreeSet::new(), BTreeSet::new());
    let mut mentions = BTreeSet::new();
    for module in &tree.modules {
        for item in &module.items {
            match item {
                Item::Use(item) if module.file == root && is_public(&item.vis) => {
                    reexports.extend(imports_of(item).into_iter().map(|import| import.path));
                }
                item => types.extend(type_name(item).map(|name| (module.file.clone(), name))),
            }
        }
        visit_public(module, &mut |item, path| {
            let name = path.last().expect("a path has a name");
            mentions.insert((item.to_owned(), name.clone()));
        });
    }
    Ok(Interface { types, reexports, mentions })
}

/// The name of a public type or trait.
fn type_name(item: &Item) -> Option<String> {
    let (visibility, name) = match item {
        Item::Struct(item) => (&item.vis, &item.ident),
        Item::Enum(item) => (&item.vis, &item.ident),
        Item::Trait(item) => (&item.vis, &item.ident),
        Item::Type(item) => (&item.vis, &item.ident),
        _ => return None,
    };
    is_public(visibility).then(|| name_of(name))
}

fn is_public(visibility: &Visibility) -> bool {
    matches!(visibility, Visibility::Public(_))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hidden_and_private_parts_mention_nothing() {
        let source = "
            pub use below::{Named, deep};
            use below::Unseen;
            pub struct Handle { pub seen: Field, own: Private }
            impl Handle {
                pub fn seen(&self, _: &Argument) -> io::Result<Returned> { todo!() }
                #[doc(hidden)]
                pub fn hidden(&self) -> Hidden { todo!() }
                fn private(&self) -> Private { todo!() }
            }
            pub trait Store { fn shown(&self) -> Shown; #[doc(hidden)] fn inner(&self) -> Hidden; }
            pub enum Kind { One(Variant) }
            #[doc(hidden)]
            pub struct Internal { pub hidden: Hidden }
            struct Private;
        ";
        let read = |path: &Path| (path == Path::new("lib.rs")).then(|| source.to_owned());
        let found = interface("lib.rs".as_ref(), &read).unwrap();
        let types: Vec<_> = found.types.iter().map(|(_, name)| name.as_str()).collect();
        assert_eq!(types, ["Handle", "Internal", "Kind", "Store"]);
        assert_eq!(
            found.reexports,
            [vec!["below", "Named"], vec!["below", "deep"]]
                .map(|path| path.into_iter().map(str::to_owned).collect::<Vec<_>>())
                .into()
        );
        let mentions = |item: &str| {
            let of = found.mentions.iter().filter(|(name, _)| name == item);
            of.map(|(_, name)| name.as_str()).collect::<Vec<_>>()
        };
        assert_eq!(mentions("Handle"), ["Argument", "Field", "Result", "Returned"]);
        assert_eq!(mentions("Store"), ["Shown"]);
        assert_eq!(mentions("Kind"), ["Variant"]);
        assert_eq!(mentions("Internal"), [""; 0]);
    }
}

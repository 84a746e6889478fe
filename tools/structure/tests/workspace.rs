//! Tests that no crate of the workspace has import cycles between its files, or imports from a module above, and that
//! the library's public items name no type of a dependency, and none that the crate `uringfs` does not re-export, and
//! that its documentation uses the names of that crate.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use uringfs_structure::{examine, interface, leaks};

#[test]
fn no_files_import_each_other_and_nothing_points_up() {
    let mut violations = String::new();
    for (name, root) in roots() {
        let sources = root.parent().expect("a file has a parent");
        let read = |path: &Path| fs::read_to_string(sources.join(path)).ok();
        let found = examine(root.file_name().expect("the root is a file").as_ref(), &read)
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        if found.files_in_cycles() + found.upward.len() > 0 {
            violations += &found.lines(&name);
        }
    }
    assert!(
        violations.is_empty(),
        "\n{violations}\nRemove the import from the lower file, move what both files need into a file below \
         them, or reorder the modules in the root file."
    );
}

/// Crates that may be in a public signature: the traits of futures_core, futures_io and tokio and the types of bytes are
/// made for that, and zerocopy's traits are bounds of what a folio's frame may hold, which `uringfs` does not re-export.
const INTERFACES: [&str; 5] = ["bytes", "futures_core", "futures_io", "tokio", "zerocopy"];

/// The crate `uringfs` re-exports types of all crates in `crates` but this one.
const NOT_EXPORTED: &str = "crates/sync";

#[test]
fn no_public_item_names_a_type_of_a_dependency() {
    let mut found = String::new();
    for (name, root) in roots() {
        if !name.starts_with("crates/") || name == NOT_EXPORTED {
            continue;
        }
        let sources = root.parent().expect("a file has a parent");
        let read = |path: &Path| fs::read_to_string(sources.join(path)).ok();
        let manifest = fs::read_to_string(sources.join("../Cargo.toml")).expect("a crate has one");
        let root = root.file_name().expect("the root is a file").as_ref();
        let leaks = leaks(root, &read, &dependencies(&manifest))
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        for leak in leaks {
            found +=
                &format!("{name}/src/{}: {}, of {}\n", leak.file.display(), leak.path, leak.of);
        }
    }
    assert!(found.is_empty(), "\n{found}\nUse a type of our own, or make the item `pub(crate)`.");
}

/// The module that the crate `uringfs` re-exports as a whole.
const REEXPORTED_MODULE: &str = "device/backend";

#[test]
fn every_type_in_a_signature_of_the_library_has_a_name_in_it() {
    let mut interfaces = BTreeMap::new();
    // The names, with the crates that define them.
    let mut exported = BTreeSet::new();
    for (name, root) in roots() {
        let Some(name) = name.strip_prefix("crates/") else { continue };
        let sources = root.parent().expect("a file has a parent");
        let read = |path: &Path| fs::read_to_string(sources.join(path)).ok();
        let root = root.file_name().expect("the root is a file").as_ref();
        let found = interface(root, &read).unwrap_or_else(|error| panic!("{name}: {error}"));
        for (file, of_crate) in &found.types {
            let is_in_module = Path::new(name).join(file).starts_with(REEXPORTED_MODULE);
            if name == "uringfs" || is_in_module {
                exported.insert((name.to_owned(), of_crate.clone()));
            }
        }
        if name == "uringfs" {
            exported.extend(found.reexports.iter().filter_map(|path| {
                let of = path.first()?.strip_prefix("uringfs_")?;
                Some((of.to_owned(), path.last()?.clone()))
            }));
        }
        interfaces.insert(name.to_owned(), found);
    }
    let names: BTreeSet<&String> = exported.iter().map(|(_, name)| name).collect();
    let types = interfaces.values().flat_map(|interface| &interface.types);
    let unnamed: BTreeSet<&String> =
        types.map(|(_, name)| name).filter(|name| !names.contains(name)).collect();
    let mut found = String::new();
    for (of, interface) in &interfaces {
        for (item, name) in &interface.mentions {
            if exported.contains(&(of.clone(), item.clone())) && unnamed.contains(name) {
                found += &format!("{item} of {of} mentions {name}\n");
            }
        }
    }
    assert!(
        found.is_empty(),
        "\n{found}\nRe-export the type in crates/uringfs/src/lib.rs, or hide the method with `#[doc(hidden)]` if \
         users do not need it."
    );
}

/// The crate `uringfs` shows the documentation of the crates below it, where their own names and imports for `cfg(doc)`
/// do not exist. Examples import from `uringfs`, which a hidden line stands in for.
#[test]
fn documentation_of_the_library_uses_the_names_of_uringfs() {
    let mut found = String::new();
    for (name, root) in roots() {
        if !name.starts_with("crates/") || name == "crates/uringfs" || name == NOT_EXPORTED {
            continue;
        }
        for file in sources(root.parent().expect("a file has a parent")) {
            let text = fs::read_to_string(&file).expect("a source can be read");
            for line in text.lines().map(str::trim_start) {
                let shown = line.strip_prefix("/// ").or(line.strip_prefix("//! "));
                let imports = shown.is_some_and(|shown| shown.starts_with("use uringfs_"));
                // The crate's own page, which `uringfs` does not show.
                let is_own = file == root && line.starts_with("//!");
                if (imports && !is_own) || line.starts_with("#[cfg(doc)]") {
                    found += &format!("{}: {line}\n", file.display());
                }
            }
        }
    }
    assert!(
        found.is_empty(),
        "\n{found}\nIn an example: `# use uringfs_file as uringfs;`, or a hidden `mod uringfs`. In a link: the full path."
    );
}

/// The files of Rust code below a folder.
fn sources(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("a folder can be listed");
    let paths = entries.map(|entry| entry.expect("a folder can be listed").path());
    paths
        .flat_map(|path| if path.is_dir() { sources(&path) } else { vec![path] })
        .filter(|path| path.extension().is_some_and(|extension| extension == "rs"))
        .collect()
}

/// The crates of other projects in a manifest's dependencies, as code names them.
fn dependencies(manifest: &str) -> Vec<String> {
    let (_, after) = manifest.split_once("[dependencies]\n").unwrap_or_default();
    let names = after.lines().take_while(|line| !line.starts_with('['));
    let names =
        names.filter_map(|line| Some(line.split_once(['.', ' ', '='])?.0.replace('-', "_")));
    names.filter(|name| !name.starts_with("uringfs") && !INTERFACES.contains(&&**name)).collect()
}

/// The root files of the workspace, keyed by the folders of their crates. The key of a program beside a library ends
/// with its file name.
fn roots() -> BTreeMap<String, PathBuf> {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut roots = BTreeMap::new();
    for group in ["bindings", "crates", "exports", "tools"] {
        let folders = fs::read_dir(workspace.join(group)).expect("the workspace has this folder");
        for folder in folders {
            let folder = folder.expect("a folder can be listed").path();
            let name = format!(
                "{group}/{}",
                folder.file_name().expect("a listed folder has a name").display()
            );
            let [library, program] =
                ["lib.rs", "main.rs"].map(|file| folder.join("src").join(file));
            match (library.exists(), program.exists()) {
                (true, true) => {
                    roots.insert(format!("{name}/main.rs"), program);
                    roots.insert(name, library);
                }
                (true, false) => drop(roots.insert(name, library)),
                (false, true) => drop(roots.insert(name, program)),
                // A leftover folder of another branch: cargo refuses a package without either file.
                (false, false) => {}
            }
        }
    }
    assert!(roots.len() > 1, "{} has no crates", workspace.display());
    roots
}

//! In each crate of the workspace no files import each other in a circle, and nothing points up.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use uringfs_structure::examine;

#[test]
fn no_files_import_each_other_and_nothing_points_up() {
    let mut wrong = String::new();
    for (name, root) in roots() {
        let sources = root.parent().expect("a file is in a folder");
        let read = |path: &Path| fs::read_to_string(sources.join(path)).ok();
        let found = examine(root.file_name().expect("it is a file").as_ref(), &read)
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        if found.circled() + found.up.len() > 0 {
            wrong += &found.lines(&name);
        }
    }
    assert!(
        wrong.is_empty(),
        "\n{wrong}\nLet the lower file do without the higher, move what both need into a file below, or list the \
         modules of the root file in their order."
    );
}

/// The root files of the workspace, by the folders of their crates; a program that is beside a
/// library has its file's name too.
fn roots() -> BTreeMap<String, PathBuf> {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut roots = BTreeMap::new();
    for group in ["crates", "tools"] {
        let folders = fs::read_dir(workspace.join(group)).expect("the workspace has this folder");
        for folder in folders {
            let folder = folder.expect("a folder can be listed").path();
            let name = format!("{group}/{}", folder.file_name().expect("it is one").display());
            let [library, program] =
                ["lib.rs", "main.rs"].map(|file| folder.join("src").join(file));
            match (library.exists(), program.exists()) {
                (true, true) => {
                    roots.insert(format!("{name}/main.rs"), program);
                    roots.insert(name, library);
                }
                (true, false) => drop(roots.insert(name, library)),
                (false, true) => drop(roots.insert(name, program)),
                // Cargo refuses a package without either; a folder may be left from another branch.
                (false, false) => {}
            }
        }
    }
    assert!(roots.len() > 1, "{} has no crates", workspace.display());
    roots
}

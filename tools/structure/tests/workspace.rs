//! Tests that no crate of the workspace has import cycles between its files, or imports from a module above.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use uringfs_structure::examine;

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

/// The root files of the workspace, keyed by the folders of their crates. The key of a program beside a library ends
/// with its file name.
fn roots() -> BTreeMap<String, PathBuf> {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut roots = BTreeMap::new();
    for group in ["crates", "tools"] {
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

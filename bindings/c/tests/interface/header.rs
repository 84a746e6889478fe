//! The header: it is the one that the sources make, and compilers accept it.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use crate::harness::{Language, Library, declared_functions, folder, run, run_compiler};

/// The sources with exported functions, in the order of the header.
const SOURCES: [&str; 12] = [
    "version",
    "error",
    "volume",
    "file",
    "space",
    "cached",
    "directory",
    "links",
    "pool",
    "reactor",
    "queue",
    "transfers",
];

#[test]
fn the_committed_header_is_the_one_that_the_sources_make() {
    let config = cbindgen::Config::from_file(folder().join("cbindgen.toml"))
        .expect("the settings are right");
    let sources = SOURCES.map(|name| folder().join("src").join(name).with_extension("rs"));
    let builder =
        sources.iter().fold(cbindgen::Builder::new().with_config(config), |builder, source| {
            builder.with_src(source)
        });
    let mut made = Vec::new();
    builder.generate().expect("cbindgen understands the sources").write(&mut made);
    let committed = folder().join("include/uringfs.h");
    if fs::read(&committed).unwrap_or_default() == made {
        return;
    }
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("uringfs.h");
    fs::write(&path, &made).expect("the target directory can be written");
    panic!(
        "{} is not what the sources make: look at the difference, then cp {} {}",
        committed.display(),
        path.display(),
        committed.display()
    );
}

#[test]
fn the_header_is_strict_c99_c11_and_cpp() {
    for (language, standard) in [
        (Language::C, "c99"),
        (Language::C, "c11"),
        (Language::Cpp, "c++11"),
        (Language::Cpp, "c++20"),
    ] {
        let standard = format!("-std={standard}");
        let options = [&*standard, "-pedantic", "-Wall", "-Wextra", "-Werror", "-fsyntax-only"];
        let input = "#include <uringfs.h>\n#include <uringfs.h>\n";
        run_compiler(language, &options, Some(input));
    }
}

#[test]
fn the_shared_library_has_the_functions_of_the_header_with_versions_and_no_other() {
    let declared = declared_functions();
    assert!(declared.len() > 40, "{declared:?}");
    let library = Library::installed();
    let mut command = Command::new("objdump");
    command.arg("-T").arg(library.prefix().join("lib/liburingfs.so"));
    let printed = run(&mut command, "apt-get install binutils");
    let exported: BTreeSet<_> = printed
        .lines()
        .filter(|line| line.contains(" .text"))
        .map(|line| line.split_whitespace().rev().take(2).collect::<Vec<_>>())
        .map(|words| (words[0].to_owned(), words[1].to_owned()))
        .collect();
    let expected = declared.into_iter().map(|name| (name, "URINGFS_0.1".to_owned())).collect();
    assert_eq!(exported, expected, "liburingfs.map lists the functions of each version");
}

//! The programs of `tests/programs`, each of which tests calls of the interface, on each queue.

use crate::harness::{Library, Program, folder};

#[test]
fn volumes_directories_and_structs_of_all_sizes() {
    let folder = tempfile::tempdir().unwrap();
    Program::test("volumes.c").run([folder.path().join("image")]);
}

#[test]
fn files_that_block() {
    Program::test("files.c").run::<&str>([]);
}

#[test]
fn dropped_data_is_read_again() {
    let folder = tempfile::tempdir().unwrap();
    Program::test("cached.c").run([folder.path().join("image")]);
}

#[test]
fn operations_on_each_queue() {
    let program = Program::test("reactors.c");
    for queue in ["0", "1", "2", "3", "4"] {
        let folder = tempfile::tempdir().unwrap();
        program.run([queue.as_ref(), folder.path().join("image").as_os_str()]);
    }
}

#[test]
fn a_panic_leaves_the_program_alive() {
    // The shared library has no symbol for a planted panic.
    let library = Library::installed();
    let flags = library.pkg_config(&["--cflags", "--libs", "--static", "liburingfs"]);
    let archive = library.prefix().join("lib/liburingfs.a").display().to_string();
    let flags: Vec<_> = flags
        .into_iter()
        .map(|flag| if flag == "-luringfs" { archive.clone() } else { flag })
        .collect();
    let program = Program::link(&folder().join("tests/programs/panics.c"), library, &flags);
    assert_eq!(program.run::<&str>([]), "alive\n");
}

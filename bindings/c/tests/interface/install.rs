//! The installation by `bindings/c/build` is complete, and programs that were built for an older library run with it.

use std::fs;
use std::process::Command;

use crate::harness::{Library, Program, declared_functions, folder, run};

#[test]
fn the_library_is_found_by_pkg_config_and_by_its_name() {
    let library = Library::installed();
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(library.pkg_config(&["--modversion", "liburingfs"]), [version]);
    let lib = library.prefix().join("lib");
    for link in ["liburingfs.so", "liburingfs.so.0"] {
        let target = fs::canonicalize(lib.join(link)).expect("the link leads somewhere");
        assert_eq!(
            target,
            fs::canonicalize(&lib).unwrap().join(format!("liburingfs.so.{version}"))
        );
    }
    let mut command = Command::new("objdump");
    let printed = run(command.arg("-p").arg(lib.join("liburingfs.so")), "apt-get install binutils");
    let fields: Vec<Vec<&str>> =
        printed.lines().map(|line| line.split_whitespace().collect()).collect();
    assert!(fields.contains(&vec!["SONAME", "liburingfs.so.0"]), "{printed}");
    // No library but the C compiler's own.
    for needed in fields.iter().filter(|words| words.first() == Some(&"NEEDED")) {
        let known = [
            "libc.so.6",
            "libm.so.6",
            "libgcc_s.so.1",
            "ld-linux-x86-64.so.2",
            "ld-linux-aarch64.so.1",
        ];
        assert!(known.contains(&needed[1]), "{needed:?}");
    }
}

#[test]
fn every_function_has_a_man_page() {
    let library = Library::installed();
    let pages = library.prefix().join("share/man/man3");
    for name in declared_functions().iter().map(String::as_str).chain(["uringfs"]) {
        let page = pages.join(name).with_extension("3");
        let mut command = Command::new("groff");
        command
            .args(["-man", "-Tutf8", "-P-cbou", "-ww"])
            .arg(&page)
            .stderr(std::process::Stdio::piped());
        let output = command.output().unwrap_or_else(|error| {
            panic!("groff: {error}; install it: apt-get install groff-base")
        });
        let (text, warnings) =
            (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success() && warnings.is_empty(), "{name}: {warnings}");
        for section in ["NAME", "SYNOPSIS", "DESCRIPTION", "SEE ALSO"] {
            assert!(text.contains(section), "{name} has no {section}:\n{text}");
        }
        assert!(text.matches(name).count() >= 3, "{name}:\n{text}");
    }
}

/// `objects/VERSION` has objects of the programs of that version, which were compiled with its header. Later libraries
/// run them.
#[test]
fn programs_of_older_headers_run_with_this_library() {
    let objects = folder().join("objects");
    let mut versions = 0;
    for version in fs::read_dir(&objects).expect("there are objects") {
        let version = version.expect("the folder can be listed").path();
        // Objects are for one architecture.
        let Ok(entries) = fs::read_dir(version.join(std::env::consts::ARCH)) else { continue };
        for object in entries {
            let object = object.expect("the folder can be listed").path();
            let program = Program::compile(&object, &[]);
            let folder = tempfile::tempdir().unwrap();
            let image = folder.path().join("image");
            match object.file_stem().and_then(|name| name.to_str()) {
                Some("reactors") => program.run(["1".as_ref(), image.as_os_str()]),
                Some("files") => program.run::<&str>([]),
                _ => program.run([image]),
            };
        }
        versions += 1;
    }
    let is_known = ["x86_64", "aarch64"].contains(&std::env::consts::ARCH);
    assert!(versions > 0 || !is_known, "{} is empty", objects.display());
}

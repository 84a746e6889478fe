//! The example programs do what they say: by themselves, under AddressSanitizer and under valgrind's memcheck.

use std::ffi::OsString;
use std::process::Command;

use crate::harness::{Program, folder};

/// An example, the further options to compile it, whether it takes the path of an image, and what it prints.
struct Example {
    name: &'static str,
    options: &'static [&'static str],
    takes_image: bool,
    prints: &'static str,
}

const EXAMPLES: [Example; 5] = [
    Example { name: "log.c", options: &[], takes_image: true, prints: "256 records\n" },
    Example { name: "cache.c", options: &[], takes_image: true, prints: "2048 values\n" },
    Example {
        name: "epoll.c",
        options: &["-pthread"],
        takes_image: false,
        prints: "256 replies\n",
    },
    Example {
        name: "raii.cpp",
        options: &[],
        takes_image: true,
        prints: "no such file\none, two\n/words\n",
    },
    Example { name: "uv.c", options: &["-luv"], takes_image: false, prints: "64 blocks\n" },
];

impl Example {
    fn compile(&self, further: &[&str]) -> Program {
        Program::compile(
            &folder().join("examples").join(self.name),
            &[self.options, further].concat(),
        )
    }

    /// Runs it on a new image, perhaps by another program.
    fn check(&self, program: &Program, wrapper: Option<Command>) {
        let folder = tempfile::tempdir().unwrap();
        let image = folder.path().join("image").into_os_string();
        let arguments: Vec<OsString> = if self.takes_image { vec![image] } else { Vec::new() };
        let printed = match wrapper {
            Some(wrapper) => program.run_under(wrapper, arguments),
            None => program.run(arguments),
        };
        assert_eq!(printed, self.prints, "{}", self.name);
    }
}

#[test]
fn examples_do_what_they_say() {
    for example in EXAMPLES {
        example.check(&example.compile(&[]), None);
    }
}

#[test]
fn examples_are_clean_under_address_sanitizer() {
    for example in EXAMPLES {
        let options = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"];
        example.check(&example.compile(&options), None);
    }
}

#[test]
fn examples_are_clean_under_memcheck() {
    for example in EXAMPLES {
        example.check(&example.compile(&[]), Some(memcheck()));
    }
}

/// Memcheck, which fails with the program's first error, and with memory that is lost.
pub fn memcheck() -> Command {
    let mut valgrind = Command::new("valgrind");
    valgrind.args(["--quiet", "--error-exitcode=1", "--leak-check=full"]);
    valgrind.args(["--errors-for-leak-kinds=definite", "--show-leak-kinds=definite"]);
    valgrind
}

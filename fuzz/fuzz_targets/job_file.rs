//! Job files of any bytes: parsed into jobs, or refused with one line that says where. Never a
//! panic, a hang, or memory that grows with anything but the file.

#![no_main]

use libfuzzer_sys::fuzz_target;
use uringfs_lab::ErrorKind;
use uringfs_lab::job::{Parser, UnknownKeys};

/// Far more than any message needs; a file's bytes must not come back as its error.
const LONGEST_MESSAGE: usize = 4096;

/// An environment with what job files use, and what could hang an expansion.
fn variable(name: &str) -> Option<String> {
    let value = match name {
        "QD" => "64",
        "SELF" => "${SELF}",
        "A" => "${B}",
        "B" => "${A}",
        "TWICE" => "${ONCE}${ONCE}",
        "ONCE" => "4k",
        _ => return None,
    };
    Some(value.to_owned())
}

fuzz_target!(|bytes: &[u8]| {
    for unknown in [UnknownKeys::Refuse, UnknownKeys::Ignore] {
        let mut parser = Parser::new(&variable, unknown);
        match parser.bytes(bytes, "job.fio").and_then(|()| parser.finish()) {
            Ok(set) => {
                assert!(!set.jobs.is_empty());
                // A run divides its bytes among them.
                let is_named = |names: &str| names.split(':').any(|name| !name.is_empty());
                let names = set.jobs.iter().filter_map(|job| job.options.filename.as_deref());
                assert!(names.into_iter().all(is_named));
                set.warnings.iter().for_each(|warning| assert_one_line(warning));
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Input);
                assert_one_line(&error.to_string());
            }
        }
    }
});

/// Messages go to terminals, so they hold nothing that a terminal obeys.
fn assert_one_line(message: &str) {
    assert!(!message.is_empty());
    assert!(message.len() <= LONGEST_MESSAGE, "{} bytes", message.len());
    assert!(!message.contains(char::is_control), "{message:?}");
}

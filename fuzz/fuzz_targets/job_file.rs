//! Job files of arbitrary bytes: parsed into jobs, or refused with a line for each problem that names the position. No panic, no hang,
//! and memory grows only with the file.

#![no_main]

use libfuzzer_sys::fuzz_target;
use uringfs_lab::ErrorKind;
use uringfs_lab::job::{Parser, UnknownKeys};

/// Far more bytes than any message needs. An error must not repeat the content of the file.
const MAX_MESSAGE_BYTES: usize = 4096;

/// An environment with a variable that job files use, and with variables that could make an expansion endless.
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
        parser.leave_out_iologs();
        match parser.bytes(bytes, "job.fio").and_then(|()| parser.finish()) {
            Ok(set) => {
                assert!(!set.jobs.is_empty());
                // A run divides its bytes among the files, so there must be one.
                let is_named = |names: &str| names.split(':').any(|name| !name.is_empty());
                let names = set.jobs.iter().filter_map(|job| job.options.filename.as_deref());
                assert!(names.into_iter().all(is_named));
                set.warnings.iter().for_each(|warning| assert_one_line(warning));
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Input);
                assert_one_line(&error.to_string());
                assert!(error.details().len() <= 51);
                error.details().iter().for_each(|line| assert_one_line(line));
            }
        }
    }
});

/// Messages go to terminals, so they contain no control characters.
fn assert_one_line(message: &str) {
    assert!(!message.is_empty());
    assert!(message.len() <= MAX_MESSAGE_BYTES, "{} bytes", message.len());
    assert!(!message.contains(char::is_control), "{message:?}");
}

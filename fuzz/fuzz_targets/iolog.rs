//! Traces of arbitrary bytes: parsed into steps that can be replayed, or refused in one short line. No panic, no hang, and memory
//! grows only with the bytes.

#![no_main]

use libfuzzer_sys::fuzz_target;
use uringfs_lab::job::{IoLog, ReplayAction, ReplayOptions};

/// Far more bytes than any message needs. An error must not repeat the content of the trace.
const MAX_MESSAGE_BYTES: usize = 1024;

fuzz_target!(|bytes: &[u8]| {
    let scaled = ReplayOptions { time_scale: 1, scale: 3, align: 512, ..ReplayOptions::default() };
    let redirected = ReplayOptions { redirect: Some("/x".into()), ..ReplayOptions::default() };
    for options in [ReplayOptions::default(), scaled, redirected] {
        match IoLog::parse(bytes, &options) {
            Ok(log) => {
                assert!(log.steps.len() <= bytes.len() && log.files.len() <= log.steps.len());
                assert!(log.steps.is_sorted_by_key(|step| step.due_ns));
                for step in &log.steps {
                    assert!((step.file as usize) < log.files.len());
                    let is_io = matches!(step.action, ReplayAction::Io(_));
                    assert_eq!(is_io, step.length > 0);
                    assert!(step.offset + u64::from(step.length) <= log.end_of(step.file));
                }
            }
            Err(problem) => {
                assert!(!problem.is_empty() && problem.len() <= MAX_MESSAGE_BYTES);
                assert!(!problem.contains(char::is_control), "{problem:?}");
            }
        }
    }
});

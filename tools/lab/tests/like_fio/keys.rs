//! Compares the table of keys with the installed fio.

use std::process::Command;
use uringfs_lab::job::{UNSUPPORTED, find_key};

/// A message about a key of fio must not call it unknown.
#[test]
fn every_key_of_fio_is_supported_or_explained() {
    let output = Command::new("fio").arg("--cmdhelp=all").output().expect("fio must be installed");
    let text = String::from_utf8(output.stdout).unwrap();
    let first_words = text.lines().filter_map(|line| line.split_whitespace().next());
    let names: Vec<&str> = first_words.map(|word| word.trim_end_matches(':')).collect();
    assert!(names.len() > 200, "{text}");
    let is_known = |name: &str| {
        find_key(name).is_some() || UNSUPPORTED.iter().any(|(known, _)| *known == name)
    };
    let unknown: Vec<&str> = names.into_iter().filter(|name| !is_known(name)).collect();
    assert_eq!(unknown, [] as [&str; 0]);
}

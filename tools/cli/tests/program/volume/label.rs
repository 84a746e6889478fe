//! `label` prints and changes the label.

use super::{command, refused, run_ok, volume, write};
use serde_json::{Value, json};
use std::process::Stdio;

#[test]
fn a_label_is_printed_and_changed() {
    let folder = volume();
    let folder = folder.path();
    write(folder, "large", vec![1; 4 << 20]);
    run_ok(folder, ["put", "-q", "large", "v:/"]);
    assert_eq!(run_ok(folder, ["label", "v"]), "of a test\n");
    assert_eq!(run_ok(folder, ["label", "v", "new"]), "");
    assert_eq!(run_ok(folder, ["label", "v"]), "new\n");
    let json: Value = serde_json::from_str(&run_ok(folder, ["label", "--json", "v", ""])).unwrap();
    assert_eq!(json, json!({"schema": 1, "label": "", "previous": "new"}));
    assert!(run_ok(folder, ["check", "v"]).contains("metadata is clean"));
    assert!(run_ok(folder, ["info", "v"]).contains("label"));
    refused(folder, ["label", "v", &"x".repeat(65)], "at most 64 bytes");
    refused(folder, ["label", "none"], "none does not exist");
    write(folder, "text", vec![b'x'; 1 << 20]);
    refused(folder, ["label", "text"], "text: no volume, or a damaged one");
    refused(folder, ["label", "text", "new"], "text: ");
    // A reader that is blocked on its output has the volume open.
    let mut reader = command(folder, ["cat", "v:/large"]);
    let mut reader = reader.stdout(Stdio::piped()).spawn().unwrap();
    let mut first = [0];
    std::io::Read::read_exact(reader.stdout.as_mut().unwrap(), &mut first).unwrap();
    refused(folder, ["label", "v", "other"], "has the volume open");
    assert_eq!(run_ok(folder, ["label", "v"]), "\n");
    drop(reader.stdout.take());
    reader.wait().unwrap();
}

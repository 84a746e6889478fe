//! The documents of `--json`.

use super::{run, run_ok, volume, write};
use serde_json::{Value, json};
use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;

fn document(folder: &Path, arguments: &[&str]) -> Value {
    let document: Value = serde_json::from_str(&run_ok(folder, arguments)).unwrap();
    assert_eq!(document["schema"], 1, "{arguments:?}");
    document
}

#[test]
fn every_report_has_a_document_with_a_schema() {
    let folder = volume();
    let folder = folder.path();
    write(folder, "a", "of a");
    assert_eq!(document(folder, &["put", "--json", "a", "v"])["files"], 1);
    run_ok(folder, ["mkdir", "v:/d"]);
    run_ok(folder, ["ln", "-s", "a", "v:/d/link"]);
    run_ok(folder, ["xattr", "set", "user.x", "y", "v:/a"]);
    assert_eq!(document(folder, &["get", "--json", "v", "out"])["directories"], 2);
    let stat = document(folder, &["stat", "--json", "v:/a", "v:/d/link"])["files"].clone();
    assert_eq!((&stat[0]["path"], &stat[0]["size"]), (&json!("/a"), &json!(4)));
    assert_eq!((&stat[1]["kind"], &stat[1]["target"]), (&json!("symlink"), &json!("a")));
    let listings = document(folder, &["ls", "--json", "-R", "v"])["listings"].clone();
    assert_eq!(listings[0]["directory"], "/");
    let named = |stat: &Value, name: &str| {
        let mut file = stat.clone();
        file["path"] = name.into();
        file
    };
    assert_eq!(listings[0]["files"][0], named(&stat[0], "a"));
    assert_eq!(listings[1]["files"], json!([named(&stat[1], "link")]));
    assert_eq!(
        document(folder, &["ls", "--json", "v:/a"])["listings"],
        json!([{"files": [stat[0]]}])
    );
    assert_eq!(document(folder, &["find", "v", "-type", "l,f", "-json"])["files"], stat);
    let tree = document(folder, &["tree", "--json", "v"]);
    assert_eq!(tree["files"][2], json!({"path": "/d/link", "kind": "symlink", "level": 2}));
    assert_eq!((&tree["directories"], &tree["others"]), (&json!(1), &json!(2)));
    let usage = document(folder, &["du", "--json", "v"])["usage"].clone();
    assert_eq!(usage[1], json!({"path": "/", "bytes": 4096}));
    let attributes = document(folder, &["xattr", "list", "--json", "v:/a"])["files"].clone();
    assert_eq!(attributes, json!([{"path": "/a", "attributes": [{"name": "user.x"}]}]));
    assert_eq!(document(folder, &["df", "--json", "v"])["volumes"][0]["target"], "v");
    assert_eq!(document(folder, &["check", "--json", "v"])["sound"], true);
    assert_eq!(document(folder, &["info", "--json", "v"])["volume"]["label"], "of a test");
}

#[test]
fn a_check_that_fails_has_a_document_with_the_error() {
    let folder = volume();
    let folder = folder.path();
    let file = File::options().write(true).open(folder.join("v")).unwrap();
    for block in [0, 16] {
        file.write_all_at(&[0; 4096], block * 4096).unwrap();
    }
    let of_check = |arguments: &[&str]| {
        let output = run(folder, arguments);
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(4) && error.lines().count() == 1, "{error}");
        let document: Value = serde_json::from_slice(&output.stdout).unwrap();
        let line = format!("uringfs: v: {}\n", document["error"].as_str().unwrap());
        assert!(document["sound"] == false && document["schema"] == 1, "{document}");
        assert_eq!(document["findings"], json!([]));
        (line, error)
    };
    let (line, error) = of_check(&["check", "--json", "v"]);
    assert_eq!(line, error);
    assert!(line.contains("superblock in block 16: no superblock"), "{line}");
    file.write_all_at(b"SWAPSPACE2", 4096 - 10).unwrap();
    let (line, error) = of_check(&["check", "--repair", "--json", "v"]);
    assert_eq!(line, error);
    assert!(line.contains("holds a swap area"), "{line}");
}

#[test]
fn names_that_are_not_text_keep_their_bytes() {
    let folder = volume();
    let folder = folder.path();
    std::fs::write(folder.join(OsStr::from_bytes(b"a\xff")), "of a").unwrap();
    let put: [&OsStr; 3] = ["put".as_ref(), OsStr::from_bytes(b"a\xff"), "v".as_ref()];
    run_ok(folder, put);
    let listings = document(folder, &["ls", "--json", "v"])["listings"].clone();
    let file = &listings[0]["files"][0];
    assert_eq!((&file["path"], &file["path_base64"]), (&json!("a\u{fffd}"), &json!("Yf8=")));
}

#[test]
fn commands_on_whole_volumes_print_json() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let made = document(folder, &["mkfs", "v", "--size", "16M", "-L", "x", "--json"]);
    assert_eq!(
        (&made["size"], &made["created"], &made["label"]),
        (&json!(16 << 20), &json!(true), &json!("x"))
    );
    let dry = document(folder, &["mkfs", "-n", "w", "--size", "16M", "--json"]);
    assert_eq!((&dry["size"], &dry["created"]), (&json!(16 << 20), &json!(false)));
    let resized = document(folder, &["resize", "v", "+1M", "--json"]);
    assert_eq!((&resized["size"], &resized["previous"]), (&json!(17 << 20), &json!(16 << 20)));
    let same = document(folder, &["resize", "v", "17M", "--json"]);
    assert_eq!((&same["size"], &same["previous"]), (&json!(17 << 20), &json!(17 << 20)));
    run_ok(folder, ["xattr", "set", "user.x", "y", "v:/"]);
    let value = document(folder, &["xattr", "get", "user.x", "v:/", "--json"]);
    assert_eq!(
        (&value["path"], &value["name"], &value["value"]),
        (&json!("/"), &json!("user.x"), &json!("y"))
    );
}

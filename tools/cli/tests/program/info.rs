//! Tests of `uringfs info`.

use super::process::tool;
use super::root::{as_root, is_root};
use serde_json::Value;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

fn info(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_uringfs")).arg("info").args(arguments).output().unwrap()
}

fn json(target: &str) -> Value {
    let output = info(&[target, "--json"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// A regular file of whole blocks that is not empty.
fn image(folder: &Path) -> String {
    let path = folder.join("image");
    std::fs::write(&path, vec![7; 1 << 20]).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn every_line_of_text_has_a_reason() {
    let folder = tempfile::tempdir().unwrap();
    let image = image(folder.path());
    let output = info(&[&image]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.starts_with(&format!("file {image}\n")), "{text}");
    for part in ["volatile cache", "fua", "discard", "queue", "registered memory", "\ntier: "] {
        assert!(text.contains(part), "no {part} in\n{text}");
    }
    for line in text.lines().filter(|line| line.starts_with("  ")) {
        let words = line.split_whitespace().count();
        let alone = ["rotational", "writable"].iter().any(|name| line.trim().starts_with(name));
        assert!(alone || words >= 3, "no reason: {line}");
    }
}

#[test]
fn json_has_the_geometry_the_queue_and_every_feature() {
    let folder = tempfile::tempdir().unwrap();
    let image = image(folder.path());
    let before = std::fs::read(&image).unwrap();
    let found = json(&image);
    assert_eq!(found["target"], format!("file {image}"));
    assert_eq!(found["geometry"]["size"], 1 << 20);
    assert_eq!(found["geometry"]["volatile_cache"], true);
    assert_eq!(found["geometry"]["writable"], true);
    for key in ["block_size", "memory_alignment", "max_transfer"] {
        assert!(found["geometry"][key].as_u64().unwrap() > 0, "{key}");
    }
    assert!(found["geometry"]["fua"].is_boolean());
    assert!(!found["queue"]["reason"].as_str().unwrap().is_empty());
    let measured = &found["queue"]["measured"];
    if !measured.is_null() {
        assert_eq!(measured["depths"], serde_json::json!([1, 32]));
        let queues = measured["queues"].as_array().unwrap();
        let rounds = |queue: &Value| queue["rounds"].as_array().unwrap().len();
        assert!(queues.iter().all(|queue| rounds(queue) == rounds(&queues[0])), "{measured}");
        let rates = |round: &Value| round["reads_per_second"].as_array().unwrap().len();
        let queues = queues.iter().flat_map(|queue| queue["rounds"].as_array().unwrap());
        assert!(queues.clone().all(|round| rates(round) == 2 && round["disturbed"].is_boolean()));
    }
    assert!(!found["registered_memory"]["reason"].as_str().unwrap().is_empty());
    assert!(!found["tier"].as_str().unwrap().is_empty());
    for feature in found["features"].as_array().unwrap() {
        let used = feature["used"].as_bool().unwrap();
        assert_eq!(used, feature["reason"].is_null(), "{feature}");
    }
    assert_eq!(std::fs::read(&image).unwrap(), before, "info writes nothing");
}

#[test]
fn built_in_devices_are_described() {
    let null = json("null:1g");
    assert_eq!(null["geometry"]["size"], 1 << 30);
    assert_eq!(json("memory:1m")["queue"]["name"], "sync");
    let sim = json("sim:1m,cache=volatile,block=4k");
    assert_eq!(sim["queue"]["name"], "own");
    assert_eq!(
        (&sim["geometry"]["fua"], &sim["geometry"]["block_size"]),
        (&false.into(), &4096.into())
    );
}

#[test]
fn an_invalid_target_is_one_line_and_exit_code_2() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().to_str().unwrap();
    for (target, part) in [
        (&*format!("{folder}/missing"), "does not exist"),
        (folder, "is a directory"),
        ("/dev/null", "neither a file nor a block device"),
        ("memory:much", "invalid size"),
        ("sim:1m,unit=3", "did you mean 'units'"),
    ] {
        refused(&info(&[target]), part);
    }
}

fn refused(output: &Output, part: &str) {
    let line = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{line}");
    assert!(line.contains(part) && line.lines().count() == 1, "{line}");
    assert!(output.stdout.is_empty());
}

#[test]
fn a_read_only_file_is_described_and_an_unreadable_one_refused() {
    let folder = tempfile::tempdir().unwrap();
    let image = image(folder.path());
    let with_mode = |mode| {
        std::fs::set_permissions(&image, std::fs::Permissions::from_mode(mode)).unwrap();
        let program = env!("CARGO_BIN_EXE_uringfs");
        // root can read every file, but not without its capabilities.
        let mut command = match is_root() {
            true => {
                let mut command = Command::new("setpriv");
                command.args(["--bounding-set=-all", program]);
                command
            }
            false => Command::new(program),
        };
        command.args(["info", &image, "--json"]).output().unwrap()
    };
    refused(&with_mode(0o000), "no permission to read");
    let output = with_mode(0o400);
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(found["geometry"]["writable"], false);
    assert!(found["reasons"]["writable"].as_str().unwrap().contains("no permission to write"));
    assert!(found["reasons"]["discard"].as_str().unwrap().contains("not known"));
}

#[test]
fn as_root_a_mounted_device_is_opened_read_only() {
    if !as_root() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let mounted = Mounted::new(folder.path());
    let found = json(&mounted.device);
    assert_eq!(found["target"], format!("block device {}", mounted.device));
    assert_eq!(found["geometry"]["size"], 8 << 20);
    assert_eq!(found["geometry"]["writable"], false);
    assert!(found["reasons"]["writable"].as_str().unwrap().contains("mounted"));
}

/// A file system in a file, mounted over a loop device. Unmounted on drop.
struct Mounted {
    device: String,
    mount_point: std::path::PathBuf,
}

impl Mounted {
    fn new(folder: &Path) -> Mounted {
        let (image, mount_point) = (folder.join("disk"), folder.join("place"));
        std::fs::File::create(&image).unwrap().set_len(8 << 20).unwrap();
        std::fs::create_dir(&mount_point).unwrap();
        let (image, at) = (image.to_str().unwrap(), mount_point.to_str().unwrap());
        tool("mkfs.ext4", &["-q", image]);
        tool("mount", &["-o", "loop", image, at]);
        let mut mounted = Mounted { device: String::new(), mount_point: mount_point.clone() };
        mounted.device = tool("findmnt", &["-n", "-o", "SOURCE", at]).trim().to_owned();
        mounted
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        tool("umount", &[self.mount_point.to_str().unwrap()]);
    }
}

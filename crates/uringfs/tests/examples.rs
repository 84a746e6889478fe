//! Runs every example and checks its output. `cargo test` builds the examples first; before `--test examples` alone,
//! run `cargo build --examples`.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use uringfs::{FormatOptions, Volume};

/// Runs a built example.
fn example<S: AsRef<OsStr>>(name: &str, arguments: &[S]) -> Output {
    // Tests are in `deps`; `examples` is its sibling.
    let this = std::env::current_exe().unwrap();
    let program = this.parent().and_then(Path::parent).unwrap().join("examples").join(name);
    assert!(program.exists(), "{} is not built: cargo build --examples", program.display());
    Command::new(program).args(arguments).output().unwrap()
}

/// The standard output of an example, which must succeed.
fn output_of<S: AsRef<OsStr>>(name: &str, arguments: &[S]) -> String {
    let output = example(name, arguments);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name}: {error}");
    assert!(error.is_empty(), "{name}: {error}");
    String::from_utf8(output.stdout).unwrap()
}

const NO_ARGUMENTS: [&str; 0] = [];

fn create_file(folder: &Path, size: usize) -> PathBuf {
    let path = folder.join("image");
    let bytes: Vec<u8> = (0..size).map(|index| (index / 7 % 251) as u8).collect();
    std::fs::write(&path, bytes).unwrap();
    path
}

#[test]
fn read_image_agrees_with_sum() {
    let folder = tempfile::tempdir().unwrap();
    // Not a multiple of the block, nor of the length of a read.
    let path = create_file(folder.path(), (3 << 20) + 12_345);
    let sum = Command::new("sum").arg(&path).output().expect("sum of coreutils");
    let sum = String::from_utf8(sum.stdout).unwrap();
    assert_eq!(output_of("read_image", &[&path]), sum);
    assert!(output_of("read_image", &NO_ARGUMENTS).contains(" 8192 "));
}

#[test]
fn example_tokens_reads_only_on_the_fast_path() {
    let folder = tempfile::tempdir().unwrap();
    let path = create_file(folder.path(), 4 << 20);
    assert!(output_of("tokens", &[&path]).contains("fast-path reads: 20000\n"));
    assert!(output_of("tokens", &NO_ARGUMENTS).contains("fast-path reads: 20000\n"));
}

#[test]
fn background_reads_compares_one_reactor_with_two() {
    let folder = tempfile::tempdir().unwrap();
    let path = create_file(folder.path(), 64 << 20);
    let output = output_of("background_reads", &[path.as_os_str(), OsStr::new("1")]);
    let measured = output.lines().filter(|line| line.contains(" reads/s with 1, ")).count();
    assert_eq!(measured, 9, "{output}");
}

#[test]
fn own_event_loop_answers_its_client() {
    assert_eq!(output_of("own_event_loop", &NO_ARGUMENTS), "256 blocks requested and answered\n");
}

#[test]
fn tokio_awaits_files() {
    let output = output_of("tokio_current_thread", &NO_ARGUMENTS);
    assert_eq!(output, "64 blocks written and read back, a task each\n");
}

#[test]
fn tokio_serves_many_connections() {
    let output = output_of("tokio_multi_thread", &NO_ARGUMENTS);
    assert_eq!(output, "64 connections stored and fetched 19200000 bytes each way\n");
}

#[test]
fn simulate_crash_keeps_what_was_flushed() {
    let output = output_of("simulate_crash", &["11"]);
    let flushed = output.split("after: ").find(|step| step.starts_with("flushed")).unwrap();
    assert_eq!(flushed.lines().nth(1), Some("    AAAAAAAA ........"));
    assert!(output.contains("BBBBBBBB CCCCCCCC"), "{output}");
}

#[test]
fn fill_and_check_compares_every_byte() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("image");
    let output = output_of(
        "fill_and_check",
        &[path.as_os_str(), "--size".as_ref(), "3M".as_ref(), "--depths".as_ref(), "1,16".as_ref()],
    );
    assert_eq!(output.matches("every byte is correct").count(), 2, "{output}");
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 3 << 20);
    // The example does not overwrite an existing image.
    let again = example("fill_and_check", &[&path]);
    assert!(String::from_utf8_lossy(&again.stderr).contains("exists already"));
    assert!(!again.status.success());
}

#[test]
fn many_files_reports_each_operation() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    create_volume(&image);
    let image = image.to_str().unwrap();
    let operations = ["create", "create-and-sync", "look-up", "list", "remove-and-sync"];
    for target in [image, folder.path().to_str().unwrap()] {
        let output = output_of("many_files", &[target, "200", "7"]);
        let timed: Vec<&str> = output.lines().map(timed_operation).collect();
        assert_eq!(timed, operations, "{target}");
    }
    // The files were removed, and the seven directories are still there.
    let output = output_of("many_files", &[image, "open"]);
    let lines: Vec<&str> = output.lines().collect();
    assert_eq!(
        lines[..2].iter().map(|line| timed_operation(line)).collect::<Vec<_>>(),
        ["open", "look-up-all"]
    );
    assert_eq!(lines.last(), Some(&"7 names"), "{output}");
}

/// The operation in a line such as "look-up 0.123 s".
fn timed_operation(line: &str) -> &str {
    let (name, time) = line.split_once(' ').unwrap();
    let seconds = time.strip_suffix(" s").unwrap_or_else(|| panic!("{line}"));
    assert!(seconds.parse::<f64>().unwrap() >= 0.0, "{line}");
    name
}

#[test]
fn durable_appends_reports_a_rate_and_leaves_whole_records() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    create_volume(&image);
    for target in [&*image, folder.path()] {
        for files in ["own", "one"] {
            let arguments = [target.as_os_str(), files.as_ref(), "3".as_ref(), "0.1".as_ref()];
            let output = output_of("durable_appends", &arguments);
            let rest = output.strip_prefix("appends ").unwrap();
            let (rate, rest) = rest.split_once(" a second").unwrap();
            assert!(rate.parse::<f64>().unwrap() > 0.0, "{output}");
            // Those of a volume have commits.
            match target.is_dir() {
                true => assert_eq!(rest, "\n"),
                false => assert!(rest.ends_with(" a commit\n"), "{output}"),
            }
        }
    }
    let volume = Volume::open(&image).unwrap();
    for name in ["/log-0", "/log-1", "/log-2"] {
        let log = volume.read(name).unwrap();
        assert!(!log.is_empty() && log.len().is_multiple_of(512), "{name}: {}", log.len());
        assert!(log.iter().all(|byte| *byte == 7), "{name}");
    }
}

fn create_volume(path: &Path) {
    Volume::create(path, &FormatOptions::new().size(32 << 20)).unwrap().close().unwrap();
}

//! Every example runs by itself and says what it should. `cargo test` builds them first; with
//! `--test examples` alone, build them by `cargo build --examples`.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Runs a built example.
fn example<S: AsRef<OsStr>>(name: &str, arguments: &[S]) -> Output {
    // Tests are in `deps`, examples beside it.
    let this = std::env::current_exe().unwrap();
    let program = this.parent().and_then(Path::parent).unwrap().join("examples").join(name);
    assert!(program.exists(), "{} is not built: cargo build --examples", program.display());
    Command::new(program).args(arguments).output().unwrap()
}

/// What an example that succeeds prints.
fn printed<S: AsRef<OsStr>>(name: &str, arguments: &[S]) -> String {
    let output = example(name, arguments);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name}: {error}");
    assert!(error.is_empty(), "{name}: {error}");
    String::from_utf8(output.stdout).unwrap()
}

const NOTHING: [&str; 0] = [];

fn some_file(folder: &Path, size: usize) -> PathBuf {
    let path = folder.join("image");
    let bytes: Vec<u8> = (0..size).map(|place| (place / 7 % 251) as u8).collect();
    std::fs::write(&path, bytes).unwrap();
    path
}

#[test]
fn read_image_agrees_with_sum() {
    let folder = tempfile::tempdir().unwrap();
    // Neither whole blocks nor whole pieces.
    let path = some_file(folder.path(), (3 << 20) + 12_345);
    let sum = Command::new("sum").arg(&path).output().expect("sum of coreutils");
    let sum = String::from_utf8(sum.stdout).unwrap();
    assert_eq!(printed("read_image", &[&path]), sum);
    assert!(printed("read_image", &NOTHING).contains(" 8192 "));
}

#[test]
fn tokens_reads_the_simple_way_only() {
    let folder = tempfile::tempdir().unwrap();
    let path = some_file(folder.path(), 4 << 20);
    assert!(printed("tokens", &[&path]).contains("simple reads: 20000\n"));
    assert!(printed("tokens", &NOTHING).contains("simple reads: 20000\n"));
}

#[test]
fn own_event_loop_answers_its_client() {
    assert_eq!(printed("own_event_loop", &NOTHING), "256 blocks asked for and answered\n");
}

#[test]
fn tokio_awaits_files() {
    let said = printed("tokio_current_thread", &NOTHING);
    assert_eq!(said, "64 blocks written and read back, a task each\n");
}

#[test]
fn simulate_crash_keeps_what_was_flushed() {
    let said = printed("simulate_crash", &["11"]);
    let flushed = said.split("after: ").find(|step| step.starts_with("flushed")).unwrap();
    assert_eq!(flushed.lines().nth(1), Some("    AAAAAAAA ........"));
    assert!(said.contains("BBBBBBBB CCCCCCCC"), "{said}");
}

#[test]
fn fill_and_check_compares_every_byte() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("image");
    let said = printed(
        "fill_and_check",
        &[path.as_os_str(), "--size".as_ref(), "3M".as_ref(), "--depths".as_ref(), "1,16".as_ref()],
    );
    assert_eq!(said.matches("every byte is right").count(), 2, "{said}");
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 3 << 20);
    // An image that exists is nobody's to write over.
    let again = example("fill_and_check", &[&path]);
    assert!(String::from_utf8_lossy(&again.stderr).contains("exists already"));
    assert!(!again.status.success());
}

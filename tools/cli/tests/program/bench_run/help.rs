//! The options of fio that run nothing, and the choice of sections.

use super::{bench, folder, json_of};
use uringfs_lab::engine::EngineKind;
use uringfs_lab::job::KEYS;

fn text(arguments: &[&str]) -> String {
    let folder = folder();
    let output = bench(folder.path(), arguments);
    assert_eq!((output.status.code(), output.stderr.len()), (Some(0), 0), "{output:?}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "it runs nothing");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn cmdhelp_describes_keys() {
    for list in [text(&["--cmdhelp"]), text(&["--cmdhelp=all"])] {
        assert_eq!(list.lines().count(), KEYS.len());
    }
    let one = text(&["--cmdhelp=blocksize"]);
    for part in ["bs: block size\n", "alias: blocksize\n", "value: bytes"] {
        assert!(one.contains(part), "no `{part}` in {one}");
    }
}

#[test]
fn enghelp_describes_engines() {
    let list = text(&["--enghelp"]);
    for kind in EngineKind::ALL {
        assert!(list.lines().any(|line| line.starts_with(kind.name())), "{list}");
    }
    let one = text(&["--enghelp=uringfs"]);
    for part in [
        "key: batch=on|off: ",
        "switch: direct.simple_read: ",
        "no effect: fixedbufs: buffers are ",
    ] {
        assert!(one.contains(part), "no `{part}` in {one}");
    }
}

#[test]
fn parse_only_checks_and_runs_nothing() {
    assert_eq!(text(&["--name=x", "--rw=write", "--size=1m", "--parse-only"]), "");
    let folder = folder();
    let output = bench(folder.path(), &["--name=x", "--bs=4q", "--parse-only"]);
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn only_the_named_sections_run() {
    let folder = folder();
    let job = "[global]\nfilename=null:1m\n[a]\nzonemode=none\n[b]\nrw=read\n[c]\nrw=write\n";
    std::fs::write(folder.path().join("job.fio"), job).unwrap();
    let run = |sections: &[&str]| {
        let report = json_of(&bench(
            folder.path(),
            &[&["job.fio", "--output-format=json"], sections].concat(),
        ));
        let jobs = report["jobs"].as_array().unwrap().iter();
        jobs.map(|job| job["jobname"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(run(&["--section=c"]), ["c"]);
    assert_eq!(run(&["--section", "c", "--section", "b"]), ["b", "c"]);
}

//! Job files in the shape in which databases, clouds, storage vendors, test suites and fio itself publish them, written anew:
//! each names its source and what it measures, and parses. The tests of the program run them beside fio
//! (`tools/cli/tests/program/bench_run/published`).

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use uringfs_lab::Error;
use uringfs_lab::job::{Job, KEYS, Parser, UnknownKeys, find_key};

fn files(folder: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/published").join(folder);
    let paths = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    paths.filter(|path| path.extension().is_some_and(|end| end == "fio")).collect()
}

fn parse(path: &Path) -> Result<Vec<Job>, Error> {
    let mut parser = Parser::new(&|_| Some("2".into()), UnknownKeys::Refuse);
    parser.file(path)?;
    Ok(parser.finish()?.jobs)
}

#[test]
fn each_file_names_its_source_and_what_it_measures() {
    for path in files("").into_iter().chain(files("unsupported")) {
        let text = std::fs::read_to_string(&path).unwrap();
        let mut lines = text.lines();
        for begin in ["# Published ", "# Measures "] {
            let line = lines.next().unwrap_or_default();
            assert!(line.starts_with(begin) && line.ends_with('.'), "{}: {line}", path.display());
        }
        assert!(text.contains("https://"), "{}", path.display());
    }
}

#[test]
fn fifty_published_job_files_parse() {
    let mut keys = BTreeSet::new();
    let mut count = 0;
    for path in files("") {
        let jobs = parse(&path).unwrap_or_else(|error| panic!("{error}"));
        for (key, _) in jobs.iter().flat_map(|job| job.inherited_keys.iter().chain(&job.own_keys)) {
            keys.insert(find_key(key).unwrap().name);
        }
        count += 1;
    }
    assert!(count >= 50, "{count} files");
    assert!(keys.len() * 2 > KEYS.len(), "they use {} of {} keys", keys.len(), KEYS.len());
}

/// A file that parses belongs into the folder above.
#[test]
fn unsupported_files_are_refused_with_the_reason() {
    let unsupported = files("unsupported");
    assert!(!unsupported.is_empty());
    for path in unsupported {
        let error = parse(&path).expect_err(&format!("{} parses now", path.display()));
        let lines = error.details().iter().map(String::as_str);
        let text = lines.fold(error.to_string(), |text, line| text + "\n" + line);
        let has_reason = text.contains("fio's key `") || text.contains(" needs ");
        assert!(has_reason, "{}: {text}", path.display());
        assert!(!text.contains("unknown key"), "{}: {text}", path.display());
    }
}

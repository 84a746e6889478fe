//! The option `--exclude` of `put`, `get` and `cp`.

use super::wildcards::matches;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

/// The files that a copy leaves out.
#[derive(clap::Args)]
pub struct ExcludeOptions {
    /// Leave out files and directories with this name, or path end as in cache/*.tmp. May be given several times
    #[arg(long, value_name = "GLOB")]
    exclude: Vec<OsString>,
}

impl ExcludeOptions {
    /// Whether a path matches a pattern: its last names match the names of the pattern.
    pub fn excludes(&self, path: &[u8]) -> bool {
        self.exclude.iter().any(|pattern| ends_in(path, pattern.as_bytes()))
    }
}

fn ends_in(path: &[u8], pattern: &[u8]) -> bool {
    let names = |text| <[u8]>::split(text, |byte| *byte == b'/').filter(|name| !name.is_empty());
    let (mut path, pattern) = (names(path).rev(), names(pattern).rev());
    let mut is_empty = true;
    for pattern in pattern {
        is_empty = false;
        if !path.next().is_some_and(|name| matches(pattern, name)) {
            return false;
        }
    }
    !is_empty
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_the_last_names_of_a_path() {
        let excludes = |pattern: &str, path: &str| ends_in(path.as_bytes(), pattern.as_bytes());
        for (pattern, path) in [
            ("*.o", "src/a.o"),
            ("a.o", "a.o"),
            ("*.o", "src/.a.o"),
            ("b/*", "a/b/c"),
            ("/b/", "a/b"),
        ] {
            assert!(excludes(pattern, path), "{pattern} {path}");
        }
        for (pattern, path) in
            [("*.o", "a.o/b"), ("a/b", "b"), ("a/b", "a/b/c"), ("", "a"), ("/", "a")]
        {
            assert!(!excludes(pattern, path), "{pattern} {path}");
        }
    }
}

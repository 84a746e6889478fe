//! The figure that tables show, by the word of `--figure`.

use crate::Error;
use crate::job::nearest;
use std::fmt;
use std::str::FromStr;

/// The words, each with the end of the names that it stands for: `p99` is `read p99`, and `write p99`.
static FIGURES: [(&str, &str); 7] = [
    ("rate", "rate"),
    ("p50", " p50"),
    ("p99", " p99"),
    ("p99.9", " p99.9"),
    ("cpu", "CPU per I/O"),
    ("switches", "context switches per I/O"),
    ("calls", "system calls per I/O"),
];

/// A figure to show.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShownFigure(&'static (&'static str, &'static str));

impl ShownFigure {
    /// All words.
    pub fn words() -> impl Iterator<Item = &'static str> {
        FIGURES.iter().map(|(word, _)| *word)
    }

    /// Whether it stands for the figure of this name.
    pub(super) fn includes(self, name: &str) -> bool {
        name.ends_with(self.0.1)
    }
}

impl fmt::Display for ShownFigure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.0)
    }
}

impl FromStr for ShownFigure {
    type Err = Error;

    fn from_str(word: &str) -> Result<Self, Error> {
        FIGURES.iter().find(|(known, _)| *known == word).map(Self).ok_or_else(|| {
            let hint = nearest(word, Self::words())
                .map_or(String::new(), |near| format!("; the nearest is `{near}`"));
            let known: Vec<_> = Self::words().collect();
            Error::input(format!("unknown figure `{word}`{hint} (known: {})", known.join(", ")))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_that_of_both_directions() {
        let p99: ShownFigure = "p99".parse().unwrap();
        let names = ["rate", "read p50", "read p99", "read p99.9", "write p99", "CPU per I/O"];
        let shown: Vec<_> = names.into_iter().filter(|name| p99.includes(name)).collect();
        assert_eq!(shown, ["read p99", "write p99"]);
        let error = "p90".parse::<ShownFigure>().unwrap_err().to_string();
        assert!(error.contains("unknown figure `p90`") && error.contains("switches"), "{error}");
    }
}

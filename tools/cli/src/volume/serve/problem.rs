//! [`Problem`]: an error with the option, or the key of a configuration, that it is about.

use uringfs_lab::Error;

/// An error about an option. On the command line its message says all.
pub(super) struct Problem {
    /// The option's name, without dashes.
    pub(super) key: &'static str,
    pub(super) error: Error,
}

impl Problem {
    /// A value that cannot be used, or not with the others.
    pub(super) fn new(key: &'static str, what: &str) -> Problem {
        Problem { key, error: Error::input(format!("--{key}: {what}")) }
    }

    /// Gives errors the option that they are about.
    pub(super) fn of(key: &'static str) -> impl Fn(Error) -> Problem {
        move |error| Problem { key, error }
    }

    /// The first option of a table that is wrong.
    pub(super) fn first(table: &[(&'static str, bool, &str)]) -> Result<(), Problem> {
        match table.iter().find(|(_, is_wrong, _)| *is_wrong) {
            Some((key, _, what)) => Err(Problem::new(key, what)),
            None => Ok(()),
        }
    }
}

impl From<Problem> for Error {
    fn from(problem: Problem) -> Error {
        problem.error
    }
}

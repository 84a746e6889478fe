//! Words that completions offer for a value which may be any other word, too.

use clap::builder::{PossibleValue, StringValueParser, TypedValueParser};
use clap::{Arg, Command, Error};
use std::ffi::OsStr;

/// Parses a text, and suggests some.
#[derive(Clone)]
pub struct Suggestions(Vec<&'static str>);

impl Suggestions {
    pub fn new(words: impl IntoIterator<Item = &'static str>) -> Self {
        Self(words.into_iter().collect())
    }
}

impl TypedValueParser for Suggestions {
    type Value = String;

    fn parse_ref(
        &self,
        command: &Command,
        argument: Option<&Arg>,
        value: &OsStr,
    ) -> Result<String, Error> {
        StringValueParser::new().parse_ref(command, argument, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(self.0.iter().copied().map(PossibleValue::new)))
    }
}

//! [`Bounded`]: a number of an option, which has a bound.

use serde::Deserialize;
use std::fmt;
use std::str::FromStr;

/// A number from 1 to `MAX`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "u64")]
pub(super) struct Bounded<const MAX: u16>(u16);

impl<const MAX: u16> Bounded<MAX> {
    pub(super) fn get(self) -> usize {
        self.0.into()
    }
}

impl<const MAX: u16> TryFrom<u64> for Bounded<MAX> {
    type Error = String;

    fn try_from(number: u64) -> Result<Self, String> {
        match u16::try_from(number) {
            Ok(number @ 1..) if number <= MAX => Ok(Self(number)),
            _ => Err(format!("{number} is not a number from 1 to {MAX}")),
        }
    }
}

impl<const MAX: u16> FromStr for Bounded<MAX> {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = text.parse::<u64>();
        number.map_err(|_| format!("write a number from 1 to {MAX}")).and_then(Self::try_from)
    }
}

impl<const MAX: u16> fmt::Display for Bounded<MAX> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(out)
    }
}

//! The description of keys, for `--cmdhelp`.

use super::keys::{KEYS, Key, ValueKind, find};
use super::unsupported::explain;
use super::value::TimeUnit;
use crate::Error;
use std::ops::RangeInclusive;

/// A list of all keys, a line each.
pub fn list_keys() -> String {
    KEYS.iter().map(|key| format!("{:<26}: {}\n", key.name, key.doc)).collect()
}

/// The description of the key of this name or alias.
///
/// # Errors
/// There is no such key. The error says why, or has the nearest one.
pub fn describe_key(name: &str) -> Result<String, Error> {
    let Some(key) = find(name) else { return Err(Error::input(explain(name))) };
    let mut lines = vec![(key.name, key.doc.to_owned())];
    if !key.aliases.is_empty() {
        lines.push(("alias", key.aliases.join(", ")));
    }
    lines.push(("value", value_of(key)));
    let line = |(title, text): (&str, String)| format!("{title:>26}: {text}\n");
    Ok(lines.into_iter().map(line).collect())
}

/// The values of a key, in words.
fn value_of(key: &Key) -> String {
    const BY_DIRECTION: &str = "; READS,WRITES for one each";
    let bounds = |bounds: &RangeInclusive<u64>| match *bounds.end() {
        u64::MAX => format!("at least {}", bounds.start()),
        end => format!("{} to {end}", bounds.start()),
    };
    match &key.kind {
        ValueKind::Flag(_) => "0 or 1; without a value 1".into(),
        ValueKind::Count(range, _) => format!("a number, {}", bounds(range)),
        ValueKind::Counts(_) => format!("a number{BY_DIRECTION}"),
        ValueKind::Size(range, _) => format!("bytes, {}", bounds(range)),
        ValueKind::SizeOrPercent(_) => "bytes, or a percentage such as 20%".into(),
        ValueKind::Blocks => format!("bytes{BY_DIRECTION}"),
        ValueKind::BlockRanges => format!("LOW-HIGH in bytes{BY_DIRECTION}"),
        ValueKind::Time(TimeUnit::Seconds, _) => "a time; a number alone is in seconds".into(),
        ValueKind::Time(TimeUnit::Microseconds, _) => {
            "a time; a number alone is in microseconds".into()
        }
        ValueKind::Choice(words, _) => words.join(", "),
        ValueKind::Text(_) => "text".into(),
        ValueKind::TextOrJobName(_) => "text; without it the name of the job".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_is_described() {
        let list = list_keys();
        for key in KEYS {
            assert!(list.lines().any(|line| line.starts_with(key.name)), "{}", key.name);
            let text = describe_key(key.name).unwrap();
            assert!(text.contains(key.doc) && text.contains("value: "), "{text}");
        }
    }

    #[test]
    fn a_description_has_aliases_and_values() {
        let text = describe_key("readwrite").unwrap();
        for part in ["rw: direction and order", "alias: readwrite", "value: read, write, "] {
            assert!(text.contains(part), "no `{part}` in {text}");
        }
        assert!(describe_key("iodepth").unwrap().contains("a number, 1 to 65536"));
        let error = describe_key("iodpeth").unwrap_err().to_string();
        assert_eq!(error, "unknown key `iodpeth`; the nearest is `iodepth`");
    }
}

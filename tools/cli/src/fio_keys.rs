//! `bench run` accepts fio's keys as options: `--bs=4k`, `--bs 4k`, `--time_based`. clap does not
//! know them, so this module rewrites them to `--key=KEY=VALUE` before clap parses.

use clap::Command;
use std::ffi::OsString;
use uringfs_lab::Error;
use uringfs_lab::job::find_key;

/// Rewrites the fio keys of `bench run`. Other commands stay as they are.
pub fn wrap_keys(command: &Command, arguments: Vec<OsString>) -> Result<Vec<OsString>, Error> {
    let is = |at: usize, word: &str| arguments.get(at).is_some_and(|argument| argument == word);
    if !(is(1, "bench") && is(2, "run")) {
        return Ok(arguments);
    }
    let own = own_options(command);
    let mut wrapped: Vec<OsString> = arguments[..3].to_vec();
    let mut rest = arguments.into_iter().skip(3);
    while let Some(argument) = rest.next() {
        let text = argument.to_string_lossy().into_owned();
        let Some(word) = text.strip_prefix("--") else {
            wrapped.push(argument);
            continue;
        };
        if word.is_empty() {
            // Everything after `--` is a job file.
            wrapped.push(argument);
            wrapped.extend(rest);
            break;
        }
        let (name, value) = match word.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (word, None),
        };
        // With a value, the option `--overwrite` is fio's key.
        let is_key = value.is_some() && find_key(name).is_some();
        let option = own.iter().find(|(known, _)| known == name && !is_key);
        if let Some((_, takes_next)) = option {
            let separate = *takes_next && value.is_none();
            wrapped.push(argument);
            wrapped.extend(separate.then(|| rest.next()).flatten());
            continue;
        }
        if argument.to_str().is_none() {
            return Err(Error::input(format!("--{name}: not UTF-8")));
        }
        let value = match (value, find_key(name)) {
            (None, Some(key)) if key.value_if_alone().is_none() => {
                let next = rest.next();
                let next = next.ok_or_else(|| Error::input(format!("--{name} needs a value")))?;
                let not_utf8 = |_| Error::input(format!("--{name}: not UTF-8"));
                Some(next.into_string().map_err(not_utf8)?)
            }
            (value, _) => value,
        };
        let pair = value.map_or(name.to_owned(), |value| format!("{name}={value}"));
        wrapped.push(format!("--key={pair}").into());
    }
    Ok(wrapped)
}

/// The options of `bench run` other than keys, and whether the next word may be the value of each.
fn own_options(command: &Command) -> Vec<(String, bool)> {
    let run = command.find_subcommand("bench").and_then(|bench| bench.find_subcommand("run"));
    let arguments = run.into_iter().flat_map(|run| run.get_arguments());
    let named = arguments.filter(|argument| argument.get_id() != "keys");
    let options = named.filter_map(|argument| {
        let takes_next = argument.get_action().takes_values() && !argument.is_require_equals_set();
        Some((argument.get_long()?.to_owned(), takes_next))
    });
    options.chain([("help".to_owned(), false)]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn wrapped(line: &str) -> String {
        let words = line.split(' ').map(OsString::from).collect();
        let wrapped = wrap_keys(&crate::Arguments::command(), words).unwrap();
        wrapped.iter().map(|word| word.to_str().unwrap()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn fio_keys_are_wrapped_and_own_options_are_not() {
        for (line, expected) in [
            ("u bench run a.fio --bs=4k", "u bench run a.fio --key=bs=4k"),
            ("u bench run --bs 4k --time_based b", "u bench run --key=bs=4k --key=time_based b"),
            ("u bench run --engine psync --rw=read", "u bench run --engine psync --key=rw=read"),
            ("u bench run --engine=psync --overwrite", "u bench run --engine=psync --overwrite"),
            ("u bench run --overwrite --overwrite=1", "u bench run --overwrite --key=overwrite=1"),
            ("u bench run -- --bs=4k", "u bench run -- --bs=4k"),
            ("u bench run --cmdhelp --bs=4k", "u bench run --cmdhelp --key=bs=4k"),
            ("u bench run --cmdhelp=bs", "u bench run --cmdhelp=bs"),
            ("u bench experiment all --pairs 3", "u bench experiment all --pairs 3"),
        ] {
            assert_eq!(wrapped(line), expected);
        }
    }
}

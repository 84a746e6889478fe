//! Lists of switches: `name=value`, with commas between them.

use std::ffi::c_char;

use uringfs::Errno;

use crate::error::Failure;
use crate::pointers;

/// Sets each switch of a list. `known` are those of these options, for the text of an error. NULL is an empty list.
pub(crate) fn apply(
    list: *const c_char,
    known: &[(&str, &str)],
    mut set: impl FnMut(&str, &str) -> Result<bool, String>,
) -> Result<(), Failure> {
    let Some(list) = pointers::string(list) else { return Ok(()) };
    let Ok(list) = list.to_str() else {
        return Err(Failure::argument(c"a list of switches is not UTF-8"));
    };
    for switch in list.split(',').filter(|switch| !switch.is_empty()) {
        let Some((name, value)) = switch.split_once('=') else {
            return Err(wrong(format!("the switch {switch:?} has no value: write name=value")));
        };
        if !set(name, value).map_err(wrong)? {
            let names: Vec<_> = known.iter().map(|(name, _)| *name).collect();
            let text = format!("there is no switch {name:?} here: those are {}", names.join(", "));
            return Err(wrong(text));
        }
    }
    Ok(())
}

fn wrong(text: String) -> Failure {
    Failure::new(Errno::INVAL, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn applied(list: &std::ffi::CStr) -> Result<Vec<String>, i32> {
        let mut seen = Vec::new();
        apply(list.as_ptr(), &[("a", "1 or 2"), ("b.c", "on or off")], |name, value| {
            seen.push(format!("{name} is {value}"));
            match value {
                "neither" => Err("it is on or off".to_owned()),
                _ => Ok(name != "d"),
            }
        })
        .map_err(Failure::status)?;
        Ok(seen)
    }

    #[test]
    fn each_switch_of_a_list_is_set() {
        assert_eq!(applied(c""), Ok(vec![]));
        assert_eq!(applied(c"a=1,b.c=on"), Ok(vec!["a is 1".to_owned(), "b.c is on".to_owned()]));
        assert!(apply(std::ptr::null(), &[], |_, _| Ok(true)).is_ok());
    }

    #[test]
    fn unknown_switches_and_values_are_refused() {
        for wrong in [c"a", c"d=1", c"a=1,d=1", c"a=neither", c"a=\xff"] {
            assert_eq!(applied(wrong), Err(-Errno::INVAL.raw_os_error()), "{wrong:?}");
        }
    }
}

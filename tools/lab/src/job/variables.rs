//! Expands `${NAME}` in values, from the environment and recursively, and fio's `$pagesize` and
//! `$ncpus`.

/// The source of variables' values; tests pass their own.
pub type VariableLookup<'a> = &'a dyn Fn(&str) -> Option<String>;

/// A variable of the process environment.
pub fn environment(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// `text` with every variable replaced.
pub fn expand(text: &str, lookup: VariableLookup<'_>) -> Result<String, String> {
    if !text.contains('$') {
        return Ok(text.to_owned());
    }
    let mut out = String::new();
    expand_into(&mut out, text, lookup, &mut Vec::new())?;
    Ok(out)
}

fn expand_into(
    out: &mut String,
    text: &str,
    lookup: VariableLookup<'_>,
    open: &mut Vec<String>,
) -> Result<(), String> {
    // Variables that name other variables twice grow exponentially without a cycle.
    const MAX_EXPANDED_BYTES: usize = 64 << 10;
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        let after = &rest[at + 1..];
        if let Some(braced) = after.strip_prefix('{') {
            let end = braced.find('}').ok_or_else(|| format!("`{text}` has a ${{ without a }}"))?;
            let name = &braced[..end];
            if open.iter().any(|outer| outer == name) {
                return Err(format!("variable ${{{name}}} refers to itself"));
            }
            let value = lookup(name)
                .ok_or_else(|| format!("variable ${{{name}}} is not set in the environment"))?;
            open.push(name.to_owned());
            expand_into(out, &value, lookup, open)?;
            open.pop();
            rest = &braced[end + 1..];
        } else if let Some(tail) = after.strip_prefix("pagesize") {
            out.push_str(&rustix::param::page_size().to_string());
            rest = tail;
        } else if let Some(tail) = after.strip_prefix("ncpus") {
            let processors = std::thread::available_parallelism().map_or(1, usize::from);
            out.push_str(&processors.to_string());
            rest = tail;
        } else {
            out.push('$');
            rest = after;
        }
        if out.len() > MAX_EXPANDED_BYTES {
            return Err("variables expand to more than 64 KiB".into());
        }
    }
    out.push_str(rest);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lookup(name: &str) -> Option<String> {
        Some(match name {
            "QD" => "32".into(),
            "NESTED" => "x${QD}y".into(),
            "SELF" => "${SELF}".into(),
            "PING" => "${PONG}".into(),
            "PONG" => "${PING}".into(),
            "WIDE" => "${BIG}${BIG}".into(),
            "BIG" => "b".repeat(40 << 10),
            _ => return None,
        })
    }

    #[test]
    fn variables_expand_from_the_environment() {
        for (text, expected) in [
            ("plain", "plain"),
            ("${QD}", "32"),
            ("a${QD}b${QD}", "a32b32"),
            ("${NESTED}", "x32y"),
            ("cost$", "cost$"),
        ] {
            assert_eq!(expand(text, &lookup).as_deref(), Ok(expected));
        }
        let page = rustix::param::page_size().to_string();
        assert_eq!(expand("$pagesize", &lookup), Ok(page));
    }

    #[test]
    fn cyclic_unset_unclosed_and_exploding_variables_are_errors() {
        for (text, part) in [
            ("${SELF}", "refers to itself"),
            ("${PING}", "refers to itself"),
            ("${NOPE}", "${NOPE} is not set"),
            ("${QD", "without a }"),
            ("${WIDE}", "more than 64 KiB"),
        ] {
            let error = expand(text, &lookup).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}

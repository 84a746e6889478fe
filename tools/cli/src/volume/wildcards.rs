//! Wildcards: `*`, `?`, `[a-z]` and `[!a-z]`, as in a shell; `\` takes the special meaning from the character after it.

/// Whether a text has wildcards.
pub fn has_wildcards(text: &[u8]) -> bool {
    text.iter().any(|byte| matches!(byte, b'*' | b'?' | b'['))
}

/// Whether a name matches a pattern, as [`matches`]; but a leading dot is matched only by a literal dot.
pub fn matches_visible(pattern: &[u8], name: &[u8]) -> bool {
    let has_dot = matches!(pattern, [b'.', ..] | [b'\\', b'.', ..]);
    (has_dot || name.first() != Some(&b'.')) && matches(pattern, name)
}

/// Whether a name matches a pattern.
pub fn matches(pattern: &[u8], name: &[u8]) -> bool {
    // The rest of the pattern and of the name after the last star. It is enough to backtrack to the last
    // star, so no pattern takes long.
    let (mut pattern_rest, mut name_rest) = (pattern, name);
    let mut star: Option<(&[u8], &[u8])> = None;
    loop {
        if let [b'*', rest @ ..] = pattern_rest {
            star = Some((rest, name_rest));
            pattern_rest = rest;
            continue;
        }
        match (match_one(pattern_rest, name_rest.first().copied()), &mut star) {
            _ if pattern_rest.is_empty() && name_rest.is_empty() => return true,
            (Some(rest), _) => (pattern_rest, name_rest) = (rest, &name_rest[1..]),
            (None, Some((behind, from))) if !from.is_empty() => {
                *from = &from[1..];
                (pattern_rest, name_rest) = (*behind, *from);
            }
            _ => return false,
        }
    }
}

/// The rest of the pattern if its first element matches the byte.
fn match_one(pattern: &[u8], byte: Option<u8>) -> Option<&[u8]> {
    let byte = byte?;
    let (first, rest) = pattern.split_first()?;
    match first {
        b'?' => Some(rest),
        b'\\' if !rest.is_empty() => (rest[0] == byte).then_some(&rest[1..]),
        b'[' => match match_class(rest, byte) {
            Some((true, behind)) => Some(behind),
            Some((false, _)) => None,
            // A bracket that is not closed is a literal bracket.
            None => (byte == b'[').then_some(rest),
        },
        first => (*first == byte).then_some(rest),
    }
}

/// Whether a byte is in the character class at the beginning, and the rest of the pattern.
fn match_class(text: &[u8], byte: u8) -> Option<(bool, &[u8])> {
    let negated = matches!(text.first(), Some(b'!' | b'^'));
    let mut rest = if negated { &text[1..] } else { text };
    let (mut is_in, mut is_first) = (false, true);
    loop {
        match rest {
            [b']', behind @ ..] if !is_first => return Some((is_in != negated, behind)),
            [from, b'-', to, behind @ ..] if *to != b']' => {
                is_in |= (*from..=*to).contains(&byte);
                rest = behind;
            }
            [b'\\', one, behind @ ..] | [one, behind @ ..] => {
                is_in |= *one == byte;
                rest = behind;
            }
            [] => return None,
        }
        is_first = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_as_in_a_shell() {
        let is_match =
            |pattern: &str, name: &str| matches_visible(pattern.as_bytes(), name.as_bytes());
        for (pattern, name) in [
            ("*", "abc"),
            ("*", ""),
            ("a*c", "abbc"),
            ("a*b*c", "a-b-b-c"),
            ("*.h", "stdio.h"),
            ("?b", "ab"),
            ("[a-c]x", "bx"),
            ("[!a-c]x", "dx"),
            ("[]]", "]"),
            ("[a", "[a"),
            (".*", ".x"),
            ("a**", "a"),
            (r"a\*?", "a*b"),
            (r"\.*", ".x"),
            (r"[\]x]", "]"),
            (r"*\", r"a\"),
        ] {
            assert!(is_match(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in [
            ("*", ".x"),
            ("a*c", "abb"),
            ("?", ""),
            ("?", "ab"),
            ("[a-c]", "d"),
            ("[!a-c]", "b"),
            ("a", "ab"),
            ("*a", "ab"),
            (r"a\**", "ab"),
            (r"\[a]", "a"),
        ] {
            assert!(!is_match(pattern, name), "{pattern} {name}");
        }
        assert!(matches(b"*.x", b".a.x"), "hidden names match elsewhere");
    }

    #[test]
    fn a_pattern_of_many_stars_is_matched_quickly() {
        let name = [b'a'; 255];
        assert!(!matches(&[b"*a".repeat(60), b"b".to_vec()].concat(), &name));
    }
}

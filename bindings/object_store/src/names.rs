//! Names of files as segments of object paths, and back: a bijection.
//!
//! A file's name is any bytes but `/` and 0. A segment is UTF-8 without ASCII control characters. A name that is a
//! legal segment stays as it is, so that objects have their names in a mount, too. Any other name is percent-encoded:
//! `%` with two upper-case digits for each byte that is not allowed, and for each `%` in it.
//!
//! Such an escape is a legal segment itself, and may be the name of another file. That name doubles its `%` (`%25`),
//! and a name that looks like the doubled one doubles them again. Percent-encoded text is not touched: `M%C3%BCnchen`
//! and `a%2Fb` stay, as no file needs them as its escape.

use std::str;

/// The segment for a name.
pub(crate) fn segment_from_name(name: &[u8]) -> String {
    match str::from_utf8(name) {
        Ok(text) if is_segment(name) => match is_reserved(text) {
            true => double(text),
            false => text.to_owned(),
        },
        _ => escape(name),
    }
}

/// The name for a segment.
pub(crate) fn name_from_segment(segment: &str) -> Vec<u8> {
    if !segment.contains('%') {
        return segment.into();
    }
    if let Some(name) = escaped_name(segment) {
        return name;
    }
    match halve(segment).filter(|inner| is_reserved(inner)) {
        Some(inner) => inner.into_bytes(),
        None => segment.into(),
    }
}

/// Whether a name can be a segment as it is.
fn is_segment(name: &[u8]) -> bool {
    str::from_utf8(name).is_ok() && !name.iter().any(u8::is_ascii_control)
}

/// Whether a text is the escape of a name, or one whose `%` are doubled, so that it stands for another name.
fn is_reserved(text: &str) -> bool {
    let mut inner = None;
    loop {
        let text = inner.as_deref().unwrap_or(text);
        if escaped_name(text).is_some() {
            return true;
        }
        match halve(text) {
            Some(next) => inner = Some(next),
            None => return false,
        }
    }
}

/// The name of which a text is the escape.
fn escaped_name(text: &str) -> Option<Vec<u8>> {
    let name = unescape(text)?;
    let is_name = !name.iter().any(|byte| matches!(byte, 0 | b'/'));
    (is_name && !is_segment(&name) && escape(&name) == text).then_some(name)
}

fn escape(name: &[u8]) -> String {
    let mut text = String::with_capacity(name.len() + 8);
    let push_escape = |text: &mut String, byte: u8| *text += &format!("%{byte:02X}");
    for chunk in name.utf8_chunks() {
        for character in chunk.valid().chars() {
            match character {
                '%' => push_escape(&mut text, b'%'),
                control if control.is_ascii_control() => push_escape(&mut text, control as u8),
                character => text.push(character),
            }
        }
        chunk.invalid().iter().for_each(|byte| push_escape(&mut text, *byte));
    }
    text
}

/// Undoes [`escape`]. `None` if two upper-case digits do not follow some `%`.
fn unescape(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'A'..=b'F' => Some(byte - b'A' + 10),
        _ => None,
    };
    let mut bytes = text.bytes();
    let mut name = Vec::with_capacity(text.len());
    while let Some(byte) = bytes.next() {
        name.push(match byte {
            b'%' => digit(bytes.next()?)? << 4 | digit(bytes.next()?)?,
            byte => byte,
        });
    }
    Some(name)
}

fn double(text: &str) -> String {
    text.replace('%', "%25")
}

/// Undoes [`double`]. `None` for a text that this does not return.
fn halve(text: &str) -> Option<String> {
    let inner = text.replace("%25", "%");
    (inner.len() < text.len() && double(&inner) == text).then_some(inner)
}

#[cfg(test)]
mod tests {
    use object_store::path::Path;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_name_that_is_a_segment_stays() {
        for name in
            ["a", "a b", "é", "🙀", "%", "%Q", "%48%45", "a%2Fb", "M%C3%BCnchen", "%25", "%00"]
        {
            assert_eq!(segment_from_name(name.as_bytes()), name);
            assert_eq!(name_from_segment(name), name.as_bytes());
        }
    }

    #[test]
    fn other_names_are_escaped_and_names_that_look_so_are_doubled() {
        let cases: [(&[u8], &str); 6] = [
            (b"a\n", "a%0A"),
            (b"a%0A", "a%250A"),
            (b"a%250A", "a%25250A"),
            (b"\xFF%", "%FF%25"),
            (b"%FF%25", "%25FF%2525"),
            (b"\xC3(", "%C3("),
        ];
        for (name, segment) in cases {
            assert_eq!(segment_from_name(name), segment);
            assert_eq!(name_from_segment(segment), name);
        }
    }

    /// Pieces of which escapes, doubled escapes and other text arise often.
    fn piece() -> impl Strategy<Value = Vec<u8>> {
        prop_oneof![
            prop::sample::select(vec![
                &b"%"[..],
                b"25",
                b"%25",
                b"0A",
                b"%0A",
                b"C3",
                b"%C3",
                b"a",
                b"\n"
            ])
            .prop_map(<[u8]>::to_vec),
            "[^/\0]".prop_map(String::into_bytes),
            any::<u8>().prop_map(|byte| vec![byte]),
        ]
    }

    fn name() -> impl Strategy<Value = Vec<u8>> {
        let name = prop::collection::vec(piece(), 1..8).prop_map(|pieces| pieces.concat());
        name.prop_filter("a name", |name| {
            !name.contains(&0) && !name.contains(&b'/') && ![&b"."[..], b".."].contains(&&name[..])
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4000))]

        #[test]
        fn each_name_is_a_legal_segment_and_comes_back(name in name()) {
            let segment = segment_from_name(&name);
            prop_assert_eq!(Path::parse(&segment).unwrap().parts_count(), 1);
            prop_assert_eq!(name_from_segment(&segment), name);
        }

        #[test]
        fn each_segment_is_a_name_and_comes_back(name in name()) {
            let text = String::from_utf8_lossy(&name).replace(|c: char| c.is_ascii_control(), "_");
            prop_assert!(Path::parse(&text).is_ok());
            let name = name_from_segment(&text);
            prop_assert!(!name.contains(&0) && !name.contains(&b'/'));
            prop_assert_eq!(segment_from_name(&name), text);
        }
    }
}

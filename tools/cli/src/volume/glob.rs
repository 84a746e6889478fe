//! Wildcards in paths of a volume: `*`, `?`, `[a-z]` and `[!a-z]`, as in a shell. In a name with wildcards, `\` takes
//! the special meaning from the character after it. A path that exists literally stands for itself.

use super::entries::Entries;
use super::error_sink::ErrorSink;
use super::exit_codes::not_found;
use super::volume_path::{VolumePath, as_path, join, with_path};
use uringfs::{Error as VolumeError, ErrorKind as VolumeErrorKind, Volume};
use uringfs_lab::Error;

/// The paths that match `path`, sorted; `path` itself if it has no wildcards. An error if none matches.
pub fn expand(volume: &Volume, path: &VolumePath) -> Result<Vec<VolumePath>, Error> {
    let found = expand_or_none(volume, path)?;
    match found.is_empty() {
        true => Err(not_found(format!("{path}: no name matches this pattern"))),
        false => Ok(found),
    }
}

/// As [`expand`]; no paths if none matches.
pub fn expand_or_none(volume: &Volume, path: &VolumePath) -> Result<Vec<VolumePath>, Error> {
    let exists = |path: &[u8]| match volume.symlink_metadata(as_path(path)) {
        Ok(_) => true,
        // A damaged file exists: the caller gets its path, and the error when it uses the path.
        Err(error) => !is_not_found(&error),
    };
    if !is_pattern(&path.bytes) || exists(&path.bytes) {
        return Ok(vec![path.clone()]);
    }
    let mut found = vec![b"/".to_vec()];
    for name in path.bytes.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
        let mut next = Vec::new();
        for directory in &found {
            if !is_pattern(name) {
                next.push(join(directory, name));
                continue;
            }
            match volume.metadata(as_path(directory)) {
                Ok(metadata) if !metadata.is_dir() => continue,
                Err(error) if is_not_found(&error) => continue,
                // The directory cannot be read: return the pattern, so that the caller gets the error when it uses it.
                Err(_) => {
                    next.push(join(directory, name));
                    continue;
                }
                Ok(_) => {}
            }
            for entry in Entries::new(volume, directory) {
                let found = match entry {
                    Ok(entry) => entry.name,
                    Err(error) => match error.damaged_name() {
                        Some(name) => name.to_vec(),
                        None => {
                            return Err(with_path(path.in_same_volume(directory.clone()), error));
                        }
                    },
                };
                if matches_visible(name, &found) {
                    next.push(join(directory, &found));
                }
            }
        }
        found = next;
    }
    if path.bytes.ends_with(b"/") {
        found.iter_mut().for_each(|path| path.push(b'/'));
    }
    found.retain(|path| exists(path));
    Ok(found.into_iter().map(|found| path.in_same_volume(found)).collect())
}

/// The paths that match any of `paths`. Reports those without a match to `errors`.
pub fn expand_each(volume: &Volume, paths: &[VolumePath], errors: &ErrorSink) -> Vec<VolumePath> {
    collect(paths, errors, |path| expand(volume, path))
}

/// As [`expand_each`], but a pattern without a match is no error.
pub fn expand_each_or_none(
    volume: &Volume,
    paths: &[VolumePath],
    errors: &ErrorSink,
) -> Vec<VolumePath> {
    collect(paths, errors, |path| expand_or_none(volume, path))
}

fn collect(
    paths: &[VolumePath],
    errors: &ErrorSink,
    expand: impl Fn(&VolumePath) -> Result<Vec<VolumePath>, Error>,
) -> Vec<VolumePath> {
    let mut all = Vec::new();
    for path in paths {
        match expand(path) {
            Ok(found) => all.extend(found),
            Err(error) => _ = errors.record::<()>(Err(error)),
        }
    }
    all
}

/// The paths that match any of `paths`; an error if one has no match.
pub fn expand_all(volume: &Volume, paths: &[VolumePath]) -> Result<Vec<VolumePath>, Error> {
    let mut all = Vec::new();
    for path in paths {
        all.extend(expand(volume, path)?);
    }
    Ok(all)
}

/// Whether the error means that the path does not exist, and not that it cannot be read.
fn is_not_found(error: &VolumeError) -> bool {
    matches!(error.kind(), VolumeErrorKind::Refused(_))
}

/// A name without wildcards is no pattern, whatever backslashes it has: names of systemd's units contain them.
fn is_pattern(text: &[u8]) -> bool {
    text.iter().any(|byte| matches!(byte, b'*' | b'?' | b'['))
}

/// Whether a name matches a pattern, as [`matches`]; but a leading dot is matched only by a literal dot.
fn matches_visible(pattern: &[u8], name: &[u8]) -> bool {
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

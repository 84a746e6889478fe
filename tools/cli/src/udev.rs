//! `uringfs info --udev`: the volume on a target as properties of a block device, for a rule of udev. The names and the
//! encodings are those of udev's own probe, blkid.

use crate::output::print;
use crate::volume::exit_codes::of_volume_error;
use crate::volume::format::uuid;
use std::fmt::Write;
use std::io;
use uringfs::Volume;
use uringfs::device::{Access, Target};
use uringfs::volume::Identity;
use uringfs_lab::Error;

/// There is no volume.
const EXIT_NO_VOLUME: u8 = 2;

/// Prints the properties of the volume, or nothing. Opens the target for reading, and takes no lock. Returns the exit
/// code.
pub fn run(target: &str) -> Result<u8, Error> {
    let input_error = |error: io::Error| Error::input(error.to_string());
    let parsed: Target = target.parse().map_err(input_error)?;
    let device = parsed.open(Access::Read).map_err(input_error)?;
    let found = Volume::identify(&device).map_err(|error| {
        Error::input(format!("{target}: {error}")).exiting_with(of_volume_error(&error))
    })?;
    match found {
        Some(identity) => print(&properties(&identity)).map(|()| 0),
        None => Ok(EXIT_NO_VOLUME),
    }
}

/// One line for each property. A volume without a label has no property for it.
fn properties(identity: &Identity) -> String {
    let uuid = uuid(identity.uuid);
    let mut lines = format!(
        "ID_FS_TYPE=uringfs\nID_FS_USAGE=filesystem\nID_FS_UUID={uuid}\nID_FS_UUID_ENC={uuid}\nID_FS_VERSION={}\n",
        identity.version
    );
    if !identity.label.is_empty() {
        let (safe, encoded) = (safe_string(&identity.label), encode_string(&identity.label));
        lines += &format!("ID_FS_LABEL={safe}\nID_FS_LABEL_ENC={encoded}\n");
    }
    lines
}

/// As `blkid_encode_string` of util-linux, for names of links: each other byte is a hexadecimal number.
fn encode_string(text: &str) -> String {
    let mut encoded = String::new();
    for character in text.chars() {
        match is_plain(character) {
            true => encoded.push(character),
            false => write!(encoded, "\\x{:02x}", u32::from(character)).expect("a string grows"),
        }
    }
    encoded
}

/// As `blkid_safe_string` of util-linux, for reading: white space is an underscore, and so is every other unusual
/// character. The beginning of a hexadecimal number stays.
fn safe_string(text: &str) -> String {
    let is_space = |character: char| character.is_ascii_whitespace() || character == '\x0b';
    let words: Vec<&str> = text.split(is_space).filter(|word| !word.is_empty()).collect();
    let joined = words.join("_");
    let mut rest = joined.chars().peekable();
    let mut safe = String::new();
    while let Some(character) = rest.next() {
        let stays = match character {
            '\\' => rest.peek() == Some(&'x'),
            character => is_plain(character) || "/$%?,".contains(character),
        };
        safe.push(if stays { character } else { '_' });
    }
    safe
}

/// Letters, digits, some punctuation, and everything that is not ASCII.
fn is_plain(character: char) -> bool {
    character.is_ascii_alphanumeric() || "#+-.:=@_".contains(character) || !character.is_ascii()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_encoded_as_by_blkid() {
        for (label, safe, encoded) in [
            ("plain-1.0:a=b@c#d+e_f", "plain-1.0:a=b@c#d+e_f", "plain-1.0:a=b@c#d+e_f"),
            ("  two  words ", "two_words", r"\x20\x20two\x20\x20words\x20"),
            ("données", "données", "données"),
            ("a/b$c%d?e,f", "a/b$c%d?e,f", r"a\x2fb\x24c\x25d\x3fe\x2cf"),
            ("a\nID_FS_TYPE=ext4", "a_ID_FS_TYPE=ext4", r"a\x0aID_FS_TYPE=ext4"),
            ("\"'`\u{1b}[", "_____", r"\x22\x27\x60\x1b\x5b"),
            (r"a\x41\b", r"a\x41_b", r"a\x5cx41\x5cb"),
        ] {
            assert_eq!(
                (safe_string(label).as_str(), encode_string(label).as_str()),
                (safe, encoded)
            );
        }
    }

    #[test]
    fn a_volume_without_a_label_has_no_property_for_it() {
        let lines = |label: &str| {
            let image = tempfile::NamedTempFile::new().unwrap();
            image.as_file().set_len(32 << 20).unwrap();
            let device = uringfs::device::Device::open(image.path(), Access::ReadWrite).unwrap();
            Volume::format(&device, &uringfs::FormatOptions::new().label(label)).unwrap();
            properties(&Volume::identify(&device).unwrap().unwrap())
        };
        assert!(!lines("").contains("LABEL"));
        assert!(lines("a b").ends_with("ID_FS_LABEL=a_b\nID_FS_LABEL_ENC=a\\x20b\n"));
    }
}

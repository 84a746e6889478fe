//! The options `-r`, `-a` and `-p` of `put` and `get`, which copy as `cp -a` does without them.

use clap::{Arg, ArgAction};

/// The options, which say what is always done.
pub fn archive_options() -> [Arg; 3] {
    [
        ('r', "recursive", "Copy directories recursively, as always"),
        (
            'a',
            "archive",
            "Copy modes, owners, times, links, holes and extended attributes, as always",
        ),
        ('p', "preserve", "Copy modes, owners and times, as always"),
    ]
    .map(|(short, long, help)| {
        Arg::new(long).short(short).long(long).help(help).action(ArgAction::SetTrue)
    })
}

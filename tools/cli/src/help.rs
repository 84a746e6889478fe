//! The list of commands in the program's help, by groups.

use clap::Command;

/// The commands by what they work on.
const GROUPS: [(&str, &[&str]); 4] = [
    (
        "Volumes",
        &[
            "mkfs", "check", "resize", "label", "wipe", "df", "mount", "umount", "serve",
            "counters", "ctl",
        ],
    ),
    (
        "Files in volumes",
        &[
            "put", "get", "ls", "tree", "find", "cat", "stat", "du", "mkdir", "rmdir", "cp", "mv",
            "ln", "rm", "touch", "truncate", "chmod", "chown", "chgrp", "xattr",
        ],
    ),
    ("Devices and benchmarks", &["info", "bench"]),
    ("Other", &["completions", "help"]),
];

/// Lists the commands in groups.
pub fn group(mut command: Command) -> Command {
    // Adds the command `help`.
    command.build();
    let mut list = String::new();
    for (heading, names) in GROUPS {
        list += &format!("\n{heading}:\n");
        for name in names {
            let about = command.find_subcommand(name).and_then(Command::get_about);
            let about = about.map(ToString::to_string).unwrap_or_default();
            list += &format!("  {name:<12} {}\n", about.trim_end_matches('.'));
        }
    }
    let template = format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n{list}\nOptions:\n{{options}}{{after-help}}\n"
    );
    command.help_template(template)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command;

    #[test]
    fn every_command_is_in_one_group() {
        let grouped: Vec<&str> = GROUPS.iter().flat_map(|(_, names)| *names).copied().collect();
        let mut command = command();
        command.build();
        let shown = command.get_subcommands().filter(|inner| !inner.is_hide_set());
        let mut shown: Vec<&str> = shown.map(Command::get_name).collect();
        let mut sorted = grouped.clone();
        shown.sort_unstable();
        sorted.sort_unstable();
        assert_eq!(sorted, shown);
    }
}

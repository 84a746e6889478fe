//! Modes as `chmod` and `mkdir -m` of coreutils take them: octal as in 644, or symbolic as in `u+x,g-w,o=rX`.

/// The bits of a mode for which no one has asked: set-user-ID and set-group-ID of directories stay as they are.
const SET_ID_BITS: u16 = 0o6000;
const ALL_BITS: u16 = 0o7777;
const EXECUTE_BITS: u16 = 0o111;

/// A change of a file's permissions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModeChange(Vec<Step>);

/// One operator, and the bits that it changes.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Step {
    operator: Operator,
    /// The bits of the users named before the operator. Without any, all bits that the umask allows.
    affected: Option<u16>,
    value: Value,
    /// The bits that the step may change on a directory even if they are set-ID bits.
    mentioned: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operator {
    Set,
    Add,
    Remove,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Value {
    Bits(u16),
    /// These bits, and execute permission for directories and files that have it for anyone (`X`).
    BitsAndSearch(u16),
    /// The permissions that a user has already, for all users.
    Copy(u16),
}

impl ModeChange {
    /// Parses an argument of the command line.
    pub fn parse(text: &str) -> Result<Self, String> {
        let steps = match text.starts_with(|first: char| first.is_ascii_digit()) {
            true => octal(text).map(|step| vec![step]),
            false => {
                text.split(',').map(clause).collect::<Option<Vec<_>>>().map(|all| all.concat())
            }
        };
        steps.map(Self).ok_or_else(|| {
            format!("invalid mode '{text}': expected octal digits, as in 644, or changes, as in u+x,go-w")
        })
    }

    /// The permissions after the change.
    pub fn apply(&self, permissions: u16, is_directory: bool, umask: u16) -> u16 {
        self.0.iter().fold(permissions, |permissions, step| {
            let kept = if is_directory { SET_ID_BITS & !step.mentioned } else { 0 };
            let value = step.value.bits(permissions, is_directory);
            let value = value & step.affected.unwrap_or(!umask) & !kept;
            match step.operator {
                Operator::Set => permissions & (!step.affected.unwrap_or(ALL_BITS) | kept) | value,
                Operator::Add => permissions | value,
                Operator::Remove => permissions & !value,
            }
        })
    }
}

impl Value {
    fn bits(self, permissions: u16, is_directory: bool) -> u16 {
        match self {
            Value::Bits(bits) => bits,
            Value::BitsAndSearch(bits) if is_directory || permissions & EXECUTE_BITS != 0 => {
                bits | EXECUTE_BITS
            }
            Value::BitsAndSearch(bits) => bits,
            Value::Copy(user) => [0o444, 0o222, EXECUTE_BITS]
                .into_iter()
                .filter(|all| permissions & user & all != 0)
                .fold(0, |bits, all| bits | all),
        }
    }
}

/// Five digits and more set all bits of a directory, too.
fn octal(text: &str) -> Option<Step> {
    let bits = u16::from_str_radix(text, 8).ok().filter(|bits| *bits <= ALL_BITS)?;
    let mentioned = if text.len() < 5 { bits & SET_ID_BITS | !SET_ID_BITS } else { ALL_BITS };
    Some(Step {
        operator: Operator::Set,
        affected: Some(ALL_BITS),
        value: Value::Bits(bits),
        mentioned,
    })
}

/// Users, and at least one operator with its permissions: `ug+x-w`.
fn clause(text: &str) -> Option<Vec<Step>> {
    let operators = text.find(['+', '-', '='])?;
    let affected = text[..operators].chars().try_fold(0, |bits, user| {
        Some(match user {
            'u' => bits | 0o4700,
            'g' => bits | 0o2070,
            'o' => bits | 0o1007,
            'a' => bits | ALL_BITS,
            _ => return None,
        })
    })?;
    let affected = (operators > 0).then_some(affected);
    let mut rest = &text[operators..];
    let mut steps = Vec::new();
    while !rest.is_empty() {
        let operator = match rest.as_bytes()[0] {
            b'=' => Operator::Set,
            b'+' => Operator::Add,
            _ => Operator::Remove,
        };
        let end = rest[1..].find(['+', '-', '=']).map_or(rest.len(), |end| end + 1);
        let value = value(&rest[1..end])?;
        let (Value::Bits(bits) | Value::BitsAndSearch(bits) | Value::Copy(bits)) = value;
        let mentioned = bits & affected.unwrap_or(ALL_BITS);
        steps.push(Step { operator, affected, value, mentioned });
        rest = &rest[end..];
    }
    Some(steps)
}

/// The permissions after an operator: letters, or one user whose permissions are copied.
fn value(text: &str) -> Option<Value> {
    match text {
        "u" => return Some(Value::Copy(0o700)),
        "g" => return Some(Value::Copy(0o070)),
        "o" => return Some(Value::Copy(0o007)),
        _ => {}
    }
    let (mut bits, mut has_search) = (0, false);
    for letter in text.chars() {
        match letter {
            'r' => bits |= 0o444,
            'w' => bits |= 0o222,
            'x' => bits |= EXECUTE_BITS,
            's' => bits |= SET_ID_BITS,
            't' => bits |= 0o1000,
            'X' => has_search = true,
            _ => return None,
        }
    }
    Some(if has_search { Value::BitsAndSearch(bits) } else { Value::Bits(bits) })
}

/// The permissions of a new file that has none of its own.
pub fn new_file_mode() -> u16 {
    0o666 & !umask()
}

/// The umask of this process.
pub fn umask() -> u16 {
    let mask = rustix::process::umask(rustix::fs::Mode::empty());
    rustix::process::umask(mask);
    mask.bits() as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changed(mode: &str, permissions: u16, is_directory: bool) -> u16 {
        ModeChange::parse(mode).unwrap().apply(permissions, is_directory, 0o022)
    }

    #[test]
    fn modes_change_the_permissions_of_files() {
        for (mode, before, after) in [
            ("644", 0o4755, 0o644),
            ("4755", 0, 0o4755),
            ("u+x,g-w", 0o660, 0o740),
            ("a=rX", 0o700, 0o555),
            ("a=rX", 0o600, 0o444),
            ("+x", 0o600, 0o711),
            ("+w", 0o400, 0o600),
            ("a+w", 0o400, 0o622),
            ("-w", 0o222, 0o022),
            ("u=rwx,g=u,o=g", 0o600, 0o777),
            ("go=", 0o777, 0o700),
            ("u+s,+t", 0o755, 0o5755),
            ("ug-s,o-t", 0o7755, 0o755),
            ("o+s", 0o644, 0o644),
            ("ug+x-r+w", 0o440, 0o330),
            ("=", 0o777, 0),
            ("=r", 0o777, 0o444),
        ] {
            assert_eq!(changed(mode, before, false), after, "{mode} of {before:o}");
        }
    }

    #[test]
    fn set_id_bits_of_directories_stay_unless_they_are_mentioned() {
        for (mode, before, after) in [
            ("755", 0o2700, 0o2755),
            ("00755", 0o2700, 0o755),
            ("4755", 0o2700, 0o6755),
            ("u=rwx,go=rx", 0o6700, 0o6755),
            ("g-s", 0o2755, 0o755),
            ("ug=s", 0o755, 0o6005),
            ("+X", 0o600, 0o711),
        ] {
            assert_eq!(changed(mode, before, true), after, "{mode} of {before:o}");
        }
    }

    #[test]
    fn other_texts_are_no_modes() {
        for text in
            ["", "u", "8", "64x", "77777", "u+y", "x+u", "u+ug", "u+x,", ",u+x", "u+x g-w", "+é"]
        {
            assert!(ModeChange::parse(text).is_err(), "{text}");
        }
    }
}

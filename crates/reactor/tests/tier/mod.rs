//! Runs a test once on each tier: with io_uring, where it is forbidden (EPERM),
//! and where it is missing (ENOSYS). Each run is this test program again. Its
//! thread installs a seccomp filter before it makes a reactor.

#![allow(dead_code)] // no test uses everything

use std::collections::BTreeMap;
use std::process::Command;

use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, apply_filter};
use uringfs_device::Errno;

/// The environment variable that names the tier of a run.
const VARIABLE: &str = "URINGFS_TEST_TIER";
/// `io_uring_enter`.
pub const ENTER: i64 = 426;
/// `io_uring_setup` and `io_uring_register` too. The numbers are the same on every architecture.
const SYSTEM_CALLS: [i64; 3] = [425, ENTER, 427];

/// The result of io_uring's system calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tier {
    Ring,
    Forbidden,
    Missing,
}

impl Tier {
    pub const ALL: [Tier; 3] = [Tier::Ring, Tier::Forbidden, Tier::Missing];

    fn name(self) -> &'static str {
        match self {
            Tier::Ring => "ring",
            Tier::Forbidden => "forbidden",
            Tier::Missing => "missing",
        }
    }

    /// A word in the reactor's reason for its tier.
    pub fn reason(self) -> &'static str {
        match self {
            Tier::Ring => "io_uring",
            Tier::Forbidden => "EPERM",
            Tier::Missing => "ENOSYS",
        }
    }
}

/// Runs `body` once a tier, each time in a process of its own. `test` is the name of the calling test, with its
/// modules.
pub fn on_every_tier(test: &str, body: impl FnOnce(Tier)) {
    if let Ok(name) = std::env::var(VARIABLE) {
        let tier = Tier::ALL.into_iter().find(|tier| tier.name() == name);
        let tier = tier.expect("the variable is set below");
        match tier {
            Tier::Ring => {}
            Tier::Forbidden => refuse(&SYSTEM_CALLS, Errno::PERM),
            Tier::Missing => refuse(&SYSTEM_CALLS, Errno::NOSYS),
        }
        return body(tier);
    }
    for tier in Tier::ALL {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args([test, "--exact", "--nocapture"]).env(VARIABLE, tier.name());
        let output = command.output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (out, error) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success(), "on tier {tier:?}:\n{out}{error}");
        assert!(out.contains("1 passed"), "there is no test {test}:\n{out}");
    }
}

/// Makes these system calls of this thread and its children fail with `errno`.
pub fn refuse(calls: &[i64], errno: Errno) {
    let rules = calls.iter().map(|call| (*call, Vec::new()));
    let refused = SeccompAction::Errno(errno.raw_os_error() as u32);
    let architecture = std::env::consts::ARCH.try_into().unwrap();
    let rules = BTreeMap::from_iter(rules);
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, refused, architecture).unwrap();
    let program: BpfProgram = filter.try_into().unwrap();
    apply_filter(&program).unwrap();
}

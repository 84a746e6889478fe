//! The description that a process with an image's lock leaves of itself, in the image's metadata, for the next one that
//! wants the lock.

use std::fmt;
use std::fs;
use std::path::Path;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use uringfs_errno::Errno;
use uringfs_rbd::Image;

/// The name in the image's metadata.
const KEY: &str = "uringfs.owner";

/// The client that has an image's lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Owner {
    /// Its address with its nonce.
    pub(super) address: String,
    /// Its process, if it is a device of this library.
    process: Option<Process>,
}

/// A process.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Process {
    id: i32,
    /// When it began, in ticks since the boot.
    began: String,
    /// The boot of its machine, and its PID namespace: process numbers of others are others.
    place: String,
    host: String,
    program: String,
    /// In seconds; 0 if it has none.
    lease: u64,
}

impl Owner {
    /// The client that has the lock; `None` if the lock is free.
    pub(super) fn find(image: &Image) -> Result<Option<Owner>, Errno> {
        let Some(address) = image.lock_owner()? else { return Ok(None) };
        let said = Owner::announced(image).unwrap_or_default();
        let is_said = said.filter(|owner| owner.address == address);
        Ok(Some(is_said.unwrap_or(Owner { address, process: None })))
    }

    /// Says that this process has the lock, with its lease. Returns the address of its client.
    pub(super) fn announce(image: &Image, lease: Option<Duration>) -> Result<String, Errno> {
        let address = image.lock_owner()?.ok_or(Errno::NOENT)?;
        image.set_metadata(KEY, &format!("{address} {}", Process::this(lease)))?;
        Ok(address)
    }

    /// The client that has said so last, whether it is still there or not. `None` if none has.
    pub(super) fn announced(image: &Image) -> Result<Option<Owner>, Errno> {
        let said = match image.metadata(KEY) {
            Err(Errno::NOENT) => return Ok(None),
            said => said?,
        };
        let (address, process) = said.split_once(' ').unwrap_or((&said, ""));
        Ok(Some(Owner { address: address.to_owned(), process: Process::parse(process) }))
    }

    /// For how long its process may be stopped. `None` if it has no lease.
    pub(super) fn lease(&self) -> Option<Duration> {
        let seconds = self.process.as_ref()?.lease;
        (seconds > 0).then(|| Duration::from_secs(seconds))
    }

    /// Whether its process ends within so long, as far as it is one of this machine. A process that was killed is there for
    /// a moment still.
    pub(super) fn ends_within(&self, patience: Duration) -> bool {
        self.process.as_ref().is_some_and(|process| process.ends_within(patience))
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "the client at {}", self.address)?;
        match &self.process {
            Some(Process { host, id, program, .. }) => {
                write!(out, " ({program}, process {id} on {host})")
            }
            None => Ok(()),
        }
    }
}

impl Process {
    fn this(lease: Option<Duration>) -> Process {
        let name = rustix::system::uname();
        let program = fs::read_to_string("/proc/self/comm").unwrap_or_default();
        Process {
            id: std::process::id() as i32,
            began: began("self").unwrap_or_default(),
            place: place(),
            host: one_word(&name.nodename().to_string_lossy()),
            program: one_word(&program),
            lease: lease.unwrap_or_default().as_secs(),
        }
    }

    fn parse(text: &str) -> Option<Process> {
        let mut words = text.split(' ').map(str::to_owned);
        Some(Process {
            id: words.next()?.parse().ok().filter(|id| *id > 0)?,
            began: words.next()?,
            place: words.next()?,
            host: words.next()?,
            program: words.next()?,
            lease: words.next()?.parse().ok()?,
        })
    }

    fn ends_within(&self, patience: Duration) -> bool {
        // A process that is not known on this machine counts as running.
        if self.began.is_empty() || self.place.is_empty() || self.place != place() {
            return false;
        }
        let Some(id) = Pid::from_raw(self.id) else { return false };
        let process = match pidfd_open(id, PidfdFlags::empty()) {
            Err(rustix::io::Errno::SRCH) => return true,
            Err(_) => return false,
            Ok(process) => process,
        };
        // Readable once all its threads have ended. Another process may have its number now.
        if began(&self.id.to_string()).is_some_and(|began| began != self.began) {
            return true;
        }
        let patience =
            Timespec { tv_sec: patience.as_secs() as i64, tv_nsec: patience.subsec_nanos().into() };
        poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&patience)) == Ok(1)
    }
}

impl fmt::Display for Process {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Process { id, began, place, host, program, lease } = self;
        write!(out, "{id} {began} {place} {host} {program} {lease}")
    }
}

/// When a process began, in ticks since the boot. `None` if it is not there, or not to be seen.
fn began(process: &str) -> Option<String> {
    // The name, which ends with the last parenthesis, comes before the state; the time is the 20th from there.
    let line = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    line.rsplit_once(") ")?.1.split(' ').nth(19).map(str::to_owned)
}

/// Empty if it is not known, or if `/proc` is that of another PID namespace.
fn place() -> String {
    let this = fs::read_link("/proc/self")
        .is_ok_and(|id| id == Path::new(&std::process::id().to_string()));
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let namespaces = ["pid", "time"].map(|kind| fs::read_link(format!("/proc/self/ns/{kind}")));
    match namespaces {
        [Ok(pid), Ok(time)] if this && !boot.is_empty() => {
            format!("{}/{}/{}", boot.trim_end(), pid.display(), time.display())
        }
        _ => String::new(),
    }
}

fn one_word(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join("_")
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_process_is_known_again() {
        let this = Process::this(None);
        assert_eq!(Process::parse(&this.to_string()), Some(this.clone()));
        assert!(!this.ends_within(Duration::ZERO));
        assert!(this.to_string().len() < 500);
    }

    #[test]
    fn a_process_has_ended_if_its_number_is_free_or_anothers() {
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let id = child.id() as i32;
        let process = Process { id, began: began(&id.to_string()).unwrap(), ..Process::this(None) };
        assert!(!process.ends_within(Duration::ZERO));
        assert!(Process { began: "1".into(), ..process.clone() }.ends_within(Duration::ZERO));
        child.kill().unwrap();
        assert!(process.ends_within(Duration::from_secs(600)));
        // It is there no longer, and the child not waited for.
        let exited =
            rustix::process::WaitIdOptions::EXITED | rustix::process::WaitIdOptions::NOWAIT;
        let of = rustix::process::WaitId::Pid(Pid::from_raw(id).unwrap());
        rustix::process::waitid(of, exited).unwrap();
        assert!(process.ends_within(Duration::ZERO));
        child.wait().unwrap();
        assert!(process.ends_within(Duration::ZERO));
        // Nothing is known of processes of other machines, and of other namespaces.
        assert!(
            !Process { place: "elsewhere".into(), ..process.clone() }.ends_within(Duration::ZERO)
        );
        assert!(!Process { place: String::new(), ..process }.ends_within(Duration::ZERO));
    }

    #[test]
    fn what_is_no_process_is_refused() {
        for id in ["", "0", "-5", "x"] {
            assert_eq!(Process::parse(&format!("{id} place host program")), None, "{id}");
        }
    }
}

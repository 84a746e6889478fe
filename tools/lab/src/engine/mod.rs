//! The engines, which do the I/O of jobs, and the choice of one by name. The run loop is generic over the
//! engine, so that there is no dispatch at run time.
//!
//! To add an engine, write a module with an `impl Engine` and add its line to the table below. The first
//! line is the default.

pub mod fio;
mod nvme_passthru;
mod psync;
mod ring;
mod threads;
mod uringfs;
#[cfg(feature = "vhost-user")]
mod vhost_user;
mod files;
mod aligned_buffer;
mod interface;
mod stack_threads;
mod thread_cost;

use interface::NO_BATCH;
pub use interface::{
    Capabilities, Engine, EngineReport, Io, IoCompletion, ReapBounds, Setup, SyncKind, WithEngine,
    add_counters,
};
pub use thread_cost::ThreadCost;

use crate::Error;
use crate::job::{find_key, nearest};
use crate::targets::Target;
use ::uringfs::device::backend::nvme::is_namespace;

macro_rules! engines {
    ($($(#[$built_in:meta])* $variant:ident $name:literal $about:literal $engine:ty,)*) => {
        /// The engines.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum EngineKind {
            $($(#[$built_in])* #[doc = concat!("`", $name, "`")] $variant,)*
            /// The installed fio, on the same jobs.
            Fio,
        }

        impl EngineKind {
            /// All engines, the default first.
            pub const ALL: &[Self] = &[$($(#[$built_in])* Self::$variant,)* Self::Fio];

            /// Its name on the command line.
            pub fn name(self) -> &'static str {
                match self {
                    $($(#[$built_in])* Self::$variant => $name,)*
                    Self::Fio => "fio",
                }
            }

            /// Its method of I/O, in one line.
            pub fn about(self) -> &'static str {
                match self {
                    $($(#[$built_in])* Self::$variant => $about,)*
                    Self::Fio => "the installed fio, on the same jobs",
                }
            }

            /// Whether the engine can do I/O on `target`.
            pub fn reaches(self, target: &Target) -> bool {
                match (self, target) {
                    (Self::NvmePassthru, Target::Path(path)) => is_namespace(path),
                    // A namespace's character device takes commands only.
                    (Self::Ring | Self::Psync | Self::Threads, Target::Path(path)) => !is_namespace(path),
                    (_, Target::Path(_)) => true,
                    (_, Target::InVolume(_)) => self.capabilities().volumes,
                    // A bare ring has one operation without a descriptor: NOP.
                    (Self::Ring, Target::Virtual(name)) => name.starts_with("null:"),
                    (_, Target::Virtual(_)) => self.capabilities().virtual_targets,
                }
            }

            /// Its capabilities. fio's depend on its `ioengine`.
            pub fn capabilities(self) -> Capabilities {
                match self {
                    $($(#[$built_in])* Self::$variant => <$engine as Engine>::CAPABILITIES,)*
                    Self::Fio => fio::CAPABILITIES,
                }
            }

            /// Runs `work` with the engine's type. fio has no type here: `None`.
            pub fn with<W: WithEngine>(self, work: W) -> Option<W::Output> {
                match self {
                    $($(#[$built_in])* Self::$variant => Some(work.call::<$engine>()),)*
                    Self::Fio => None,
                }
            }
        }
    };
}

engines! {
    Uringfs "uringfs" "this stack; also files in volumes and virtual targets" uringfs::Uringfs,
    Ring "ring" "a bare io_uring loop: the baseline" ring::Ring,
    NvmePassthru "nvme-passthru" "a bare loop of NVMe commands to /dev/ngXnY: the baseline of passthrough" nvme_passthru::NvmePassthru,
    Psync "psync" "pread and pwrite, one at a time" psync::Psync,
    Threads "threads" "pread and pwrite in as many threads as the depth" threads::Threads,
    #[cfg(feature = "vhost-user")]
    VhostUser "vhost-user" "a disk of a vhost-user-blk server" vhost_user::VhostUser,
}

impl EngineKind {
    /// A list of all engines.
    pub fn list() -> String {
        Self::ALL.iter().map(|kind| format!("{:<24}: {}\n", kind.name(), kind.about())).collect()
    }

    /// The engine with its switches, and the keys that have no effect with it.
    pub fn describe(self) -> String {
        let mut text = format!("{:>20}: {}\n", self.name(), self.about());
        if self == Self::Uringfs {
            if let Some(key) = find_key("batch") {
                text += &format!("{:>20}: {}=on|off: {}\n", "key", key.name, key.doc);
            }
            for (name, about) in ::uringfs::Options::switches() {
                text += &format!("{:>20}: {name}: {about}\n", "switch");
            }
        }
        for (key, reason) in self.capabilities().ignored_keys {
            text += &format!("{:>20}: {key}: {reason}\n", "no effect");
        }
        text
    }
}

impl Default for EngineKind {
    fn default() -> Self {
        Self::ALL[0]
    }
}

impl std::str::FromStr for EngineKind {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self, Error> {
        if cfg!(not(feature = "vhost-user")) && name == "vhost-user" {
            let line = "engine vhost-user is not built in; build with --features vhost-user";
            return Err(Error::input(line));
        }
        let names = || Self::ALL.iter().map(|kind| kind.name());
        Self::ALL.iter().find(|kind| kind.name() == name).copied().ok_or_else(|| {
            let hint = nearest(name, names())
                .map_or(String::new(), |near| format!("; the nearest is `{near}`"));
            let all: Vec<_> = names().collect();
            Error::input(format!("unknown engine `{name}`{hint} (known: {})", all.join(", ")))
        })
    }
}

/// An engine with its settings.
#[derive(Debug, Clone)]
pub struct EngineConfig {
    /// The engine.
    pub engine: EngineKind,
    /// Switches and their values.
    pub settings: Vec<(String, String)>,
    /// The program to run, for [`EngineKind::Fio`].
    pub program: std::path::PathBuf,
    /// The output of fio beside its text and JSON, for [`EngineKind::Fio`].
    pub extras: fio::Extras,
}

impl EngineConfig {
    /// An engine without settings.
    pub fn new(engine: EngineKind) -> Self {
        let extras = fio::Extras::default();
        Self { engine, settings: Vec::new(), program: "fio".into(), extras }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_engine_is_found_by_its_name() {
        for kind in EngineKind::ALL {
            assert_eq!(kind.name().parse::<EngineKind>().unwrap(), *kind);
        }
        let error = "psink".parse::<EngineKind>().unwrap_err().to_string();
        assert!(error.contains("nearest is `psync`"), "{error}");
    }

    #[cfg(not(feature = "vhost-user"))]
    #[test]
    fn an_engine_that_is_not_built_in_names_its_feature() {
        let error = "vhost-user".parse::<EngineKind>().unwrap_err().to_string();
        assert!(error.contains("build with --features vhost-user"), "{error}");
    }

    #[test]
    fn reports_subtract_and_add_by_name() {
        let report = |calls, n| EngineReport {
            system_calls: calls,
            counters: vec![("inline".into(), n)],
            ..EngineReport::default()
        };
        let mut later = report(10, 7).since(&report(4, 2));
        later.merge(&report(1, 1));
        assert_eq!((later.system_calls, later.counters[0].1), (7, 6));
    }
}

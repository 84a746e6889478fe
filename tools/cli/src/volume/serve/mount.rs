//! The tables `[[mount]]` of a configuration.

use super::super::mount::{Options, in_directory, prepare};
use super::metrics::{Observed, Page};
use super::problem::Problem;
use super::service::Service;
use super::targets::Targets;
use crate::output::print_error;
use std::io;
use std::sync::Arc;
use uringfs_fuse::{MountObserver, Unmounter};

/// A mounted volume.
pub(super) struct ServedMount {
    pub(super) options: Options,
    unmounter: Unmounter,
    has_started: bool,
    observed: Arc<ObservedMount>,
}

/// What the metrics show of a mount.
struct ObservedMount {
    target: String,
    observer: MountObserver,
}

impl Observed for ObservedMount {
    fn observe(&self, page: &mut Page) {
        if let Some(found) = self.observer.statistics() {
            page.add_volume(&self.target, &found);
        }
    }
}

/// Refuses options that do not go together.
pub(super) fn check(options: &Options) -> Result<(), Problem> {
    Problem::first(&[
        ("target", options.target.as_os_str().is_empty(), "name a volume"),
        ("directory", options.directory.as_os_str().is_empty(), "name a directory"),
    ])?;
    options.words().map(|_| ()).map_err(Problem::of("options"))
}

impl ServedMount {
    /// Mounts a volume, and returns it with its service, which has not begun.
    pub(super) fn prepare(
        options: &Options,
        Targets { registry, control, .. }: &Targets,
    ) -> Result<(ServedMount, Service), Problem> {
        let mount = prepare(options).map_err(|(key, error)| Problem { key, error })?;
        let unmounter = mount.unmounter();
        let mount = mount.control(control).map_err(|error| {
            let _ = unmounter.unmount();
            Problem { key: "directory", error: in_directory(&options.directory, error) }
        })?;
        let target = options.target.to_string_lossy().into_owned();
        let observed = Arc::new(ObservedMount { target, observer: mount.observer() });
        registry.insert(&observed);
        let directory = options.directory.clone();
        let stop = {
            let (unmounter, directory) = (unmounter.clone(), directory.clone());
            let observer = mount.observer();
            // Programs that use the mount keep it until they end. If another has unmounted it, there is nothing to do.
            move || {
                if observer.statistics().is_some()
                    && let Err(error) = unmounter.unmount_lazily()
                {
                    print_error(&in_directory(&directory, error).to_string());
                }
            }
        };
        let serve = move || {
            let shown = |error| io::Error::other(in_directory(&directory, error).to_string());
            mount.serve().map_err(shown)
        };
        let service = Service::new("uringfs-fuse", serve, stop);
        let mount =
            ServedMount { options: options.clone(), unmounter, has_started: false, observed };
        Ok((mount, service))
    }

    /// False once it is unmounted, by whatever program.
    pub(super) fn is_mounted(&self) -> bool {
        self.observed.observer.statistics().is_some()
    }

    /// Its thread unmounts it from now on.
    pub(super) fn has_started(&mut self) {
        self.has_started = true;
    }

    /// The line for its directory.
    pub(super) fn lines(&self) -> String {
        format!("{}\n", self.options.directory.display())
    }
}

impl Drop for ServedMount {
    fn drop(&mut self) {
        if !self.has_started {
            let _ = self.unmounter.unmount_lazily();
        }
    }
}

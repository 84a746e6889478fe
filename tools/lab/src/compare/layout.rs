//! The files of all sides, laid out once before the first run.

use crate::job::JobSet;
use crate::run::{Plan, RunProgress};
use crate::targets::CreatedFiles;
use crate::{Error, ErrorKind};
use std::sync::atomic::AtomicBool;

/// The files that a comparison creates.
#[derive(Debug)]
pub(crate) struct Layout {
    /// The plan that has the missing files of all sides; `None` if no side runs.
    plan: Option<Plan>,
    created: CreatedFiles,
}

impl Layout {
    /// Plans the missing files of the sides, each for all that use it. The files of jobs with `unlink` are left to the runs.
    pub fn new<'a>(sides: impl IntoIterator<Item = (Option<Plan>, &'a JobSet)>) -> Self {
        let mut all: Option<Plan> = None;
        for (plan, set) in sides {
            let Some(mut plan) = plan else { continue };
            plan.leave_out_unlinked(&set.jobs);
            match &mut all {
                Some(all) => all.share_files(plan),
                None => all = Some(plan),
            }
        }
        Self { plan: all, created: CreatedFiles::default() }
    }

    /// Creates the files, with their whole lengths, and claims all targets.
    pub fn create(&mut self, stop: &AtomicBool, progress: &RunProgress) -> Result<(), Error> {
        if let Some(plan) = &mut self.plan {
            plan.create_whole_files();
            // Before the first byte, and then what has been created.
            plan.claim()?;
            self.created = plan.lay_out(&plan.open_volumes()?, stop, progress)?;
            plan.claim()?;
        }
        Ok(())
    }

    /// The names of the created files.
    pub fn names(&self) -> Vec<String> {
        self.created.names()
    }

    /// Ends the runs, and returns whether an interrupt has: that is no error after a whole round. Files stay only after
    /// runs that ended by themselves.
    pub fn end(&mut self, ended: Result<(), Error>, rounds: usize) -> Result<bool, Error> {
        let Err(error) = ended else { return Ok(false) };
        self.remove();
        match error.kind() {
            ErrorKind::Interrupted if rounds > 0 => Ok(true),
            _ => Err(error),
        }
    }

    fn remove(&mut self) {
        // A volume that cannot be opened again keeps its files, as after any failure of its device.
        if let Some(volumes) = self.plan.as_ref().and_then(|plan| plan.open_volumes().ok()) {
            self.created.remove(&volumes);
        }
    }
}

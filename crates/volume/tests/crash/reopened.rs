//! A flush or a write of a commit fails, so the volume stops. It is reopened and used, and then the
//! power is cut. The state that reopening found is there, whether the device had made it durable
//! before or not.

use uringfs_device::backend::sim::CrashPlan;
use uringfs_device::{Device, Errno, Op};
use uringfs_volume::{Rename, Volume};

use crate::campaign::Campaign;
use crate::found::Found;
use crate::history::Run;
use crate::operation::{BEFORE, Ends, Operation, Operation::*, drawn};
use crate::random::{self, Random};
use crate::{Bases, run_in_parallel};

/// Runs in an ordinary test run.
const RUNS: usize = 32;
/// Minimal numbers of requests of a sync and of closing the volume.
const FLUSHES: u64 = 7;
const WRITES: u64 = 16;

/// The operations of the failing commit. None writes in place: after a failed flush the content of
/// such writes is unknown, whatever a read finds.
const FAILING: [Operation; 10] = [
    Remove { path: "/a" },
    Remove { path: "/b" },
    Truncate { path: "/a" },
    Move { path: "/a", new: "/b", how: Rename::Replace },
    Move { path: "/a", new: "/b", how: Rename::Exchange },
    Move { path: "/b", new: "/d", how: Rename::NoReplace },
    Link { path: "/a", new: "/e" },
    Symlink { path: "/s" },
    Write { path: "/c", offset: 0, length: 10_000, ends: Ends::Volatile },
    SetXattr { path: "/b", length: 5000 },
];

impl<'r> Run<'r> {
    /// Makes the `nth` request of a kind fail during a sync and the closing of the volume, and
    /// reopens the volume. The state that is found then stays.
    fn fail_and_reopen(mut self, op: Op, nth: u64) -> Run<'r> {
        self.history.sim.fail_nth(op, nth, Errno::IO);
        if self.volume.sync().is_ok() {
            self.mark_all_durable();
        }
        let Run { history, volume, reactor, held } = self;
        drop((volume, held));
        history.sim.clear_faults();
        let volume = Volume::open_on(Device::new(history.sim.clone()).unwrap()).unwrap();
        let found = Found::read(&volume, reactor).unwrap();
        let mut run = Run { history, volume, reactor, held: None };
        run.continue_from(&found);
        run.mark_all_durable();
        run
    }
}

#[test]
fn a_state_found_after_a_failed_commit_survives_a_power_cut() {
    let (bases, campaign) = (Bases::new(), Campaign::default());
    run_in_parallel(0..random::scaled(RUNS) as u64, |seed, reactor| {
        let mut random = Random(seed);
        let (op, count) = [(Op::Flush, FLUSHES), (Op::Write, WRITES)][seed as usize % 2];
        let nth = 1 + seed / 2 % count;
        let failing: Vec<Operation> = (0..1 + random.below(3))
            .map(|_| FAILING[random.below(FAILING.len() as u64) as usize])
            .collect();
        let mut run = bases.begin(seed, reactor);
        run.perform_all(&BEFORE);
        run.begin_cuts();
        run.perform_all(&failing);
        let mut run = run.fail_and_reopen(op, nth);
        let then = drawn(seed, 8);
        run.perform_all(&then);
        let plan = CrashPlan { exhaustive_up_to: 2, samples: 2, seed };
        let checked = campaign.check(&run.end(), plan, reactor);
        checked.unwrap_or_else(|flaw| {
            panic!("seed {seed}: {failing:?}, {op:?} {nth} fails, then {then:?}: {flaw}")
        });
    });
}

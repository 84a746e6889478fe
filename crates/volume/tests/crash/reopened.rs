//! A flush or a write of a commit fails, so that the volume stops; it is opened again and used on, and then the power is
//! cut: what was found by opening it again is there, whether the device had made it durable before or not.

use uringfs_device::backend::sim::CrashPlan;
use uringfs_device::{Device, Errno, Op};
use uringfs_volume::{Rename, Volume};

use crate::campaign::Campaign;
use crate::drive::{self, Random};
use crate::found::Found;
use crate::history::Run;
use crate::operation::{BEFORE, Ends, Operation, Operation::*, drawn};
use crate::{Bases, side_by_side};

/// Runs that are usual in the midst of all other tests.
const RUNS: usize = 32;
/// Requests of those that sync and close the volume, at the least.
const FLUSHES: u64 = 7;
const WRITES: u64 = 16;

/// What the commit that fails holds. None of it writes in place: what of such bytes is there after a flush that failed
/// nobody knows, however it is found.
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
    /// Has a request fail, the `nth` of its kind from now on, while everything is synced and the volume is closed; and
    /// opens it again. What is found then stays.
    fn fail_and_open_again(mut self, op: Op, nth: u64) -> Run<'r> {
        self.history.sim.fail_nth(op, nth, Errno::IO);
        if self.volume.sync().is_ok() {
            self.promise_all();
        }
        let Run { history, volume, reactor, held } = self;
        drop((volume, held));
        history.sim.clear_faults();
        let volume = Volume::open_on(Device::new(history.sim.clone()).unwrap()).unwrap();
        let found = Found::read(&volume, reactor).unwrap();
        let mut run = Run { history, volume, reactor, held: None };
        run.go_on_from(&found);
        run.promise_all();
        run
    }
}

#[test]
fn what_is_found_after_a_commit_that_failed_is_there_after_a_power_cut() {
    let (bases, campaign) = (Bases::new(), Campaign::default());
    side_by_side(0..drive::scaled(RUNS) as u64, |seed, reactor| {
        let mut random = Random(seed);
        let (op, count) = [(Op::Flush, FLUSHES), (Op::Write, WRITES)][seed as usize % 2];
        let nth = 1 + seed / 2 % count;
        let failing: Vec<Operation> = (0..1 + random.below(3))
            .map(|_| FAILING[random.below(FAILING.len() as u64) as usize])
            .collect();
        let mut run = bases.begin(seed, reactor);
        run.perform_all(&BEFORE);
        run.begin_here();
        run.perform_all(&failing);
        let mut run = run.fail_and_open_again(op, nth);
        let then = drawn(seed, 8);
        run.perform_all(&then);
        let plan = CrashPlan { exhaustive_up_to: 2, samples: 2, seed };
        let checked = campaign.check(&run.end(), plan, reactor);
        checked.unwrap_or_else(|flaw| {
            panic!("seed {seed}: {failing:?}, {op:?} {nth} fails, then {then:?}: {flaw}")
        });
    });
}

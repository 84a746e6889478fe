//! Power cuts at every write of a run of commits.

use uringfs_device::backend::sim::{CrashPlan, Promises};

use super::*;

/// States of a catalog, each with the event after which it was acknowledged.
struct History {
    sim: Sim,
    states: Vec<(u64, Records)>,
}

/// How a batch is committed.
type Commit = fn(&Catalog, &Batch) -> Result<(), Error>;

/// Commits batches, remembering what was acknowledged when.
fn run(sim: Sim, seed: u64, batches: &[(u64, u64)]) -> History {
    run_by(Catalog::commit, sim, seed, batches)
}

fn run_by(commit: Commit, sim: Sim, seed: u64, batches: &[(u64, u64)]) -> History {
    let catalog = create_on(&sim);
    sim.restart_record();
    let now = |sim: &Sim| sim.forgotten() + sim.record().len() as u64;
    let mut records = Records::new();
    let mut states = vec![(now(&sim), records.clone())];
    let mut random = Random(seed);
    for &(changes, value) in batches {
        let batch = random_batch(&mut random, changes, value, &mut records);
        commit(&catalog, &batch).unwrap();
        states.push((now(&sim), records.clone()));
    }
    catalog.close().unwrap();
    History { sim, states }
}

/// Opens what each crash leaves; the first that is wrong, and how many there were.
fn check(run: &History, plan: CrashPlan) -> Result<usize, String> {
    let mut count = 0;
    for image in run.sim.crash_images(plan) {
        count += 1;
        let place = format!("seed {}, cut {}, {:?}", plan.seed, image.cut, image.crash);
        let acknowledged = run.states.iter().rposition(|(at, _)| *at <= image.cut);
        let acknowledged = acknowledged.ok_or("cut before the first state")?;
        let catalog = open_on(&image.sim).map_err(|error| format!("{place}: {error}"))?;
        let found = all_of(&catalog).map_err(|error| format!("{place}: {error}"))?;
        let legal = &run.states[acknowledged..(acknowledged + 2).min(run.states.len())];
        if !legal.iter().any(|(_, records)| *records == found) {
            let which = run.states.iter().position(|(_, records)| *records == found);
            return Err(format!("{place}: state {which:?}, acknowledged {acknowledged}"));
        }
        if catalog.was_repaired() {
            return Err(format!("{place}: every page was read to recover"));
        }
        // What was found goes on: a commit, opened once more.
        if count % 7 == 0 {
            let mut records = found;
            for _ in 0..2 {
                let batch = random_batch(&mut Random(image.cut), 20, 200, &mut records);
                log_or_commit(&catalog, &batch).map_err(|error| format!("{place}: {error}"))?;
            }
            drop(catalog);
            let again = open_on(&image.sim).map_err(|error| format!("{place}: {error}"))?;
            if all_of(&again).map_err(|error| format!("{place}: {error}"))? != records {
                return Err(format!("{place}: another state after one more commit"));
            }
        }
    }
    Ok(count)
}

const SMALL: [(u64, u64); 10] = [
    (3, 20),
    (10, 200),
    (1, 20),
    (60, 100),
    (0, 0),
    (5, 5000),
    (40, 30),
    (2, 20),
    (30, 900),
    (4, 40),
];

#[test]
fn a_crash_at_every_write_leaves_a_committed_state() {
    for seed in 1..=2 {
        let run = run(new_sim(), seed, &SMALL);
        let plan = CrashPlan { exhaustive_up_to: 3, samples: 4, seed };
        let count = check(&run, plan).unwrap();
        assert!(count > 1000, "{count} images");
    }
}

#[test]
fn a_crash_while_the_storage_grows_and_shrinks_leaves_a_committed_state() {
    let seed = 3;
    let sim = new_sim();
    let run = run(sim, seed, &[(60, 9000), (80, 9000), (80, 9000), (300, 0), (300, 0), (5, 10)]);
    let count = check(&run, CrashPlan { exhaustive_up_to: 2, samples: 2, seed }).unwrap();
    assert!(count > 300, "{count} images");
}

/// Twice as many: all go into the log but those that are larger than it, and those that find it full.
fn logged() -> Vec<(u64, u64)> {
    SMALL.iter().chain(&SMALL).copied().collect()
}

#[test]
fn a_crash_while_batches_go_into_the_log_leaves_a_committed_state() {
    for seed in 6..=7 {
        let run = run_by(log_or_commit, new_sim(), seed, &logged());
        let plan = CrashPlan { exhaustive_up_to: 3, samples: 4, seed };
        let count = check(&run, plan).unwrap();
        assert!(count > 500, "{count} images");
    }
}

#[test]
fn a_crash_inside_recovery_leaves_the_same_state() {
    for (commit, batches) in [(Catalog::commit as Commit, &SMALL[..4]), (log_or_commit, &SMALL)] {
        let run = run_by(commit, new_sim(), 4, batches);
        let plan = CrashPlan { exhaustive_up_to: 1, samples: 1, seed: 4 };
        for image in run.sim.crash_images(plan).step_by(11) {
            let catalog = open_on(&image.sim).unwrap();
            let found = all_of(&catalog).unwrap();
            catalog.commit(&Batch::default()).unwrap();
            drop(catalog);
            for inner in image.sim.crash_images(CrashPlan { samples: 2, ..plan }) {
                let again = all_of(&open_on(&inner.sim).unwrap()).unwrap();
                assert!(again == found, "cut {}, then {}, {:?}", image.cut, inner.cut, inner.crash);
            }
        }
    }
}

#[test]
fn a_device_that_lies_about_flushes_is_found() {
    for commit in [Catalog::commit as Commit, log_or_commit] {
        let sim = Sim::new(SimOptions::new(DEVICE_BLOCKS * BLOCK).promises(Promises::Broken));
        let run = run_by(commit, sim, 5, &SMALL);
        let plan = CrashPlan { exhaustive_up_to: 2, samples: 4, seed: 5 };
        check(&run, plan).expect_err("commits without flushes pass for durable ones");
    }
}

#[test]
fn a_commit_makes_two_heads_durable() {
    let catalog = create_on(&new_sim());
    let heads = || catalog.state.read().open.as_ref().unwrap().store.heads();
    for (index, &(changes, value)) in SMALL.iter().enumerate() {
        let before = heads();
        let batch = random_batch(&mut Random(9), changes, value, &mut Records::new());
        catalog.commit(&batch).unwrap();
        assert_eq!(heads(), before + 2, "commit {index}");
    }
}

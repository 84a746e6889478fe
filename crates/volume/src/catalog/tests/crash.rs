//! Power cuts at every write of a sequence of commits.

use uringfs_device::backend::sim::{CrashPlan, FlushMode};

use super::*;

/// The states of a catalog, each with the event at which it was acknowledged.
struct History {
    sim: Sim,
    states: Vec<(u64, Records)>,
}

/// Commits batches and records when each was acknowledged.
fn run(sim: Sim, seed: u64, batches: &[(u64, u64)]) -> History {
    run_with(sim, seed, batches, |catalog, batch| catalog.checkpoint(batch).unwrap())
}

/// As [`run`], through the log.
fn run_logged(sim: Sim, seed: u64, batches: &[(u64, u64)]) -> History {
    run_with(sim, seed, batches, log_or_checkpoint)
}

fn run_with(
    sim: Sim,
    seed: u64,
    batches: &[(u64, u64)],
    commit: impl Fn(&Catalog, &Batch),
) -> History {
    let catalog = create_on(&sim);
    sim.restart_record();
    let mut records = Records::new();
    let mut states = vec![(sim.events(), records.clone())];
    let mut random = Random(seed);
    for &(changes, value) in batches {
        let batch = random_batch(&mut random, changes, value, &mut records);
        commit(&catalog, &batch);
        states.push((sim.events(), records.clone()));
    }
    catalog.close().unwrap();
    History { sim, states }
}

/// Opens the image of each crash. Returns the first error, or the number of images.
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
            return Err(format!("{place}: recovery read every page"));
        }
        // The recovered catalog works: it takes some commits, with the log records that it has, and
        // opens again.
        if count % 7 == 0 {
            let (mut records, mut random) = (found, Random(image.cut));
            for _ in 0..3 {
                log_or_checkpoint(&catalog, &random_batch(&mut random, 20, 200, &mut records));
            }
            drop(catalog);
            let again = open_on(&image.sim).map_err(|error| format!("{place}: {error}"))?;
            if all_of(&again).map_err(|error| format!("{place}: {error}"))? != records {
                return Err(format!("{place}: a different state after more commits"));
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

#[test]
fn a_crash_inside_recovery_leaves_the_same_state() {
    let run = run(new_sim(), 4, &SMALL[..4]);
    let plan = CrashPlan { exhaustive_up_to: 1, samples: 1, seed: 4 };
    for image in run.sim.crash_images(plan).step_by(11) {
        let found = all_of(&open_on(&image.sim).unwrap()).unwrap();
        for inner in image.sim.crash_images(CrashPlan { samples: 2, ..plan }) {
            let again = all_of(&open_on(&inner.sim).unwrap()).unwrap();
            assert!(again == found, "cut {}, then {}, {:?}", image.cut, inner.cut, inner.crash);
        }
    }
}

#[test]
fn a_device_that_lies_about_flushes_is_detected() {
    // By FUA the log is durable nevertheless.
    let sim = || {
        let options = SimOptions::new(DEVICE_BLOCKS * BLOCK).cache(WriteCache::Volatile);
        Sim::new(options.flush_mode(FlushMode::Broken))
    };
    let plan = CrashPlan { exhaustive_up_to: 2, samples: 4, seed: 5 };
    for run in [run(sim(), 5, &SMALL), run_logged(sim(), 5, &LITTLE)] {
        check(&run, plan).expect_err("commits without flushes are not durable");
    }
}

/// Several of these batches fit into the log, and one does not.
const LITTLE: [(u64, u64); 14] = [
    (3, 20),
    (10, 200),
    (0, 0),
    (60, 100),
    (5, 900),
    (1, 20),
    (40, 300),
    (5, 5000),
    (40, 30),
    (9, 5000),
    (2, 20),
    (30, 100),
    (4, 40),
    (20, 600),
];

#[test]
fn a_crash_at_every_write_keeps_logged_commits() {
    for (seed, cache) in (11..=14).zip(CACHES.into_iter().cycle()) {
        let run = run_logged(new_sim_with(cache), seed, &LITTLE);
        let plan = CrashPlan { exhaustive_up_to: 4, samples: 8, seed };
        let count = check(&run, plan).unwrap();
        assert!(count > 300, "{cache:?}: {count} images");
    }
}

#[test]
fn a_second_crash_after_recovery_keeps_logged_commits() {
    for (seed, cache) in (15..).zip(CACHES) {
        crash_twice(seed, cache);
    }
}

fn crash_twice(seed: u64, cache: WriteCache) {
    let run = run_logged(new_sim_with(cache), seed, &LITTLE);
    let plan = CrashPlan { exhaustive_up_to: 2, samples: 2, seed };
    let (mut count, mut logged) = (0, 0);
    for image in run.sim.crash_images(plan).step_by(17) {
        let catalog = open_on(&image.sim).unwrap();
        let mut records = all_of(&catalog).unwrap();
        logged += usize::from(catalog.logged_size() != BatchSize::default());
        let mut states = vec![(0, records.clone())];
        for changes in [6, 3, 9] {
            let batch = random_batch(&mut Random(image.cut), changes, 50, &mut records);
            log_or_checkpoint(&catalog, &batch);
            states.push((image.sim.events(), records.clone()));
        }
        drop(catalog);
        count += check(&History { sim: image.sim, states }, plan).unwrap();
    }
    assert!(count > 300 && logged > 10, "{count} images, {logged} of them with records in the log");
}

#[test]
fn a_commit_makes_two_headers_durable() {
    let catalog = create_on(&new_sim());
    let heads = || catalog.state.read().open.as_ref().unwrap().store.durable_headers();
    for (index, &(changes, value)) in SMALL.iter().enumerate() {
        let before = heads();
        let batch = random_batch(&mut Random(9), changes, value, &mut Records::new());
        catalog.checkpoint(&batch).unwrap();
        assert_eq!(heads(), before + 2, "commit {index}");
    }
}

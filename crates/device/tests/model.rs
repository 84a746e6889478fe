//! Every operation on every queue and back end has the same effect as on a plain
//! vector of bytes; the same seed leaves the same bytes everywhere.

mod harness;

use harness::model::{DEPTH, SIZE, run};
use harness::test_queues;

#[test]
fn every_queue_and_back_end_agrees_with_the_model() {
    let folder = tempfile::tempdir().unwrap();
    for seed in [1, 2] {
        println!("seed {seed}");
        let mut first: Option<Vec<Option<u8>>> = None;
        for mut tested in test_queues(folder.path(), SIZE, DEPTH) {
            let model = run(&mut tested, seed, 4096);
            let first = first.get_or_insert_with(|| model.bytes.clone());
            assert!(
                *first == model.bytes,
                "{}, seed {seed}: other bytes than the first",
                tested.name
            );
        }
    }
}

#[test]
fn ranges_of_single_blocks_agree_with_the_model() {
    let folder = tempfile::tempdir().unwrap();
    let seed = 3;
    println!("seed {seed}");
    for mut tested in test_queues(folder.path(), SIZE, DEPTH) {
        let unit = tested.device.geometry().block_size as u64;
        run(&mut tested, seed, unit);
    }
}

//! Shows the states that a power loss may leave. Writes, flushes and writes twice on a simulated device. Then it opens
//! and reads every state in which the device may be after a power loss.
//!
//!     cargo run --example simulate_crash [SEED]

use std::collections::BTreeMap;
use std::error::Error;

use uringfs::device::Device;
use uringfs::device::backend::sim::{CrashPlan, Sim, SimOptions};
use uringfs::file::FileOptions;
use uringfs::{Buffer, Errno, File, Reactor, ReactorOptions};

const BLOCK: usize = 4096;

fn main() -> Result<(), Box<dyn Error>> {
    let seed = std::env::args().nth(1).map_or(Ok(7), |seed| seed.parse())?;
    let reactor = Reactor::new(ReactorOptions::default())?;
    let sim = Sim::new(SimOptions::new(1 << 20).seed(seed));
    let file = File::from_device(Device::new(sim.clone())?, FileOptions::default());

    // The number of events when each step was complete.
    let mut steps = vec![(0, "nothing yet")];
    let mut done = |step| steps.push((sim.events(), step));
    reactor.block_on(async {
        write(&file, 0, b'A').await?;
        done("A written to block 0");
        file.sync_data().await?;
        done("flushed");
        write(&file, 0, b'B').await?;
        done("B written over it");
        write(&file, 1, b'C').await?;
        done("C written to block 1, not flushed");
        Ok::<_, Errno>(())
    })?;

    // For each moment: every subset of the writes that a crash may lose, and some torn writes.
    let plan = CrashPlan { exhaustive_up_to: 4, samples: 8, seed };
    let mut states: BTreeMap<u64, BTreeMap<String, u32>> = BTreeMap::new();
    for image in sim.crash_images(plan) {
        let found = File::from_device(Device::new(image.sim)?, FileOptions::default());
        let state = reactor.block_on(async {
            Ok::<_, Errno>(format!("{} {}", block(&found, 0).await?, block(&found, 1).await?))
        })?;
        *states.entry(image.cut).or_default().entry(state).or_default() += 1;
    }

    let flushed = steps[2].0;
    println!("seed {seed}; blocks 0 and 1 after a power loss (. is zeros):");
    for (events, step) in steps {
        println!("\nafter: {step}");
        for state in states[&events].keys() {
            println!("    {state}");
        }
    }
    // Flushed data is not lost: after the flush, block 0 holds A or the overwrite.
    let flushed = states.range(flushed..).flat_map(|(_, states)| states.keys());
    assert!(flushed.into_iter().all(|state| !state[..BLOCK / 512].contains('.')));
    Ok(())
}

async fn write(file: &File, block: u64, letter: u8) -> Result<(), Errno> {
    let bytes = Buffer::copy_of(&[letter; BLOCK]);
    file.write_at(bytes, block * BLOCK as u64).await.0.map(drop)
}

/// A block as text: one letter for each sector.
async fn block(file: &File, block: u64) -> Result<String, Errno> {
    let (length, bytes) = file.read_at(Buffer::zeroed(BLOCK), block * BLOCK as u64).await;
    assert_eq!(length?, BLOCK);
    let letter = |sector: &[u8]| match sector[0] {
        0 => '.',
        letter => char::from(letter),
    };
    Ok(bytes.chunks(512).map(letter).collect())
}

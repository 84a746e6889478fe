//! Measures durable puts, and gets, of a volume beside `LocalFileSystem` with fsync, in interleaved pairs: a round of one
//! store, a round of the other, and the order changes from pair to pair.
//!
//!     cargo run --release -p uringfs-object-store --example object_store_bench -- FOLDER [PAIRS]
//!
//! Run it on an idle machine; FOLDER is on the file system to compare with, and has 6 GiB free. Of objects of 64 KiB and of
//! 8 MiB 16 puts or gets are in flight, of 16 tasks on tokio's threads. The volume is in an image in the same folder. Each
//! line has the rates' medians and the ratio of rates, ours by theirs: the median of the pairs, the least and the greatest.

use std::error::Error;
use std::path::Path as FilePath;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use tokio::task::JoinSet;
use uringfs::volume::CheckOptions;
use uringfs::{AsyncVolume, FormatOptions};
use uringfs_object_store::UringfsStore;

const TASKS: usize = 16;
const IMAGE_BYTES: u64 = 3 << 30;
/// The length of an object, the number of different ones, and the numbers of puts and of gets of a round.
const CASES: [(usize, usize, [usize; 2]); 2] =
    [(64 << 10, 512, [2048, 16_384]), (8 << 20, 64, [128, 256])];

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

#[derive(Clone, Copy)]
enum Kind {
    Put,
    Get,
}

#[tokio::main]
async fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let folder = arguments.next().ok_or("usage: object_store_bench FOLDER [PAIRS]")?;
    let pairs: usize = arguments.next().map_or(Ok(7), |pairs| pairs.parse())?;
    let folder = tempfile::tempdir_in(folder)?;
    let theirs = local(&folder.path().join("files"))?;
    let image = folder.path().join("image");
    uringfs::create_image(&image, IMAGE_BYTES)?;
    let options = FormatOptions::new().overwrite(true);
    let ours = UringfsStore::new(AsyncVolume::create(&image, &options).await?);
    let stores: [Arc<dyn ObjectStore>; 2] = [Arc::new(ours.clone()), Arc::new(theirs)];
    for (length, objects, [puts, gets]) in CASES {
        for (name, kind, count) in [("put", Kind::Put, puts), ("get", Kind::Get, gets)] {
            let mut rates = [Vec::new(), Vec::new()];
            for pair in 0..=pairs {
                for side in if pair % 2 == 0 { [0, 1] } else { [1, 0] } {
                    let taken = round(&stores[side], kind, length, objects, count).await?;
                    // The first pair fills caches.
                    if pair > 0 {
                        rates[side].push(count as f64 / taken.as_secs_f64());
                    }
                }
            }
            print(&format!("{name} of {} KiB", length >> 10), &rates);
        }
    }
    drop(stores);
    ours.into_volume().close().await?;
    let device = uringfs::device::Device::open(&image, uringfs::device::Access::Read)?;
    let report = uringfs::Volume::check(&device, CheckOptions::new(), &mut |_, _| {})?;
    if report.is_sound() {
        Ok(())
    } else {
        Err(format!("the volume is damaged: {report:?}").into())
    }
}

fn local(folder: &FilePath) -> Result<LocalFileSystem> {
    std::fs::create_dir(folder)?;
    Ok(LocalFileSystem::new_with_prefix(folder)?.with_fsync(true))
}

/// The time of `count` puts or gets.
async fn round(
    store: &Arc<dyn ObjectStore>,
    kind: Kind,
    length: usize,
    objects: usize,
    count: usize,
) -> Result<Duration> {
    let content: Bytes = (0..length).map(|at| (at / 5) as u8).collect::<Vec<_>>().into();
    let next = Arc::new(AtomicUsize::new(0));
    let mut tasks = JoinSet::new();
    let begin = Instant::now();
    for _ in 0..TASKS {
        let (store, next, content) = (store.clone(), next.clone(), content.clone());
        tasks.spawn(async move {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= count {
                    return Ok::<_, object_store::Error>(());
                }
                let path = Path::from(format!("{length}/{:04}", number % objects));
                match kind {
                    Kind::Put => drop(store.put(&path, content.clone().into()).await?),
                    Kind::Get => {
                        let bytes = store.get(&path).await?.bytes().await?;
                        assert_eq!((bytes.len(), bytes[length - 1]), (length, content[length - 1]));
                    }
                }
            }
        });
    }
    while let Some(task) = tasks.join_next().await {
        task??;
    }
    Ok(begin.elapsed())
}

fn print(what: &str, rates: &[Vec<f64>; 2]) {
    let [ours, theirs] = rates;
    let sorted = |mut values: Vec<f64>| {
        values.sort_by(f64::total_cmp);
        values
    };
    let median = |values: &[f64]| sorted(values.to_vec())[values.len() / 2];
    let ratios = sorted(ours.iter().zip(theirs).map(|(ours, theirs)| ours / theirs).collect());
    println!(
        "{what}: uringfs {:.0} a second, LocalFileSystem with fsync {:.0}; ratio {:.2} [{:.2}, {:.2}]",
        median(ours),
        median(theirs),
        median(&ratios),
        ratios[0],
        ratios[ratios.len() - 1],
    );
}

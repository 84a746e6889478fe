//! Files in a single-threaded tokio runtime. The reactor is not the executor here: tokio polls the tasks and sleeps,
//! and [`run`] drives the reactor in between.
//!
//!     cargo run --example tokio_current_thread

use std::error::Error;
use std::io;
use std::pin::pin;
use std::task::{Poll, ready};

use tokio::io::unix::AsyncFd;
use tokio::runtime::Builder;
use tokio::task::{LocalSet, spawn_local};
use uringfs::device::Access;
use uringfs::{Buffer, File, Reactor, ReactorOptions};

const BLOCK: usize = 4096;
const BLOCKS: u64 = 64;

fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("image");
    uringfs::create_image(&path, BLOCKS * BLOCK as u64)?;
    let file = File::open(&path, Access::ReadWrite)?;

    // This thread runs the tasks, so their operations are issued and completed on this reactor.
    let reactor = Reactor::new(ReactorOptions::default())?;
    let tokio = Builder::new_current_thread().enable_io().build()?;
    let tasks = LocalSet::new();
    let blocks = tokio.block_on(run(&reactor, tasks.run_until(work(file))))??;
    println!("{blocks} blocks written and read back, a task each");
    Ok(())
}

/// Starts a task for each block, which writes, reads and compares it.
async fn work(file: File) -> io::Result<u64> {
    let mut tasks = Vec::new();
    for block in 0..BLOCKS {
        let file = file.clone();
        tasks.push(spawn_local(async move {
            let offset = block * BLOCK as u64;
            let (written, buffer) =
                file.write_at(Buffer::copy_of(&[block as u8; BLOCK]), offset).await;
            written?;
            let (read, buffer) = file.read_at(buffer, offset).await;
            assert_eq!(read?, BLOCK);
            assert!(buffer.iter().all(|byte| *byte == block as u8));
            io::Result::Ok(())
        }));
    }
    for task in tasks {
        task.await??;
    }
    file.sync_data().await?;
    Ok(BLOCKS)
}

/// Runs a future with a reactor, and so all tasks of the [`LocalSet`] that the future drives. After each poll the
/// reactor submits the requests of the tasks. While all tasks wait, tokio watches the reactor's descriptor.
async fn run<F: Future>(reactor: &Reactor, future: F) -> io::Result<F::Output> {
    let descriptor = reactor.fd()?.try_clone_to_owned()?;
    // The replacement, `register`, is unsafe: its caller must keep the descriptor open. An `OwnedFd` guarantees that by
    // itself.
    #[allow(deprecated)]
    let descriptor = AsyncFd::new(descriptor)?;
    let mut future = pin!(future);
    std::future::poll_fn(|context| {
        loop {
            if let Poll::Ready(output) = future.as_mut().poll(context) {
                return Poll::Ready(Ok(output));
            }
            reactor.turn()?;
            ready!(descriptor.poll_read_ready(context))?.clear_ready();
        }
    })
    .await
}

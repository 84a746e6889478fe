//! Awaiting files inside a tokio runtime of one thread. The reactor is no executor here: tokio
//! polls the tasks and sleeps, and [`run`] gives the reactor its turn in between.
//!
//!     cargo run --example tokio_current_thread

use std::error::Error;
use std::io;
use std::pin::pin;
use std::task::{Poll, ready};

use tokio::io::unix::AsyncFd;
use tokio::runtime::Builder;
use tokio::task::{LocalSet, spawn_local};
use uringfs::{Access, Buffer, File, Reactor, ReactorOptions};

const BLOCK: usize = 4096;
const BLOCKS: u64 = 64;

fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("image");
    uringfs::create_image(&path, BLOCKS * BLOCK as u64)?;
    let file = File::open(&path, Access::ReadWrite)?;

    // Of the thread that runs the tasks: their operations are issued and completed on it.
    let reactor = Reactor::new(ReactorOptions::default())?;
    let tokio = Builder::new_current_thread().enable_io().build()?;
    let tasks = LocalSet::new();
    let blocks = tokio.block_on(run(&reactor, tasks.run_until(work(file))))??;
    println!("{blocks} blocks written and read back, a task each");
    Ok(())
}

/// A task for each block: writes it, reads it, compares.
async fn work(file: File) -> io::Result<u64> {
    let mut tasks = Vec::new();
    for block in 0..BLOCKS {
        let file = file.clone();
        tasks.push(spawn_local(async move {
            let offset = block * BLOCK as u64;
            let (buffer, written) =
                file.write(Buffer::copy_of(&[block as u8; BLOCK]), offset).await;
            written?;
            let (buffer, read) = file.read(buffer, offset).await;
            assert_eq!(read?, BLOCK);
            assert!(buffer.iter().all(|byte| *byte == block as u8));
            io::Result::Ok(())
        }));
    }
    for task in tasks {
        task.await??;
    }
    file.datasync().await?;
    Ok(BLOCKS)
}

/// Runs a future, and all tasks of a [`LocalSet`] that it runs in turn, with a reactor: after
/// each time they were polled the reactor hands over what they asked for, and tokio watches its
/// descriptor while all of them wait.
async fn run<F: Future>(reactor: &Reactor, future: F) -> io::Result<F::Output> {
    let descriptor = reactor.fd()?.try_clone_to_owned()?;
    // `register`, which replaces it, is unsafe: its caller promises that the descriptor stays
    // open. An `OwnedFd` keeps that promise by itself.
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

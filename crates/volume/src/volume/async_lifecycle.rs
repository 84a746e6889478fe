//! An [`AsyncVolume`] from its creation to its end, and its growth. The calls of [`Volume`] run on a thread of their own,
//! since they open files, format, read the whole free-space map, and may ask a server for the size of the device.

use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use uringfs_device::Errno;
use uringfs_sync::Oneshot;

use crate::error::{Error, OfPath};
use crate::namespace::path::bytes;
use crate::volume::async_volume::AsyncVolume;
use crate::volume::options::{FormatOptions, VolumeOptions};
use crate::volume::volume::Volume;

#[expect(clippy::missing_errors_doc, reason = "they are those of Volume")]
impl AsyncVolume {
    /// See [`Volume::open`]. After a drop of the future the volume is opened nevertheless, and closed at once; the same
    /// holds for [`Self::create`] and [`VolumeOptions::open_async`].
    ///
    /// ```
    /// # mod uringfs { pub use uringfs_reactor::*; pub use uringfs_volume::*; }
    /// use uringfs::{AsyncVolume, FormatOptions, Reactor, ReactorOptions};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("image");
    /// // Any executor will do.
    /// Reactor::new(ReactorOptions::new())?.block_on(async {
    ///     let volume = AsyncVolume::create(&path, &FormatOptions::new().size(64 << 20)).await?;
    ///     volume.write("/first", "hello").await?;
    ///     volume.close().await?;
    ///
    ///     let volume = AsyncVolume::open(&path).await?;
    ///     assert_eq!(volume.read("/first").await?, b"hello");
    ///     volume.close().await
    /// })?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn open(path: impl AsRef<Path>) -> Result<AsyncVolume, Error> {
        VolumeOptions::new().open_async(path).await
    }

    /// See [`Volume::create`].
    pub async fn create(
        path: impl AsRef<Path>,
        options: &FormatOptions,
    ) -> Result<AsyncVolume, Error> {
        let (path, options) = (path.as_ref().to_owned(), options.clone());
        let created = on_own_thread({
            let path = path.clone();
            move || Volume::create(path, &options)
        });
        created.await.map(AsyncVolume::from).of_path(bytes(&path))
    }

    /// See [`Volume::resize`]. After a drop of the future the volume grows nevertheless.
    pub async fn resize(&self, bytes: u64) -> Result<(), Error> {
        let volume = self.volume.clone();
        on_own_thread(move || volume.resize(bytes)).await
    }

    /// See [`Volume::close`]. After a drop of the future the volume is closed nevertheless.
    pub async fn close(self) -> Result<(), Error> {
        on_own_thread(move || self.volume.close()).await
    }
}

impl VolumeOptions {
    /// [`Self::open`] for tasks: does not block the thread.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub async fn open_async(&self, path: impl AsRef<Path>) -> Result<AsyncVolume, Error> {
        let (path, options) = (path.as_ref().to_owned(), self.clone());
        let opened = on_own_thread({
            let path = path.clone();
            move || options.open(path)
        });
        opened.await.map(AsyncVolume::from).of_path(bytes(&path))
    }
}

impl From<Volume> for AsyncVolume {
    fn from(volume: Volume) -> AsyncVolume {
        AsyncVolume { volume }
    }
}

/// Runs a call that blocks, on a thread that ends with it.
async fn on_own_thread<T: Send + 'static>(
    call: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let outcome = Oneshot::default();
    let sender = outcome.clone();
    let run = move || {
        let panicked = || Err(Error::io("the thread of the call has panicked", Errno::IO));
        sender.set(catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|_| panicked()));
    };
    std::thread::Builder::new()
        .name("uringfs-volume".into())
        .spawn(run)
        .map_err(|error| Error::from(error).context("starting a thread for the call"))?;
    poll_fn(|context| outcome.poll(context)).await
}

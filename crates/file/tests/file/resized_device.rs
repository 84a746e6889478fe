//! A file over a whole image whose size others change while it is open.

use std::path::{Path, PathBuf};

use uringfs_buffer::Buffer;
use uringfs_cache::Cache;
use uringfs_device::queue::QueueKind;
use uringfs_device::{Access, Device, Errno};
use uringfs_file::{File, FileOptions, Tokens};
use uringfs_reactor::{Reactor, ReactorOptions, Token};

use crate::harness::{pattern, reap};

const SIZE: u64 = 1 << 20;

struct Image {
    path: PathBuf,
    file: File,
    reactor: Reactor,
}

impl Image {
    /// One image for each queue.
    fn all(folder: &Path) -> Vec<Image> {
        let kinds = [QueueKind::Ring, QueueKind::Aio, QueueKind::Sync, QueueKind::Threads];
        let image = |queue| {
            let path = folder.join(format!("{queue:?}"));
            std::fs::write(&path, &pattern(0, SIZE as usize)[..]).unwrap();
            let device = Device::open(&path, Access::ReadWrite).unwrap();
            let reactor = Reactor::new(ReactorOptions::new().queue(queue)).unwrap();
            Image { path, file: File::from_device(device, FileOptions::default()), reactor }
        };
        kinds.into_iter().map(image).collect()
    }

    fn set_length(&self, bytes: u64) {
        std::fs::File::options().write(true).open(&self.path).unwrap().set_len(bytes).unwrap();
    }

    fn length(&self) -> u64 {
        self.path.metadata().unwrap().len()
    }

    fn write(&self, file: &File, offset: u64, length: usize) -> Result<usize, Errno> {
        self.reactor.block_on(file.write_at(pattern(offset, length), offset)).0
    }

    fn read(&self, file: &File, offset: u64, length: usize) -> Result<Vec<u8>, Errno> {
        let (result, buffer) = self.reactor.block_on(file.read_at(Buffer::zeroed(length), offset));
        result.map(|read| buffer[..read].to_vec())
    }

    /// The result of a write by token, which may take the fast path.
    fn write_by_token(&self, offset: u64) -> Result<u64, Errno> {
        let bytes = pattern(offset, 4096);
        self.reactor.write_at(&self.file, bytes, offset, Token::new(1)).unwrap();
        reap(&self.reactor, 1)[0].result()
    }
}

#[test]
fn a_file_grows_with_its_image_once_that_is_noticed() {
    let folder = tempfile::tempdir().unwrap();
    for image in Image::all(folder.path()) {
        let buffered = image.file.buffered(&Cache::new(SIZE));
        // Both know the end before.
        let end = pattern(0, SIZE as usize)[SIZE as usize - 4096..].to_vec();
        assert_eq!(image.read(&image.file, SIZE - 4096, 8192), Ok(end));
        assert_eq!(image.read(&buffered, SIZE, 4096), Ok(Vec::new()));
        assert_eq!(image.write(&image.file, SIZE - 4096, 8192), Ok(4096));
        image.set_length(2 * SIZE);
        assert_eq!((image.file.len(), buffered.len()), (SIZE, SIZE));
        assert_eq!(image.file.device().refresh_size().unwrap(), 2 * SIZE);
        assert_eq!((image.file.len(), buffered.len()), (2 * SIZE, 2 * SIZE));
        assert_eq!(image.read(&buffered, SIZE, 4096), Ok(vec![0; 4096]));
        assert_eq!(image.write_by_token(2 * SIZE - 4096), Ok(4096));
        assert_eq!(image.write(&image.file, SIZE - 1000, 100_000), Ok(100_000));
        assert_eq!(image.write(&buffered, SIZE + 200_000, 5000), Ok(5000));
        assert_eq!(image.reactor.block_on(buffered.sync_all()), Ok(()));
        let written = [(2 * SIZE - 4096, 4096), (SIZE - 1000, 100_000), (SIZE + 200_000, 5000)];
        for (offset, length) in written {
            let expected = pattern(offset, length).to_vec();
            assert_eq!(image.read(&image.file, offset, length), Ok(expected.clone()));
            assert_eq!(image.read(&buffered, offset, length), Ok(expected));
        }
        assert_eq!(image.length(), 2 * SIZE);
    }
}

#[test]
fn nothing_is_written_beyond_the_end_of_an_image_that_was_seen_to_shrink() {
    let folder = tempfile::tempdir().unwrap();
    for image in Image::all(folder.path()) {
        assert_eq!(image.write_by_token(SIZE - 4096), Ok(4096));
        image.set_length(SIZE / 2);
        assert_eq!(image.file.device().refresh_size().unwrap(), SIZE / 2);
        assert_eq!(image.file.len(), SIZE, "what is gone is an error, no end");
        assert_eq!(image.write_by_token(SIZE - 4096), Err(Errno::IO));
        for (offset, length) in [(SIZE - 4096, 4096), (SIZE / 2 - 4096, 8192), (SIZE - 100, 50)] {
            let written = image.write(&image.file, offset, length);
            assert_eq!(written, Err(Errno::IO), "{length} at {offset}");
        }
        let zeroed = image.reactor.block_on(image.file.write_zeroes(SIZE / 2, SIZE / 2));
        assert_eq!(zeroed, Err(Errno::IO));
        assert_eq!(image.read(&image.file, SIZE / 2, 4096), Err(Errno::IO));
        assert_eq!(image.length(), SIZE / 2);
        // The part that is left is read and written.
        assert_eq!(image.write_by_token(SIZE / 2 - 4096), Ok(4096));
        assert_eq!(image.write(&image.file, 100, 10_000), Ok(10_000));
        assert_eq!(image.read(&image.file, 100, 10_000), Ok(pattern(100, 10_000).to_vec()));
        assert_eq!(image.length(), SIZE / 2);
    }
}

#[test]
fn dirty_folios_beyond_the_end_of_an_image_that_was_seen_to_shrink_are_an_error() {
    let folder = tempfile::tempdir().unwrap();
    for image in Image::all(folder.path()) {
        let buffered = image.file.buffered(&Cache::new(SIZE));
        assert_eq!(image.write(&buffered, SIZE - 8192, 8192), Ok(8192));
        image.set_length(SIZE / 2);
        assert_eq!(image.file.device().refresh_size().unwrap(), SIZE / 2);
        assert_eq!(image.reactor.block_on(buffered.sync_all()), Err(Errno::IO));
        assert_eq!(image.length(), SIZE / 2);
    }
}

//! The work of a request on the file.

use uringfs::file::{UncommittedChange, UncommittedChanges};
use uringfs::{Errno, File};

use crate::abi::SECTOR_BYTES;
use crate::channel::Entry;
use crate::request::{Operation, Request};

/// The file of a disk.
#[derive(Debug)]
pub(crate) struct ServedFile {
    file: File,
    /// Zeroing gives blocks of it back.
    has_holes: bool,
    /// `Some` if the device goes on when this process is killed: what is acknowledged must be there for the next server.
    uncommitted: Option<UncommittedChanges>,
}

impl ServedFile {
    pub(crate) fn new(file: File, has_holes: bool, outlives_server: bool) -> ServedFile {
        let uncommitted = outlives_server.then(UncommittedChanges::default);
        ServedFile { file, has_holes, uncommitted }
    }

    /// Carries out the request of an entry. Returns the bytes that were moved; the kernel asks for the rest again.
    pub(crate) async fn run(&self, entry: &mut Entry, request: Request) -> Result<u32, Errno> {
        let Request { operation, offset, length, is_durable } = request;
        match operation {
            Operation::Read => self.read(entry, offset, length as usize).await,
            Operation::Write => self.write(entry, (offset, length as usize), is_durable).await,
            Operation::Flush => self.file.sync_data().await.map(|()| 0),
            // If it is lost with this process, the range has its old content, which is as good as any.
            Operation::Discard => self.file.discard(offset, length).await.map(|()| 0),
            Operation::Zero { frees_blocks } => {
                let changes = self.uncommitted.as_ref();
                let change = changes.and_then(|changes| changes.begin_change(&self.file));
                match frees_blocks && self.has_holes {
                    true => self.file.punch_hole(offset, length).await?,
                    false => self.file.write_zeroes(offset, length).await?,
                }
                if is_durable || change.is_some() {
                    self.file.sync_data().await?;
                }
                change.into_iter().for_each(UncommittedChange::committed);
                Ok(0)
            }
        }
    }

    async fn read(&self, entry: &mut Entry, offset: u64, length: usize) -> Result<u32, Errno> {
        let memory = entry.take_memory(length)?;
        let (read, data) = self.file.read_at(memory, offset).await;
        let moved = read.and_then(whole_sectors);
        let copied = moved.and_then(|moved| entry.copy_out(&data, moved as usize).map(|()| moved));
        entry.put_back(data);
        copied
    }

    async fn write(
        &self,
        entry: &mut Entry,
        (offset, length): (u64, usize),
        is_durable: bool,
    ) -> Result<u32, Errno> {
        let changes = self.uncommitted.as_ref();
        let change =
            changes.and_then(|changes| changes.begin_write(&self.file, offset, length as u64));
        let data = entry.take_data(length)?;
        let (written, data) = match is_durable || change.is_some() {
            true => self.file.write_durably(data, offset).await,
            false => self.file.write_at(data, offset).await,
        };
        entry.put_back(data);
        if written.is_ok() {
            change.into_iter().for_each(UncommittedChange::committed);
        }
        written.and_then(whole_sectors)
    }
}

/// A transfer without progress is an error, as the kernel would repeat it for ever.
fn whole_sectors(moved: usize) -> Result<u32, Errno> {
    match moved / SECTOR_BYTES as usize * SECTOR_BYTES as usize {
        0 => Err(Errno::IO),
        moved => Ok(moved as u32),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Seek, SeekFrom, Write};
    use std::sync::Arc;

    use uringfs::device::backend::file::File as Image;
    use uringfs::device::backend::memory::Memory;
    use uringfs::device::{Access, Device};
    use uringfs::file::FileOptions;
    use uringfs::{
        Buffer, FormatOptions, OpenOptions, Reactor, ReactorOptions, Volume, VolumeOptions,
    };

    use super::*;
    use crate::abi::data_position;
    use crate::channel::CopiedBy;
    use crate::disk::Disk;

    /// A file of 1 MiB, and a sparse file in place of the channel.
    struct Fixture {
        reactor: Reactor,
        served: ServedFile,
        channel: std::fs::File,
        /// Closed after the file.
        _volume: Option<Volume>,
    }

    const SIZE: u64 = 1 << 20;

    impl Fixture {
        fn on_device() -> Fixture {
            let device = Device::new(Memory::new(SIZE).unwrap()).unwrap();
            let file = File::from_device(device, FileOptions::new());
            Fixture::new(ServedFile::new(file, false, true), None)
        }

        fn on_volume() -> Fixture {
            let device = Device::new(Memory::new(16 << 20).unwrap()).unwrap();
            Volume::format(&device, &FormatOptions::new()).unwrap();
            let volume = VolumeOptions::new().open_on(device).unwrap();
            Fixture::in_volume(volume, OpenOptions::new().direct(true), false)
        }

        fn in_volume(volume: Volume, options: OpenOptions, outlives_server: bool) -> Fixture {
            let options = options.read(true).write(true).create(true);
            let file = options.open(&volume, "/disk").unwrap();
            file.set_len(SIZE).wait().unwrap();
            file.sync_all().wait().unwrap();
            let served = ServedFile::new(Disk::new(file).file, true, outlives_server);
            Fixture::new(served, Some(volume))
        }

        fn new(served: ServedFile, volume: Option<Volume>) -> Fixture {
            let reactor = Reactor::new(ReactorOptions::new()).unwrap();
            let channel = tempfile::tempfile().unwrap();
            Fixture { reactor, served, channel, _volume: volume }
        }

        fn run(&self, request: Request) -> Result<u32, Errno> {
            let channel = Arc::new(self.channel.try_clone().unwrap().into());
            let payload = Buffer::zeroed(65536);
            let mut entry = Entry::new(&channel, (0, 5), payload, CopiedBy::Server);
            self.reactor.block_on(self.served.run(&mut entry, request))
        }

        /// Sets the data of the request.
        fn put(&mut self, data: &[u8]) {
            self.channel.seek(SeekFrom::Start(data_position(0, 5))).unwrap();
            self.channel.write_all(data).unwrap();
        }

        /// The data that the request has read.
        fn data(&mut self, length: usize) -> Vec<u8> {
            self.channel.seek(SeekFrom::Start(data_position(0, 5))).unwrap();
            let mut data = vec![0; length];
            self.channel.read_exact(&mut data).unwrap();
            data
        }
    }

    fn request(operation: Operation, offset: u64, length: u64) -> Request {
        Request { operation, offset, length, is_durable: false }
    }

    const ZERO: Operation = Operation::Zero { frees_blocks: true };

    fn reads_what_was_written(mut fixture: Fixture) {
        for is_durable in [false, true] {
            fixture.put(&[7 + u8::from(is_durable); 12288]);
            let write = Request { is_durable, ..request(Operation::Write, 512, 12288) };
            assert_eq!(fixture.run(write), Ok(12288));
            fixture.put(&[0; 12288]);
            assert_eq!(fixture.run(request(Operation::Read, 1024, 11776)), Ok(11776));
            assert_eq!(fixture.data(11776), [7 + u8::from(is_durable); 11776]);
        }
        assert_eq!(fixture.run(request(Operation::Flush, 0, 0)), Ok(0));
        for (operation, is_durable) in
            [(ZERO, false), (Operation::Zero { frees_blocks: false }, true)]
        {
            fixture.put(&[7; 16384]);
            assert_eq!(fixture.run(request(Operation::Write, 0, 16384)), Ok(16384));
            let zero = Request { is_durable, ..request(operation, 4096, 8192) };
            assert_eq!(fixture.run(zero), Ok(0));
            assert_eq!(fixture.run(request(Operation::Read, 0, 16384)), Ok(16384));
            let expected = [vec![7; 4096], vec![0; 8192], vec![7; 4096]].concat();
            assert_eq!(fixture.data(16384), expected);
        }
    }

    #[test]
    fn a_device_reads_what_was_written() {
        reads_what_was_written(Fixture::on_device());
    }

    #[test]
    fn a_volume_s_file_reads_what_was_written() {
        reads_what_was_written(Fixture::on_volume());
    }

    #[test]
    fn zeroing_and_discards_free_blocks_of_a_volume_s_file() {
        let mut fixture = Fixture::on_volume();
        for operation in [ZERO, Operation::Discard] {
            fixture.put(&[7; 65536]);
            assert_eq!(fixture.run(request(Operation::Write, 0, 65536)), Ok(65536));
            let before = fixture.served.file.allocated();
            assert_eq!(fixture.run(request(operation, 0, 32768)), Ok(0));
            assert_eq!(before - fixture.served.file.allocated(), 32768);
        }
        fixture.put(&[7; 65536]);
        assert_eq!(fixture.run(request(Operation::Write, 0, 65536)), Ok(65536));
        let before = fixture.served.file.allocated();
        let keep = Operation::Zero { frees_blocks: false };
        assert_eq!(fixture.run(request(keep, 0, 32768)), Ok(0));
        assert_eq!(before, fixture.served.file.allocated());
    }

    #[test]
    fn a_read_beyond_the_end_is_short_and_then_an_error() {
        let mut fixture = Fixture::on_volume();
        fixture.served.file.set_len(4096).wait().unwrap();
        fixture.put(&[1; 8192]);
        assert_eq!(fixture.run(request(Operation::Read, 0, 8192)), Ok(4096));
        assert_eq!(fixture.data(8192), [vec![0; 4096], vec![1; 4096]].concat());
        assert_eq!(fixture.run(request(Operation::Read, 4096, 4096)), Err(Errno::IO));
    }

    /// A copy of the image at any moment is what the next server finds if this one is killed then.
    fn acknowledges_what_outlives_it(options: OpenOptions) {
        let folder = tempfile::tempdir().unwrap();
        let (image, copy) = (folder.path().join("image"), folder.path().join("copy"));
        uringfs::create_image(&image, 16 << 20).unwrap();
        let device = Device::new(Image::open(&image, Access::ReadWrite).unwrap()).unwrap();
        Volume::format(&device, &FormatOptions::new()).unwrap();
        let volume = VolumeOptions::new().open_on(device).unwrap();
        let mut fixture = Fixture::in_volume(volume, options, true);
        let mut expected = vec![0; SIZE as usize];
        let mut check = |fixture: &mut Fixture, request: Request, byte: u8| {
            let (offset, length) = (request.offset as usize, request.length as usize);
            fixture.put(&vec![byte; length]);
            fixture.run(request).unwrap();
            expected[offset..offset + length].fill(byte);
            std::fs::copy(&image, &copy).unwrap();
            let volume = Volume::open(&copy).unwrap();
            let file = OpenOptions::new().read(true).open(&volume, "/disk").unwrap();
            let (read, found) = file.read_exact_at(vec![0; SIZE as usize], 0).wait();
            read.unwrap();
            assert!(found == expected, "{request:?}");
            drop(file);
            volume.close().unwrap();
        };
        // Into a hole, partly into one, in place, and a hole again.
        check(&mut fixture, request(Operation::Write, 8192, 8192), 1);
        check(&mut fixture, request(Operation::Write, 4096, 8192), 2);
        check(&mut fixture, request(Operation::Write, 8704, 1024), 3);
        check(&mut fixture, request(ZERO, 8192, 4096), 0);
        check(&mut fixture, request(Operation::Zero { frees_blocks: false }, 65536, 8192), 0);
        check(&mut fixture, request(Operation::Write, 8192, 4096), 4);
    }

    #[test]
    fn what_is_acknowledged_is_there_after_the_server_was_killed() {
        acknowledges_what_outlives_it(OpenOptions::new().direct(true));
    }

    #[test]
    fn so_it_is_if_the_handle_of_the_disk_is_buffered() {
        acknowledges_what_outlives_it(OpenOptions::new());
    }
}

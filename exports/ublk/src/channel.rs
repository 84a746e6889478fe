//! `/dev/ublkcN`, through which a device's requests come, and one entry of a queue: memory for the data of one request,
//! which passes between the kernel and the task that serves the entry. All unsafe code of the data path is here.

#![allow(unsafe_code)]

use std::io;
use std::mem;
use std::os::fd::OwnedFd;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use rustix::io::{pread, pwrite};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use uringfs::reactor::{Command, run_command};
use uringfs::{Buffer, Errno};
use zerocopy::IntoBytes;

use crate::abi::{self, DESCRIPTORS_BYTES, IoCommand, IoDescriptor, data_position};

/// The descriptors of a queue's requests, which the kernel writes.
#[derive(Debug)]
pub(crate) struct Descriptors {
    base: NonNull<IoDescriptor>,
    bytes: usize,
    depth: u16,
}

impl Descriptors {
    /// Maps those of a queue with room for `depth` requests.
    ///
    /// # Errors
    /// Those of `mmap(2)`.
    pub(crate) fn map(channel: &OwnedFd, queue: u16, depth: u16) -> io::Result<Descriptors> {
        let page = rustix::param::page_size();
        let bytes = (usize::from(depth) * size_of::<IoDescriptor>()).next_multiple_of(page);
        let offset = u64::from(queue) * DESCRIPTORS_BYTES.next_multiple_of(page as u64);
        // SAFETY: the kernel chooses the address, so no other memory is replaced.
        let base = unsafe {
            mmap(ptr::null_mut(), bytes, ProtFlags::READ, MapFlags::SHARED, channel, offset)?
        };
        let base = NonNull::new(base.cast()).expect("no mapping is at null");
        Ok(Descriptors { base, bytes, depth })
    }

    /// A copy of the descriptor of a request, for the owner of its entry. The kernel changes it only while it has the
    /// entry.
    pub(crate) fn get(&self, tag: u16) -> IoDescriptor {
        assert!(tag < self.depth, "tag {tag} of {}", self.depth);
        // SAFETY: inside the mapping, which has room for `depth` of them.
        let descriptor = unsafe { self.base.add(tag.into()) };
        // SAFETY: mapped until `self` is dropped, aligned as the kernel's structure, and any bytes are a descriptor. It
        // is volatile, as the kernel writes there: before the completion that gives the entry back.
        unsafe { descriptor.read_volatile() }
    }
}

impl Drop for Descriptors {
    fn drop(&mut self) {
        // SAFETY: the range is that of the mapping, and nothing refers to it any more.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

/// The side that copies the data between a request and an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CopiedBy {
    /// The server, by `pread` and `pwrite` of the channel.
    Server,
    /// The kernel: the data of a write before the entry has the request, the data of a read at its end.
    Kernel,
}

/// An entry of a queue.
#[derive(Debug)]
pub(crate) struct Entry {
    command: Box<Command>,
    channel: Arc<OwnedFd>,
    queue: u16,
    tag: u16,
    copied_by: CopiedBy,
    /// Where the memory for data lies, and its length.
    payload: (NonNull<u8>, usize),
    /// The part of it that a request does not need.
    rest: Option<Buffer>,
}

impl Entry {
    /// An entry with memory for the data of its requests.
    pub(crate) fn new(
        channel: &Arc<OwnedFd>,
        (queue, tag): (u16, u16),
        payload: Buffer,
        copied_by: CopiedBy,
    ) -> Entry {
        let place = (payload.pointer(), payload.len());
        // SAFETY: the commands of /dev/ublkcN access no memory but that at the address in their argument, which is null
        // or the payload, and only until they end. `run` checks that the payload is in its place.
        let command = unsafe { Command::new(channel.clone(), [payload, Buffer::zeroed(0)]) };
        Entry {
            command: Box::new(command),
            channel: channel.clone(),
            queue,
            tag,
            copied_by,
            payload: place,
            rest: None,
        }
    }

    /// The number of its request.
    pub(crate) fn tag(&self) -> u16 {
        self.tag
    }

    /// Gives it to the kernel, and waits for its first request.
    pub(crate) async fn fetch(self) -> (Result<u32, Errno>, Entry) {
        self.run(abi::io::FETCH, 0).await
    }

    /// Ends its request with a result, and waits for the next one.
    pub(crate) async fn commit(self, result: i32) -> (Result<u32, Errno>, Entry) {
        self.run(abi::io::COMMIT_AND_FETCH, result).await
    }

    async fn run(mut self, operation: u32, result: i32) -> (Result<u32, Errno>, Entry) {
        let payload = &self.command.buffers()[0];
        assert_eq!((payload.pointer(), payload.len()), self.payload, "the payload is in its place");
        let address = match self.copied_by {
            CopiedBy::Server => 0,
            CopiedBy::Kernel => self.payload.0.as_ptr().addr() as u64,
        };
        let command = IoCommand { queue: self.queue, tag: self.tag, result, address };
        let mut argument = [0; 80];
        argument[..size_of::<IoCommand>()].copy_from_slice(command.as_bytes());
        self.command.set(operation, argument);
        let (result, command) = run_command(self.command).await;
        (result, Entry { command, ..self })
    }

    /// Memory for the data that its request reads, with any content.
    ///
    /// # Errors
    /// EINVAL if there is less.
    pub(crate) fn take_memory(&mut self, length: usize) -> Result<Buffer, Errno> {
        let payload = &mut self.command.buffers()[0];
        if length > payload.len() {
            return Err(Errno::INVAL);
        }
        self.rest = Some(payload.split_off(length));
        Ok(payload.split_off(0))
    }

    /// The data that its request writes.
    ///
    /// # Errors
    /// EINVAL if there is no memory for them; those of `pread(2)`.
    pub(crate) fn take_data(&mut self, length: usize) -> Result<Buffer, Errno> {
        let mut data = self.take_memory(length)?;
        let position = data_position(self.queue, self.tag);
        let copied = match self.copied_by {
            CopiedBy::Kernel => Ok(()),
            CopiedBy::Server => copy_all(length, |done| {
                pread(&*self.channel, &mut data[done..], position + done as u64)
            }),
        };
        match copied {
            Ok(()) => Ok(data),
            Err(errno) => {
                self.put_back(data);
                Err(errno)
            }
        }
    }

    /// Copies the first bytes of its memory to its request, which reads them.
    ///
    /// # Errors
    /// Those of `pwrite(2)`.
    pub(crate) fn copy_out(&self, data: &Buffer, length: usize) -> Result<(), Errno> {
        let position = data_position(self.queue, self.tag);
        match self.copied_by {
            CopiedBy::Kernel => Ok(()),
            CopiedBy::Server => copy_all(length, |done| {
                pwrite(&*self.channel, &data[done..length], position + done as u64)
            }),
        }
    }

    /// Puts back the memory that was taken.
    pub(crate) fn put_back(&mut self, data: Buffer) {
        let payload = &mut self.command.buffers()[0];
        for part in [Some(data), mem::take(&mut self.rest)].into_iter().flatten() {
            payload.join(part).expect("the parts are adjacent");
        }
    }
}

/// Calls `copy` with what is done, until all is.
fn copy_all(
    length: usize,
    mut copy: impl FnMut(usize) -> rustix::io::Result<usize>,
) -> Result<(), Errno> {
    let mut done = 0;
    while done < length {
        match copy(done) {
            // The kernel finds no memory of the request any more.
            Ok(0) => return Err(Errno::IO),
            Ok(copied) => done += copied,
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{Read, Seek, SeekFrom, Write};

    use super::*;

    /// A sparse file in place of the channel: an entry with data of its request at their position.
    fn entry(file: &File, copied_by: CopiedBy) -> Entry {
        let channel = Arc::new(file.try_clone().unwrap().into());
        Entry::new(&channel, (1, 2), Buffer::zeroed(8192), copied_by)
    }

    fn file_with(data: &[u8]) -> File {
        let mut file = tempfile::tempfile().unwrap();
        file.seek(SeekFrom::Start(data_position(1, 2))).unwrap();
        file.write_all(data).unwrap();
        file
    }

    #[test]
    fn the_server_copies_data_at_the_position_of_their_request() {
        let mut file = file_with(&[7; 1024]);
        let mut entry = entry(&file, CopiedBy::Server);
        let data = entry.take_data(1024).unwrap();
        assert_eq!(&data[..], [7; 1024]);
        entry.put_back(data);
        let mut data = entry.take_memory(512).unwrap();
        data.fill(9);
        entry.copy_out(&data, 512).unwrap();
        entry.put_back(data);
        file.seek(SeekFrom::Start(data_position(1, 2))).unwrap();
        let mut found = [0; 1024];
        file.read_exact(&mut found).unwrap();
        assert_eq!((found[511], found[512]), (9, 7));
        assert_eq!(entry.command.buffers()[0].len(), 8192);
    }

    #[test]
    fn what_the_kernel_copies_is_left_to_it() {
        let file = file_with(&[7; 1024]);
        let mut entry = entry(&file, CopiedBy::Kernel);
        let data = entry.take_data(1024).unwrap();
        assert_eq!(&data[..], [0; 1024]);
        entry.copy_out(&data, 1024).unwrap();
        entry.put_back(data);
    }

    #[test]
    fn a_request_without_memory_or_data_is_an_error_and_the_memory_stays_whole() {
        let file = file_with(&[7; 512]);
        let mut entry = entry(&file, CopiedBy::Server);
        assert_eq!(entry.take_data(8193).unwrap_err(), Errno::INVAL);
        assert_eq!(entry.take_data(1024).unwrap_err(), Errno::IO);
        assert_eq!(entry.command.buffers()[0].len(), 8192);
        let data = entry.take_memory(8192).unwrap();
        entry.put_back(data);
        assert_eq!(entry.command.buffers()[0].len(), 8192);
    }

    #[test]
    fn descriptors_are_those_of_their_queue() {
        let mut file = tempfile::tempfile().unwrap();
        file.seek(SeekFrom::Start(2 * DESCRIPTORS_BYTES + 3 * 24)).unwrap();
        let descriptor = IoDescriptor { operation: 1, sectors: 8, start_sector: 4096, address: 0 };
        file.write_all(descriptor.as_bytes()).unwrap();
        file.set_len(3 * DESCRIPTORS_BYTES).unwrap();
        let channel: OwnedFd = file.into();
        let descriptors = Descriptors::map(&channel, 2, 128).unwrap();
        assert_eq!(descriptors.get(3), descriptor);
        assert_eq!(descriptors.get(127), IoDescriptor::default());
    }
}

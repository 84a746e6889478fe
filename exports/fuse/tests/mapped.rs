//! Files that programs change through mappings, of which the server learns late.

#![allow(unsafe_code)] // mappings

mod harness;

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::ptr;

use harness::{CACHES, Mounted, threads};
use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

const SIZE: usize = 1 << 20;
const DATA: usize = 512 << 10;

/// A mapping of the first [`SIZE`] bytes of a file.
struct Mapping(*mut u8);

impl Mapping {
    fn new(file: &File) -> Mapping {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses the address, and `Mapping` unmaps what it has mapped.
        let address = unsafe { mmap(ptr::null_mut(), SIZE, access, MapFlags::SHARED, file, 0) };
        Mapping(address.unwrap().cast())
    }

    fn write(&self, offset: usize, byte: u8) {
        assert!(offset < SIZE);
        // SAFETY: the byte is in the mapping, which the file's size covers.
        unsafe { self.0.wrapping_add(offset).write_volatile(byte) };
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's, and nothing refers to it.
        unsafe { munmap(self.0.cast(), SIZE) }.unwrap();
    }
}

#[test]
fn data_of_a_mapping_are_found_before_they_are_written_back() {
    for (cache, writeback) in CACHES {
        let kind = format!("{cache:?}, write-back {writeback}");
        let mounted = Mounted::new(&threads(1).cache(cache).writeback(writeback));
        let path = mounted.path("file");
        let mut open = OpenOptions::new();
        let mapped = open.read(true).write(true).create_new(true).open(&path).unwrap();
        mapped.set_len(SIZE as u64).unwrap();
        let mapping = Mapping::new(&mapped);
        mapping.write(DATA, 7);
        let reader = File::open(&path).unwrap();
        for file in [&mapped, &reader] {
            let first = seek(file, SeekFrom::Data(0)).unwrap();
            assert!(first <= DATA as u64, "{kind}: {first}");
            assert_eq!(seek(file, SeekFrom::Data(DATA as u64)), Ok(DATA as u64), "{kind}");
            let end = seek(file, SeekFrom::Hole(DATA as u64)).unwrap();
            assert!(end > DATA as u64, "{kind}: {end}");
            assert_eq!(seek(file, SeekFrom::Hole(SIZE as u64)), Err(Errno::NXIO), "{kind}");
        }
        // The file may stay mapped after it was closed.
        drop(mapped);
        assert!(seek(&reader, SeekFrom::Data(0)).unwrap() <= DATA as u64, "{kind}");
        drop(mapping);
        let mut byte = [0];
        reader.read_exact_at(&mut byte, DATA as u64).unwrap();
        assert_eq!(byte, [7]);
    }
}

#[test]
fn holes_are_found_when_no_program_can_map_a_file_for_writing() {
    let mounted = Mounted::new(&threads(1));
    let path = mounted.path("file");
    let mut open = OpenOptions::new();
    let written = open.read(true).write(true).create_new(true).open(&path).unwrap();
    written.set_len(SIZE as u64).unwrap();
    written.write_all_at(&[7; 4096], DATA as u64).unwrap();
    drop(written);
    let reader = File::open(&path).unwrap();
    // The kernel tells the server of a close in its own time.
    while seek(&reader, SeekFrom::Hole(0)) != Ok(0) {}
    assert_eq!(seek(&reader, SeekFrom::Data(0)), Ok(DATA as u64));
    assert_eq!(seek(&reader, SeekFrom::Hole(DATA as u64)), Ok(DATA as u64 + 4096));
}

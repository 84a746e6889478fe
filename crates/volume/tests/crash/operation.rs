//! Operations on a volume: a small alphabet whose words are all tried, and long words drawn from a
//! seed.

use uringfs_file::FallocateSize;
use uringfs_volume::Rename;

use crate::random::Random;

/// Stands for a path: the file that is held open, whatever its name is now.
pub const HELD: &str = "held";

/// The durability of a write when it completes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ends {
    Volatile,
    Durable,
    /// Durable and atomic. Whole blocks only.
    Atomic,
}

/// An operation. A write creates its file.
#[derive(Clone, Copy, Debug)]
pub enum Operation {
    Write {
        path: &'static str,
        offset: usize,
        length: usize,
        ends: Ends,
    },
    Append {
        path: &'static str,
        length: usize,
        ends: Ends,
    },
    SetSize {
        path: &'static str,
        size: usize,
    },
    Truncate {
        path: &'static str,
    },
    Allocate {
        path: &'static str,
        offset: usize,
        length: usize,
        size: FallocateSize,
    },
    PunchHole {
        path: &'static str,
        offset: usize,
        length: usize,
    },
    ZeroRange {
        path: &'static str,
        offset: usize,
        length: usize,
        size: FallocateSize,
    },
    Move {
        path: &'static str,
        new: &'static str,
        how: Rename,
    },
    Link {
        path: &'static str,
        new: &'static str,
    },
    Remove {
        path: &'static str,
    },
    MakeDirectory {
        path: &'static str,
    },
    RemoveDirectory {
        path: &'static str,
    },
    Symlink {
        path: &'static str,
    },
    /// Owner, permissions and modification time.
    SetAttributes {
        path: &'static str,
    },
    SetXattr {
        path: &'static str,
        length: usize,
    },
    RemoveXattr {
        path: &'static str,
    },
    /// Opens a file, in place of the one held before.
    Hold {
        path: &'static str,
    },
    Release,
    Sync {
        path: &'static str,
    },
    Datasync {
        path: &'static str,
    },
    SyncAll,
}

use Operation::*;

/// The start of each word of the alphabet: two files.
pub const BEFORE: [Operation; 3] = [
    Write { path: "/a", offset: 0, length: 10_000, ends: Ends::Volatile },
    Write { path: "/b", offset: 0, length: 9000, ends: Ends::Volatile },
    SyncAll,
];

/// Operations on a few names.
pub const ALPHABET: [Operation; 24] = [
    Write { path: "/a", offset: 0, length: 5000, ends: Ends::Volatile },
    Write { path: "/c", offset: 0, length: 9000, ends: Ends::Volatile },
    Write { path: "/a", offset: 512, length: 512, ends: Ends::Durable },
    Write { path: "/a", offset: 4096, length: 8192, ends: Ends::Atomic },
    Append { path: "/a", length: 3000, ends: Ends::Volatile },
    SetSize { path: "/a", size: 700 },
    SetSize { path: "/a", size: 15_000 },
    Truncate { path: "/a" },
    Allocate { path: "/a", offset: 0, length: 20_000, size: FallocateSize::Extend },
    PunchHole { path: "/a", offset: 4096, length: 4096 },
    PunchHole { path: "/a", offset: 100, length: 5500 },
    ZeroRange { path: "/a", offset: 4096, length: 5000, size: FallocateSize::Extend },
    Move { path: "/a", new: "/b", how: Rename::Replace },
    Move { path: "/a", new: "/b", how: Rename::Exchange },
    Move { path: "/a", new: "/d/a", how: Rename::Replace },
    Link { path: "/a", new: "/c" },
    Remove { path: "/a" },
    MakeDirectory { path: "/d" },
    RemoveDirectory { path: "/d" },
    Symlink { path: "/s" },
    SetAttributes { path: "/a" },
    SetXattr { path: "/a", length: 5000 },
    RemoveXattr { path: "/a" },
    Hold { path: "/a" },
];

const PATHS: [&str; 8] = ["/a", "/a", "/a", "/b", "/b", "/d", "/d/a", "/d/b"];
const OFFSETS: [usize; 8] = [0, 0, 100, 512, 4096, 6000, 8192, 16_384];
const LENGTHS: [usize; 8] = [1, 100, 512, 1024, 4096, 5000, 8192, 20_000];
const BLOCKS: [usize; 4] = [0, 4096, 8192, 20_480];

/// Draws `count` operations from a seed.
pub fn drawn(seed: u64, count: usize) -> Vec<Operation> {
    let mut random = Random(seed);
    (0..count).map(|_| draw(&mut random)).collect()
}

fn one_of<T: Copy>(random: &mut Random, all: &[T]) -> T {
    all[random.below(all.len() as u64) as usize]
}

fn draw(random: &mut Random) -> Operation {
    let (path, new) = (one_of(random, &PATHS), one_of(random, &PATHS));
    // One of eight goes to the held file, which may have no name any more.
    let file = if random.below(8) == 0 { HELD } else { path };
    let (offset, length) = (one_of(random, &OFFSETS), one_of(random, &LENGTHS));
    let size = one_of(random, &[FallocateSize::Keep, FallocateSize::Extend]);
    let volatile_or = |ends, one_in: u64, random: &mut Random| match random.below(one_in) {
        0 => ends,
        _ => Ends::Volatile,
    };
    match random.below(48) {
        0..8 => {
            let ends = volatile_or(Ends::Durable, 8, random);
            Write { path: file, offset, length, ends }
        }
        8 => {
            let (offset, length) = (one_of(random, &BLOCKS), 4096 << random.below(3));
            Write { path: file, offset, length, ends: Ends::Atomic }
        }
        9..12 => Append { path: file, length, ends: volatile_or(Ends::Durable, 4, random) },
        12..14 => SetSize { path: file, size: offset + length },
        14 => Truncate { path },
        15 => Allocate { path: file, offset, length, size },
        16..18 => PunchHole { path: file, offset, length },
        18..20 => ZeroRange { path: file, offset, length, size },
        20..23 => Move { path, new, how: Rename::Replace },
        23 => Move { path, new, how: Rename::Exchange },
        24 => Move { path, new, how: Rename::NoReplace },
        25 => Link { path, new },
        26..28 => Remove { path },
        28..30 => MakeDirectory { path },
        30 => RemoveDirectory { path },
        31 => Symlink { path },
        32..34 => SetAttributes { path },
        34 => SetXattr { path, length },
        35 => RemoveXattr { path },
        36 => Hold { path },
        37 => Release,
        38..41 => Sync { path: file },
        41..44 => Datasync { path: file },
        _ => SyncAll,
    }
}

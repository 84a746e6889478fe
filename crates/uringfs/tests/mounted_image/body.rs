//! An untrusted image: a good volume with crafted records in its catalog, under valid checksums. If the volume opens,
//! it is used. The use must not panic, every listing must end, no bytes of files may overwrite a superblock, the
//! catalog or the log, and files that no crafted record concerns must not change.
//!
//! Shared by the test `mounted_image` and the fuzz target `mounted_image`.
//!
//! # How records are planted
//! As one more record of the catalog's log (`docs/format.md`): opening the volume replays it as the latest commit. So
//! the input can add, change or delete any record of any table.

use std::cell::LazyCell;
use std::collections::BTreeSet;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use uringfs::device::Device;
use uringfs::device::backend::sim::{Action, Crash, Event, Sim, SimOptions};
use uringfs::file::FallocateSize;
use uringfs::volume::{CheckOptions, Follow, Inode, Rename, SetXattr};
use uringfs::{Buffer, FormatOptions, OpenOptions, Reactor, ReactorOptions, Volume};

const BLOCK: u64 = 4096;
const SIZE: u64 = 16 << 20;
/// The block of the backup superblock, if the volume has so many blocks. In a smaller volume it is the last block.
const BACKUP: u64 = (64 << 20) / BLOCK;
/// The first bytes of every sector that is written to a file.
const SECTOR_TAG: &[u8; 8] = b"of files";
const DIRECTORIES: [&str; 3] = ["", "/d", "/d/e"];
/// Files that operations use, distributed over these directories.
const FILES: usize = 6;
/// Files that no operation uses.
const BYSTANDERS: usize = 3;
/// Blocks in each file.
const BLOCKS: u64 = 3;
/// Bound for the entries_read of one walk: far more than there can be directories.
const MAX_ENTRIES: usize = 100_000;

/// The volume that each input gets a copy of.
struct Good {
    sim: Sim,
    /// The blocks of superblocks, catalog and log.
    system: Vec<Range<u64>>,
    /// The catalog's first block, the log's halves, and the number of the log's next record.
    catalog: u64,
    halves: [u64; 2],
    half_blocks: u64,
    next_record: u64,
    /// Numbers of directories, then of files, then of bystanders.
    inodes: Vec<u64>,
    /// The blocks of each bystander.
    bystanders: Vec<Vec<u64>>,
}

static GOOD: LazyLock<Good> = LazyLock::new(Good::new);

thread_local! {
    // Never dropped: at the end of a thread, the drop would use thread-locals that are already destroyed.
    static REACTOR: LazyCell<&'static Reactor> =
        LazyCell::new(|| Box::leak(Box::new(Reactor::new(ReactorOptions::default()).unwrap())));
}

/// Plants the records that an input describes, and uses the volume if it opens.
///
/// # Panics
/// When the volume violates one of the rules above.
pub fn run(input: &[u8]) {
    let good = &*GOOD;
    let mut input = Input(input);
    let mut planted = Planted::default();
    for _ in 0..input.below(16) {
        planted.add(good, &mut input);
    }
    let sim = good.sim.crash_image(Crash::KeepAll);
    plant(good, &sim, &planted.changes);
    let device = Device::new(sim.clone()).unwrap();
    let Ok(volume) = Volume::open_on(device.clone()) else { return };
    sim.restart_record();
    walk(&volume);
    for _ in 0..32 {
        match input.is_empty() {
            true => break,
            false => operate(&volume, &mut input),
        }
    }
    for file in 0..FILES {
        write(&volume, &path_of(file), 0, 16);
    }
    walk(&volume);
    let _ = volume.sync();
    drop(volume);
    check_device(good, &sim, &planted);
    let check = CheckOptions::default();
    let _ = Volume::check(&device, check, &mut |_, _| {});
}

/// A source of decisions: the bytes of the input, then zeros.
struct Input<'i>(&'i [u8]);

impl Input<'_> {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn byte(&mut self) -> u8 {
        self.0.split_off_first().copied().unwrap_or_default()
    }

    fn below(&mut self, bound: usize) -> usize {
        usize::from(self.byte()) % bound
    }

    /// One of at most 256 choices.
    fn one_of<T: Clone>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())].clone()
    }

    fn number(&mut self) -> u64 {
        let near = u64::from(self.byte());
        self.one_of(&[near, near << 12, u64::MAX - near, (1 << 63) - near, 1 << (near % 64)])
    }

    /// An inode's number, mostly an existing one.
    fn inode(&mut self, good: &Good) -> u64 {
        let next = good.inodes.iter().max().unwrap() + 1;
        let odd = [0, next, next + 1, 1000, u64::MAX - 1, u64::MAX];
        match self.below(4) {
            0 => self.one_of(&odd),
            1 => self.one_of(&good.inodes[..5]),
            _ => self.one_of(&good.inodes),
        }
    }

    fn name(&mut self) -> Vec<u8> {
        // Half of them are invalid as names.
        let names: [&[u8]; 16] = [
            b"0", b"1", b"2", b"d", b"e", b"x", b"y", b"k", b"", b"", b"", b".", b"..", b"a/b",
            b"\0", b"/",
        ];
        match self.below(17) {
            16 => vec![b'x'; 250 + self.below(10)],
            index => names[index].to_vec(),
        }
    }

    fn mode(&mut self) -> u16 {
        let kinds = [0o100_000, 0o040_000, 0o120_000, 0o010_000, 0o060_000, 0o140_000, 0o170_000];
        self.one_of(&kinds) | 0o644
    }
}

/// The records to plant.
#[derive(Default)]
struct Planted {
    changes: Vec<u8>,
    /// Inodes that a record describes or refers to.
    inodes: BTreeSet<u64>,
    /// Blocks in planted extents.
    extents: Vec<Range<u64>>,
    /// A record changes the free space or the next inode number.
    is_space_forged: bool,
}

/// The tables' numbers.
const INODES: u8 = 1;
const NAMES: u8 = 2;
const EXTENTS: u8 = 3;
const REGIONS: u8 = 4;
const XATTRS: u8 = 5;
const ORPHANS: u8 = 6;
const STATE: u8 = 7;

impl Planted {
    fn add(&mut self, good: &Good, input: &mut Input<'_>) {
        let table = input.below(9) as u8;
        let number = input.inode(good);
        let key = number.to_be_bytes();
        match table {
            INODES => {
                self.inodes.insert(number);
                let record = inode_record(good, input);
                self.put(table, &key, &record);
            }
            NAMES => {
                let (name, target) = (input.name(), input.inode(good));
                self.inodes.extend([number, target]);
                let record = [&target.to_be_bytes()[..], &input.mode().to_be_bytes()].concat();
                self.put(table, &[&key[..], &name].concat(), &record);
            }
            REGIONS => {
                self.is_space_forged = true;
                let region = input.one_of(&[0u32, 0, 1, u32::MAX]);
                let (start, length) = (input.number() as u16, input.number() as u16);
                let free = input.one_of(&[length, 0, 4096, u16::MAX]);
                let mut record = [free.to_be_bytes(), free.to_be_bytes()].concat();
                record.extend([1, 0, 1, 0]);
                record.extend([start.to_le_bytes(), length.to_le_bytes()].concat());
                self.put(table, &region.to_be_bytes(), &record);
            }
            XATTRS => {
                self.inodes.insert(number);
                let name =
                    input.one_of(&["user.a", "security.capability", "system.posix_acl_access", ""]);
                let value = vec![input.byte(); input.below(40)];
                self.put(table, &[&key[..], name.as_bytes()].concat(), &value);
            }
            ORPHANS => {
                self.inodes.insert(number);
                self.put(table, &key, &[]);
            }
            STATE => {
                self.is_space_forged = true;
                let name = input.one_of(&["next inode", "blocks"]);
                let value = input.number();
                self.put(table, name.as_bytes(), &value.to_be_bytes());
            }
            // Deletes a region's, an inode's or a name's record.
            0 => match input.below(3) {
                0 => {
                    self.is_space_forged = true;
                    self.change(REGIONS, &0u32.to_be_bytes(), None);
                }
                1 => {
                    self.inodes.insert(number);
                    self.change(INODES, &key, None);
                }
                _ => {
                    let name = input.name();
                    self.inodes.insert(number);
                    self.change(NAMES, &[&key[..], &name].concat(), None);
                }
            },
            // The table of extents, for two of the nine values, since it deserves the most tries.
            _ => {
                self.inodes.insert(number);
                let (offset, record) = self.extent(good, input);
                self.put(EXTENTS, &[key, offset.to_be_bytes()].concat(), &record);
            }
        }
    }

    fn extent(&mut self, good: &Good, input: &mut Input<'_>) -> (u64, Vec<u8>) {
        let offset = match input.below(8) {
            0 => input.number(),
            offset => offset as u64 + 1,
        };
        let near = input.below(40) as u64;
        let start = match input.below(8) {
            0 => near,
            1 => good.catalog + near,
            2 => good.halves[0] + near % 8,
            3 => input.one_of(&good.bystanders.concat()),
            4 => SIZE / BLOCK - near,
            5 => input.number(),
            _ => SIZE / BLOCK / 2 + near,
        };
        let number = input.number();
        let length = input.one_of(&[1, 1, 1, 2, 8, 64, 0, number]);
        let state = input.one_of(&[0, 0, 1 << 63]);
        self.extents.push(start..start.saturating_add(length));
        let words = [offset, start, length | state];
        (offset, words.iter().flat_map(|word| word.to_le_bytes()).collect())
    }

    fn put(&mut self, table: u8, key: &[u8], value: &[u8]) {
        let sum = sum(&[&[table], key, value].concat());
        self.change(table, key, Some(&[&sum.to_le_bytes(), value].concat()));
    }

    fn change(&mut self, table: u8, key: &[u8], stored: Option<&[u8]>) {
        let (is_put, stored) = (stored.is_some(), stored.unwrap_or_default());
        self.changes.extend([table, is_put.into()]);
        self.changes.extend((key.len() as u16).to_le_bytes());
        self.changes.extend((stored.len() as u32).to_le_bytes());
        self.changes.extend(key);
        self.changes.extend(stored);
    }
}

fn inode_record(good: &Good, input: &mut Input<'_>) -> Vec<u8> {
    let links = input.one_of(&[1u32, 2, 3, 0, u32::MAX]);
    let number = input.number();
    let size = input.one_of(&[0, BLOCK, 10 * BLOCK, number]);
    let blocks = input.one_of(&[0, 1, number]);
    let mut record = vec![input.one_of(&[2, 2, 2, 2, 1]), 0];
    let mode = input.mode();
    record.extend(mode.to_le_bytes());
    record.extend(links.to_le_bytes());
    record.extend([0; 8]);
    record.extend(size.to_le_bytes());
    record.extend([0; 8]);
    let times = [input.one_of(&[0, i64::MAX, i64::MIN]); 4];
    record.extend(times.iter().flat_map(|time| time.to_le_bytes()));
    record.extend(input.inode(good).to_le_bytes());
    record.extend(blocks.to_le_bytes());
    if mode & 0o170_000 == 0o120_000 {
        let target = input.one_of(&["d", "..", "/d/e/", "a"]);
        record[16..24].copy_from_slice(&(target.len() as u64).to_le_bytes());
        record.extend(target.as_bytes());
    }
    record
}

/// The checksum of the format.
fn sum(bytes: &[u8]) -> u32 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

/// Writes changes as the next record of the log, in both halves.
fn plant(good: &Good, sim: &Sim, changes: &[u8]) {
    let mut content = (changes.len() as u32).to_le_bytes().to_vec();
    content.extend(good.next_record.to_le_bytes());
    content.extend(changes);
    let content = [&sum(&content).to_le_bytes()[..], &content].concat();
    let mut record = Vec::new();
    for (index, part) in content.chunks(BLOCK as usize - 8).enumerate() {
        record.extend(if index == 0 { b"urlogrec" } else { b"urlogmor" });
        record.extend(part);
    }
    assert!(record.len() as u64 <= good.half_blocks * BLOCK, "the log is too short");
    for half in good.halves {
        poke(sim, half * BLOCK, &record);
    }
}

fn peek(sim: &Sim, address: u64, length: u64) -> Vec<u8> {
    let mut bytes = vec![0; length as usize];
    sim.peek(address, &mut bytes);
    bytes
}

/// Changes the device's bytes by flipping single bits.
fn poke(sim: &Sim, address: u64, bytes: &[u8]) {
    let before = peek(sim, address, bytes.len() as u64);
    for (at, (old, new)) in (address..).zip(before.iter().zip(bytes)) {
        (0..8).filter(|bit| (old ^ new) >> bit & 1 == 1).for_each(|bit| sim.flip_bit(at, bit));
    }
}

fn path_of(file: usize) -> String {
    format!("{}/{file}", DIRECTORIES[file % DIRECTORIES.len()])
}

/// Bytes of a file. Each sector is tagged, and they differ from those of other files.
fn content(file: u8, blocks: u64) -> Buffer {
    let mut bytes = vec![file; (blocks * BLOCK) as usize];
    bytes.chunks_mut(512).for_each(|sector| sector[..SECTOR_TAG.len()].copy_from_slice(SECTOR_TAG));
    Buffer::copy_of(&bytes)
}

impl Good {
    fn new() -> Good {
        let sim = Sim::new(SimOptions::new(SIZE));
        let device = Device::new(sim.clone()).unwrap();
        Volume::format(&device, &FormatOptions::default()).unwrap();
        let volume = Volume::open_on(device.clone()).unwrap();
        for directory in ["/d", "/d/e", "/k", "/o"] {
            volume.create_dir(directory).unwrap();
        }
        let directories = ["/", "/d", "/d/e", "/k", "/o"].map(str::to_owned).to_vec();
        let bystanders = (0..BYSTANDERS).map(|file| format!("/k/{file}")).collect::<Vec<_>>();
        let files = [(0..FILES).map(path_of).collect(), bystanders].concat();
        for (path, index) in files.iter().zip(1..) {
            let create = OpenOptions::new().read(true).write(true).create(true).direct(true);
            let file = volume.open_with(path, create).unwrap();
            let (written, _) =
                REACTOR.with(|reactor| reactor.block_on(file.write_at(content(index, BLOCKS), 0)));
            assert_eq!(written, Ok((BLOCKS * BLOCK) as usize));
        }
        let paths = [directories, files].concat();
        let number = |path: &String| volume.symlink_metadata(path).unwrap().ino();
        let inodes = paths.iter().map(number).collect();
        drop(volume);
        sim.restart_record();
        let superblock = peek(&sim, 0, BLOCK);
        let word = |at: usize| u64::from_le_bytes(superblock[at..at + 8].try_into().unwrap());
        let run = |at: usize| word(at)..word(at) + word(at + 8);
        let runs = u32::from_le_bytes(superblock[132..136].try_into().unwrap()) as usize;
        let (log, catalog) = (run(152), run(256));
        let backup = BACKUP.min(SIZE / BLOCK - 1);
        let system = [0..catalog.start, log.clone(), backup..backup + 1].into_iter();
        let system = system.chain((0..runs).map(|index| run(256 + 16 * index))).collect();
        // The header: of its two sectors, the one with the higher sequence number.
        let head = peek(&sim, (catalog.start + 1) * BLOCK, BLOCK);
        let word = |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().unwrap());
        let sector = if word(464) >= word(2048 + 464) { 0 } else { 2048 };
        let half_blocks = (log.end - log.start) / 2;
        let blocks_of = |file: u8| {
            let is_its = |block: &u64| peek(&sim, block * BLOCK, BLOCK) == content(file, 1)[..];
            (0..SIZE / BLOCK).filter(is_its).collect::<Vec<u64>>()
        };
        let bystanders: Vec<_> =
            (FILES + 1..).map(|file| blocks_of(file as u8)).take(BYSTANDERS).collect();
        assert!(bystanders.iter().all(|blocks| blocks.len() as u64 == BLOCKS));
        Good {
            system,
            catalog: catalog.start,
            halves: [log.start, log.start + half_blocks],
            half_blocks,
            next_record: word(sector + 472) + 1,
            inodes,
            bystanders,
            sim,
        }
    }
}

/// Lists every directory, and reads some of each file.
fn walk(volume: &Volume) {
    let (mut pending, mut entries_read) = (vec![PathBuf::from("/")], 0);
    while let Some(directory) = pending.pop() {
        let Ok(entries) = volume.read_dir(&directory) else { continue };
        for entry in entries {
            entries_read += 1;
            assert!(entries_read < MAX_ENTRIES, "the listing of {directory:?} does not end");
            let Ok(entry) = entry else { continue };
            inspect(volume, &entry.path());
            if entry.file_type().is_dir() {
                pending.push(entry.path());
            }
        }
    }
}

fn inspect(volume: &Volume, path: &Path) {
    if let Ok(metadata) = volume.symlink_metadata(path) {
        let _ = (metadata.blocks(), metadata.file_type());
    }
    for name in volume.list_xattrs(path, Follow::No).unwrap_or_default() {
        let _ = volume.get_xattr(path, Follow::No, name);
    }
    if let Ok(file) = volume.open_with(path, OpenOptions::new().read(true).write(true).direct(true))
    {
        for offset in [0, 3 * BLOCK, file.len().saturating_sub(BLOCK) / 512 * 512] {
            let _ = REACTOR
                .with(|reactor| reactor.block_on(file.read_at(Buffer::zeroed(8192), offset)));
        }
        let _ = (file.seek_data(0), file.seek_hole(0), file.allocated());
    }
}

/// Writes whole blocks of a file, if the file opens.
fn write(volume: &Volume, path: &str, offset: u64, blocks: u64) {
    if let Ok(file) = volume.open_with(path, OpenOptions::new().read(true).write(true).direct(true))
    {
        let bytes = content(0xee, blocks);
        let _ = REACTOR.with(|reactor| reactor.block_on(file.write_at(bytes, offset)));
    }
}

/// Runs one operation that the input describes.
fn operate(volume: &Volume, input: &mut Input<'_>) {
    let path = |input: &mut Input<'_>| match input.below(3) {
        0 => input.one_of(&["/d", "/d/e", "/x", "/d/x", "/d/e/x", "/", "/d/e/.."]).to_owned(),
        _ => path_of(input.below(FILES)),
    };
    let (path, other) = (path(input), path(input));
    match input.below(14) {
        0 => write(volume, &path, u64::from(input.byte()) * 512, 1 + input.below(3) as u64),
        1 => {
            let options = OpenOptions::new().read(true).write(true).create(true).mode(0o600);
            if let Ok(file) = volume.open_with(&path, options) {
                let (bytes, offset) = (content(0xdd, 1), u64::from(input.byte()) * 512);
                REACTOR.with(|reactor| {
                    let _ = reactor.block_on(file.write_at(bytes, offset));
                    let _ = reactor.block_on(file.sync_all());
                });
            }
        }
        2 => {
            let how = input.one_of(&[Rename::Replace, Rename::NoReplace, Rename::Exchange]);
            let _ = volume.rename_with(&path, &other, how);
        }
        3 => drop(volume.remove_file(&path)),
        4 => drop(volume.remove_dir(&path)),
        5 => drop(volume.create_dir(&path)),
        6 => drop(volume.hard_link(&path, &other)),
        7 => drop(volume.symlink(&other, &path)),
        8 => {
            let name = input.one_of(&["user.a", "user.b", "system.posix_acl_access"]);
            let value = vec![input.byte(); input.below(60)];
            let _ = volume.set_xattr(&path, Follow::Yes, name, &value, SetXattr::Either);
        }
        9 => drop(volume.remove_xattr(&path, Follow::Yes, "user.a")),
        10 => drop(volume.sync()),
        11 => {
            let owner = u32::from(input.byte());
            let set = |inode: &mut Inode| inode.set_owner(Some(owner), None);
            let _ = volume.set_attributes(&path, Follow::Yes, set);
        }
        12 => drop(volume.metadata(&path)),
        _ => {
            let Ok(file) =
                volume.open_with(&path, OpenOptions::new().read(true).write(true).direct(true))
            else {
                return;
            };
            let (offset, length) = (u64::from(input.byte()) * 512, input.number() >> 1);
            REACTOR.with(|reactor| {
                let _ = match input.below(4) {
                    0 => reactor.block_on(file.set_len(offset)),
                    1 => reactor.block_on(file.punch_hole(offset, length)),
                    2 => reactor.block_on(file.zero_range(offset, length, FallocateSize::Keep)),
                    _ => reactor.block_on(file.allocate(offset, length, FallocateSize::Extend)),
                };
            });
        }
    }
}

/// No bytes of files were written to a system zone, and the bystanders did not change.
fn check_device(good: &Good, sim: &Sim, planted: &Planted) {
    for event in sim.record() {
        let Event::Begin { action: Action::Write { address, bytes }, .. } = event else { continue };
        for (at, sector) in (address..).step_by(512).zip(bytes.chunks(512)) {
            let block = at / BLOCK;
            let is_system = good.system.iter().any(|run| run.contains(&block));
            assert!(
                !(is_system && sector.starts_with(SECTOR_TAG)),
                "bytes of a file were written to system block {block}"
            );
        }
    }
    let first = good.inodes.len() - BYSTANDERS;
    for (blocks, number) in good.bystanders.iter().zip(&good.inodes[first..]) {
        let is_forged = |block: &u64| planted.extents.iter().any(|run| run.contains(block));
        if planted.is_space_forged
            || planted.inodes.contains(number)
            || blocks.iter().any(is_forged)
        {
            continue;
        }
        for block in blocks {
            let (old, new) = (&good.sim, sim);
            let [old, new] = [old, new].map(|sim| peek(sim, block * BLOCK, BLOCK));
            assert!(
                old == new,
                "block {block} of inode {number} changed, which no operation or record uses"
            );
        }
    }
}

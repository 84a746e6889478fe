//! The bytes under redb: the catalog's blocks as one storage of pages, each under a checksum.
//!
//! `write` only queues. `sync_data` sends all that is queued, what lies in a row as one write, then
//! flushes once. `read` sees what is queued, and verifies every other page: where one bit of it is not
//! what was written that is put right, and told; a page with more damage, or without a checksum, is an
//! error that names it, never wrong bytes.
//!
//! # Where things lie
//! The runs of the catalog, in the superblock's order, are one row of blocks. It is cut into groups
//! of 1025: one block of checksums, then the 1024 pages they cover. So a group never moves when
//! runs are added behind it.
//!
//! # Why every page of the last committed state verifies after a crash
//! Four things may be lost, torn at 512 bytes or written in any order since the last flush: pages,
//! blocks of checksums, the head (page 0), and nothing else is written. redb commits in two phases:
//! pages and the head's idle slot, flush; the head naming that slot, flush. Hence
//! - a page that the durable head reaches is never rewritten: redb copies on write, and takes a
//!   freed page again only after the commit that freed it is durable. Only page 0 is written in
//!   place.
//! - a block of checksums is rewritten in place, but the entry of a page that the head reaches has
//!   the same value before and after, since the page has. However sectors of the old and the new
//!   block mix, that entry reads the same. Entries of other pages may be old or new, and their
//!   pages torn: nothing durable leads to them, and redb overwrites a page before it reads it.
//! - a page and its entry are both durable before the head is written that reaches the page: they
//!   are sent in the first phase, the head's switch in the second. A commit of one phase would
//!   break this: its head can be durable before the pages, and redb's own answer to that (verify
//!   everything, fall back) would meet our errors. So commits here are of two phases, always.
//! - page 0 has no entry. Of it redb uses 320 bytes; they lie in one sector, the head, together
//!   with their checksum and the storage's length. A sector is written whole or not at all, so the
//!   head is the old one or the new one (header.rs keeps it twice). redb sums its two commit slots, but not the bits that
//!   choose between them: one flipped bit there would quietly bring back an older state.
//!
//! The length lies in the head because redb's layout does: they change together, so after a crash
//! they agree, or the length is the longer one (after a shrink), which redb takes as it is.

use std::collections::{BTreeMap, HashMap};
use std::fmt;

use parking_lot::Mutex;
use rustix::io::Errno;
use uringfs_buffer::Buffer;

use super::bit_repair::{BadPage, Flipped, PageFlaw, mend};
use super::checksum::{UNWRITTEN, entry_of};
use super::header::{self, Head};
use super::page_layout::{GROUP, Rows};
use crate::blocks::{BLOCK, Blocks, Run};
use crate::error::{Error, ErrorKind};

const PAGE: usize = BLOCK as usize;
/// Pages queued, about at most; more are sent early, which is as good as in time: nothing durable
/// leads to them before the next sync.
const MAX_QUEUED: usize = 1024;
/// The most bytes of one write.
const MAX_WRITE: usize = 1 << 20;

/// Whether the device may be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    ReadWrite,
    /// Nothing is sent: what redb writes while it verifies stays in the queue.
    ReadOnly,
}

/// What becomes of pages that cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LostPages {
    /// Whoever asks hears of it.
    Refuse,
    /// They hold nothing: for finding out what is left, and never for writing.
    Empty,
    /// They are what lies there: for those of which redb's own checksums say that they are good, so that
    /// only the ones here are lost.
    AsTheyAre,
}

/// Damaged pages that are remembered, at most.
const MAX_DAMAGED: usize = 10_000;
/// Byte 0 of the pages that redb keeps records in; with zeros behind it there are none of them.
const LEAF: u8 = 1;

/// The catalog's blocks as a storage of pages.
pub(crate) struct Store {
    blocks: Blocks,
    access: Access,
    state: Mutex<State>,
}

struct State {
    lost: LostPages,
    rows: Rows,
    /// Bytes, as redb set them; may exceed the blocks until the transaction that did it is undone.
    length: u64,
    head: Head,
    head_queued: bool,
    /// Pages written and not sent. Page 0 is the head.
    queue: BTreeMap<u64, Box<[u8]>>,
    /// The checksums of each group that was needed: 4 KiB for 4 MiB of catalog.
    sums: HashMap<u64, Sums>,
    /// Heads that are durable, counted.
    heads: u64,
    /// Pages that were found damaged.
    damaged: BTreeMap<u64, BadPage>,
    failed: Option<Errno>,
}

/// The entries of one group.
struct Sums {
    entries: Box<[u32]>,
    queued: bool,
}

impl Store {
    /// An empty storage over `runs`.
    ///
    /// # Errors
    /// The device's.
    pub(crate) fn create(blocks: Blocks, runs: &[Run]) -> Result<Store, Error> {
        let store = Store::of(blocks, Access::ReadWrite, LostPages::Refuse);
        store.prepare(runs)?;
        store.adopt(runs);
        Ok(store)
    }

    /// The storage that lies in `runs`.
    ///
    /// # Errors
    /// The device's; `Damaged` when the head is not one.
    pub(crate) fn open(
        blocks: Blocks,
        runs: &[Run],
        access: Access,
        lost: LostPages,
    ) -> Result<Store, Error> {
        let rows = Rows::of(runs);
        let damaged = |what: &str| Error::damaged(format!("the catalog cannot be opened: {what}"));
        let Some(block) = rows.block_of(0) else {
            return Err(damaged("it has no blocks"));
        };
        let bytes = blocks.read(block, PAGE).map_err(|errno| {
            Error::io(format!("reading the catalog's head, block {block}"), errno)
        })?;
        let Some((head, length)) = header::parse(&bytes) else {
            return Err(damaged(&format!("its head, block {block}, has a wrong checksum")));
        };
        if length == 0 || !length.is_multiple_of(BLOCK) || length > rows.pages() * BLOCK {
            let has = rows.pages() * BLOCK;
            return Err(damaged(&format!("it is {length} bytes long, its blocks hold {has}")));
        }
        let store = Store::of(blocks, access, lost);
        {
            let mut state = store.state.lock();
            (state.rows, state.length, state.head) = (rows, length, head);
        }
        Ok(store)
    }

    fn of(blocks: Blocks, access: Access, lost: LostPages) -> Store {
        let state = State {
            lost,
            rows: Rows::default(),
            length: 0,
            head: Head::default(),
            head_queued: false,
            queue: BTreeMap::new(),
            sums: HashMap::new(),
            heads: 0,
            damaged: BTreeMap::new(),
            failed: None,
        };
        Store { blocks, access, state: Mutex::new(state) }
    }

    /// Makes blocks fit to be added: their checksums say that no page was written. Durable when
    /// it returns; then the superblock may name them, then [`Self::adopt`] uses them.
    ///
    /// # Errors
    /// The device's.
    pub(crate) fn prepare(&self, runs: &[Run]) -> Result<(), Error> {
        let rows = self.state.lock().rows.clone();
        for block in rows.sums_of(runs) {
            self.blocks
                .write(block, Buffer::zeroed(PAGE))
                .map_err(|e| Error::io(format!("clearing block {block} for the catalog"), e))?;
        }
        self.blocks.flush().map_err(|e| Error::io("flushing blocks for the catalog", e))
    }

    /// Adds prepared blocks.
    pub(crate) fn adopt(&self, runs: &[Run]) {
        self.state.lock().rows.add(runs);
    }

    /// What was damaged in the head, a line each, though the head is whole.
    pub(crate) fn flaws(&self) -> Vec<String> {
        let state = self.state.lock();
        let block = state.rows.block_of(0).unwrap_or_default();
        let line = |copy| format!("catalog head, block {block}, byte {copy}: wrong checksum");
        state.head.bad_copies.iter().map(line).collect()
    }

    /// Pages that were found damaged, as long as there are not too many.
    pub(crate) fn damaged(&self) -> Vec<BadPage> {
        self.state.lock().damaged.values().cloned().collect()
    }

    /// Whether it was closed by the last who wrote it: else its head may be in the device's cache only.
    pub(crate) fn was_closed(&self) -> bool {
        !self.state.lock().head.is_of_open()
    }

    /// Writes down what was put right in these pages, and the head; durable when it returns. A power cut
    /// meanwhile leaves sectors as they were or right.
    ///
    /// # Errors
    /// What reading a page says; the device's.
    pub(crate) fn rewrite(&self, pages: &[u64]) -> Result<(), Error> {
        for page in pages {
            let mut bytes = vec![0; PAGE];
            self.read_pages(*page, &mut bytes)?;
            let mut state = self.state.lock();
            if let Some(sums) = state.sums.get_mut(&(page / GROUP)) {
                sums.queued = true;
            }
            state.queue.insert(*page, bytes.into_boxed_slice());
            state.send(&self.blocks)?;
        }
        self.state.lock().head_queued = true;
        self.sync()
    }

    /// Bytes that the blocks hold.
    pub(crate) fn capacity(&self) -> u64 {
        self.state.lock().rows.pages() * BLOCK
    }

    /// Bytes as redb set them.
    pub(crate) fn length(&self) -> u64 {
        self.state.lock().length
    }

    /// Takes nothing more: what is durable stays as it is.
    pub(crate) fn abandon(&self) {
        self.state.lock().fail("", Errno::IO);
    }

    /// The last record of the log that the commit which holds has.
    pub(crate) fn log(&self) -> u64 {
        self.state.lock().head.log
    }

    /// The commit that is begun now, if it comes to hold, has the log up to this record.
    pub(crate) fn set_next_log(&self, number: u64) {
        self.state.lock().head.next_log = number;
    }

    /// Makes it as long as its blocks allow, before redb opens it.
    pub(crate) fn stretch(&self) {
        let mut state = self.state.lock();
        state.length = state.rows.pages() * BLOCK;
    }

    /// Whether redb made it longer than its blocks are; what it did must be undone.
    pub(crate) fn is_short(&self) -> bool {
        let state = self.state.lock();
        state.length > state.rows.pages() * BLOCK
    }

    /// How many heads have become durable. A commit makes two so; one that failed after the
    /// second happened.
    pub(crate) fn heads(&self) -> u64 {
        self.state.lock().heads
    }

    /// What ended it: a write or flush that failed, mostly. Nothing is read or written any more, since
    /// what was sent may be there or not.
    pub(crate) fn failed(&self) -> Option<Errno> {
        self.state.lock().failed
    }

    /// Fills `out`, whole pages from `first` on.
    fn read_pages(&self, first: u64, out: &mut [u8]) -> Result<(), Error> {
        let count = (out.len() / PAGE) as u64;
        let (pieces, entries) = {
            let mut state = self.state.lock();
            let mut entries = Vec::with_capacity(count as usize);
            for (page, bytes) in (first..).zip(out.chunks_exact_mut(PAGE)) {
                entries.push(state.fetch(&self.blocks, page, bytes)?);
            }
            (state.rows.pieces(first, count), entries)
        };
        // Outside the lock: a page that is read is not rewritten before its reader is done.
        for piece in pieces {
            let range = (piece.page - first) as usize..(piece.page + piece.count - first) as usize;
            if entries[range.clone()].iter().all(Option::is_none) {
                continue;
            }
            let mut bytes = self
                .blocks
                .read(piece.block, piece.count as usize * PAGE)
                .map_err(|e| Error::io(format!("reading catalog block {}", piece.block), e))?;
            for (index, bytes) in range.zip(bytes.chunks_exact_mut(PAGE)) {
                let Some(entry) = entries[index] else { continue };
                if entry_of(bytes) != entry {
                    self.put_right(first + index as u64, bytes, entry)?;
                }
                out[index * PAGE..][..PAGE].copy_from_slice(bytes);
            }
        }
        Ok(())
    }

    /// Makes of a page that does not fit its entry what it was.
    fn put_right(&self, page: u64, bytes: &mut [u8], entry: u32) -> Result<(), Error> {
        let mut state = self.state.lock();
        let flaw = match mend(bytes, entry) {
            Some(Flipped::Page { byte, bit }) => PageFlaw::Bit { byte, bit },
            Some(Flipped::Entry(right)) => {
                if let Some(sums) = state.sums.get_mut(&(page / GROUP)) {
                    sums.entries[(page % GROUP) as usize] = right;
                }
                PageFlaw::SumBit
            }
            None if state.lost == LostPages::AsTheyAre => PageFlaw::Sum,
            None => {
                let block = state.rows.block_of(page).unwrap_or_default();
                let what = if entry == UNWRITTEN { "no checksum" } else { "a wrong checksum" };
                let context = format!("catalog page {page} (block {block}) has {what}");
                return Err(Error::damaged(context));
            }
        };
        state.note(page, flaw);
        Ok(())
    }

    /// Fills in what stands for pages that are lost, if something does: one without records.
    fn salvage(&self, first: u64, out: &mut [u8], error: Error) -> Result<(), Error> {
        if self.state.lock().lost != LostPages::Empty || first == 0 {
            return Err(error);
        }
        let flaw = match error.kind() {
            // What a device failed to read once may be there.
            ErrorKind::Io(_) if self.read_pages(first, out).is_ok() => return Ok(()),
            ErrorKind::Io(_) => PageFlaw::Unread(error.to_string()),
            _ => PageFlaw::Lost(error.to_string()),
        };
        self.state.lock().note(first, flaw);
        out.fill(0);
        out[0] = LEAF;
        Ok(())
    }

    pub(super) fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), Error> {
        self.check_range(offset, out.len())?;
        let first = offset / BLOCK;
        let inside = (offset % BLOCK) as usize;
        if inside == 0 && out.len().is_multiple_of(PAGE) {
            return self.read_pages(first, out).or_else(|error| self.salvage(first, out, error));
        }
        let mut pages = vec![0; (inside + out.len()).next_multiple_of(PAGE)];
        self.read_pages(first, &mut pages)?;
        out.copy_from_slice(&pages[inside..][..out.len()]);
        Ok(())
    }

    pub(super) fn write(&self, offset: u64, data: &[u8]) -> Result<(), Error> {
        self.check_range(offset, data.len())?;
        let (mut offset, mut data) = (offset, data);
        while !data.is_empty() {
            let page = offset / BLOCK;
            let inside = (offset % BLOCK) as usize;
            let (part, rest) = data.split_at(data.len().min(PAGE - inside));
            self.write_part(page, inside, part)?;
            offset += part.len() as u64;
            data = rest;
        }
        let mut state = self.state.lock();
        let full = state.queue.len() > MAX_QUEUED && self.access == Access::ReadWrite;
        // A transaction that went past the blocks is undone, not sent.
        if full && state.length <= state.rows.pages() * BLOCK {
            state.send(&self.blocks)?;
        }
        Ok(())
    }

    fn write_part(&self, page: u64, inside: usize, part: &[u8]) -> Result<(), Error> {
        if page == 0 {
            let mut state = self.state.lock();
            state.head_queued = true;
            return state.head.write(inside, part);
        }
        let mut bytes = vec![0; PAGE].into_boxed_slice();
        if part.len() < PAGE {
            self.read_pages(page, &mut bytes)?;
        }
        bytes[inside..][..part.len()].copy_from_slice(part);
        self.state.lock().queue.insert(page, bytes);
        Ok(())
    }

    pub(super) fn sync(&self) -> Result<(), Error> {
        if self.access != Access::ReadWrite {
            return Ok(());
        }
        let head = {
            let mut state = self.state.lock();
            state.check()?;
            let head = state.head_queued;
            state.send(&self.blocks)?;
            head
        };
        let flushed = self.blocks.flush();
        let mut state = self.state.lock();
        match flushed {
            Ok(()) => {
                state.heads += u64::from(head);
                Ok(())
            }
            Err(errno) => Err(state.fail("flushing the catalog", errno)),
        }
    }

    pub(super) fn set_length(&self, length: u64) -> Result<(), Error> {
        if !length.is_multiple_of(BLOCK) {
            return Err(Error::new(ErrorKind::Input, format!("a catalog of {length} bytes")));
        }
        let mut state = self.state.lock();
        state.check()?;
        let pages = length / BLOCK;
        state.queue.split_off(&pages);
        // What is cut off was never written when it comes back.
        let end = state.length.div_ceil(BLOCK).min(state.rows.pages());
        for page in pages.max(1)..end {
            let (group, index) = (page / GROUP, (page % GROUP) as usize);
            let sums = state.sums(&self.blocks, group)?;
            sums.queued |= sums.entries[index] != UNWRITTEN;
            sums.entries[index] = UNWRITTEN;
        }
        state.length = length;
        Ok(())
    }

    fn check_range(&self, offset: u64, bytes: usize) -> Result<(), Error> {
        let state = self.state.lock();
        state.check()?;
        match offset.checked_add(bytes as u64) {
            Some(end) if end <= state.length => Ok(()),
            _ => {
                let context =
                    format!("{bytes} bytes at {offset} of a catalog of {} bytes", state.length);
                Err(Error::damaged(context))
            }
        }
    }
}

impl State {
    fn check(&self) -> Result<(), Error> {
        match self.failed {
            None => Ok(()),
            Some(errno) => Err(Error::io("the catalog failed before", errno)),
        }
    }

    /// Remembers a damaged page.
    fn note(&mut self, page: u64, flaw: PageFlaw) {
        let block = self.rows.block_of(page).unwrap_or_default();
        let sums_block = self.rows.sums_block(page / GROUP).unwrap_or_default();
        if self.damaged.len() < MAX_DAMAGED {
            self.damaged.insert(page, BadPage { page, block, sums_block, flaw });
        }
    }

    /// Nothing more is sent, and what is queued is lost.
    fn fail(&mut self, doing: &str, errno: Errno) -> Error {
        self.failed = Some(errno);
        self.queue.clear();
        self.sums.clear();
        Error::io(doing, errno)
    }

    /// Fills in a page that needs no reading; or answers its entry.
    fn fetch(&mut self, blocks: &Blocks, page: u64, out: &mut [u8]) -> Result<Option<u32>, Error> {
        if page == 0 {
            self.head.read(out);
        } else if let Some(bytes) = self.queue.get(&page) {
            out.copy_from_slice(bytes);
        } else if page >= self.rows.pages() {
            out.fill(0);
        } else {
            // Nobody reads what was never written: where the entry says so, it is lost.
            return Ok(Some(self.sums(blocks, page / GROUP)?.entries[(page % GROUP) as usize]));
        }
        Ok(None)
    }

    /// The checksums of a group, read at first use.
    fn sums(&mut self, blocks: &Blocks, group: u64) -> Result<&mut Sums, Error> {
        if !self.sums.contains_key(&group) {
            let block = self.rows.sums_block(group).ok_or_else(|| no_blocks(group * GROUP))?;
            let entries = match blocks.read(block, PAGE) {
                Ok(bytes) => {
                    let (words, _) = bytes.as_chunks::<4>();
                    words.iter().map(|word| u32::from_le_bytes(*word)).collect()
                }
                Err(_) if self.lost == LostPages::AsTheyAre => [UNWRITTEN; GROUP as usize].into(),
                Err(errno) => {
                    let context = format!("reading catalog checksums, block {block}");
                    return Err(Error::io(context, errno));
                }
            };
            self.sums.insert(group, Sums { entries, queued: false });
        }
        Ok(self.sums.get_mut(&group).expect("it was read"))
    }

    /// Sends all that is queued, what lies in a row as one write; durable after the next flush.
    fn send(&mut self, blocks: &Blocks) -> Result<(), Error> {
        let mut sent: Vec<(u64, Box<[u8]>)> = Vec::new();
        for (page, bytes) in std::mem::take(&mut self.queue) {
            let Some(block) = self.rows.block_of(page) else {
                return Err(self.fail("writing past the catalog's blocks", Errno::NOSPC));
            };
            let sums = match self.sums(blocks, page / GROUP) {
                Ok(sums) => sums,
                Err(error) => {
                    self.fail("", Errno::IO);
                    return Err(error);
                }
            };
            sums.entries[(page % GROUP) as usize] = entry_of(&bytes);
            sums.queued = true;
            sent.push((block, bytes));
        }
        for (group, sums) in self.sums.iter_mut().filter(|(_, sums)| sums.queued) {
            let block = self.rows.sums_block(*group).ok_or_else(|| no_blocks(group * GROUP))?;
            sent.push((block, sums.entries.iter().flat_map(|entry| entry.to_le_bytes()).collect()));
            sums.queued = false;
        }
        if self.head_queued {
            let block = self.rows.block_of(0).ok_or_else(|| no_blocks(0))?;
            let mut bytes = vec![0; PAGE].into_boxed_slice();
            self.head.write_to(&mut bytes, self.length);
            sent.push((block, bytes));
            self.head_queued = false;
        }
        sent.sort_unstable_by_key(|(block, _)| *block);
        for row in sent.chunk_by(|one, next| one.0 + 1 == next.0) {
            for part in row.chunks(MAX_WRITE / PAGE) {
                let mut buffer = Buffer::zeroed(part.len() * PAGE);
                for (to, (_, bytes)) in buffer.chunks_exact_mut(PAGE).zip(part) {
                    to.copy_from_slice(bytes);
                }
                let block = part[0].0;
                if let Err(errno) = blocks.write(block, buffer) {
                    return Err(self.fail(&format!("writing catalog block {block}"), errno));
                }
            }
        }
        Ok(())
    }
}

fn no_blocks(page: u64) -> Error {
    Error::io(format!("catalog page {page} has no block"), Errno::NOSPC)
}

impl fmt::Debug for Store {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state.lock();
        write!(out, "catalog store, {} of {} bytes", state.length, state.rows.pages() * BLOCK)
    }
}

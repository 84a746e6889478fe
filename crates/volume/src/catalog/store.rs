//! The bytes under redb: the catalog's blocks as one storage of pages, each with a checksum.
//!
//! - `write` queues pages. A long queue is written early, without a flush.
//! - `sync` writes all queued pages at once, adjacent ones as one write, then flushes once.
//! - `read` returns queued pages as they are, and verifies every other page. It corrects one
//!   flipped bit and reports it. A page with more damage, or without a checksum, is an error that
//!   names the page, never wrong bytes.
//!
//! # Layout
//! The runs of the catalog, in the superblock's order, form one sequence of blocks. It is cut into
//! groups of 1025 blocks: one block of checksums, then the 1024 pages that they cover. So a group
//! never moves when runs are added at the end.
//!
//! # Why every page of the last committed state verifies after a crash
//! Only three kinds of blocks are written: pages, blocks of checksums, and the header (page 0).
//! Since the last flush any of them may be lost, torn at 512 bytes, or written in any order. redb
//! commits in two phases: it writes pages and the idle slot of the header, and flushes; then it
//! writes the header that names that slot, and flushes. Hence:
//! - A page that the durable header reaches is never rewritten. redb copies on write, and reuses a
//!   freed page only after the commit that freed it is durable. Only page 0 is written in place.
//! - A block of checksums is rewritten in place. The entry of a page that the header reaches has
//!   the same value before and after, since the page does not change. In whatever way sectors of
//!   the old and the new block mix, that entry reads the same. Entries of other pages may be old or
//!   new, and their pages torn: nothing durable refers to them, and redb overwrites such a page
//!   before it reads it.
//! - A page and its entry are both durable before the header that reaches the page is written: both
//!   are written in the first phase, the switch of the header in the second. A commit of one phase
//!   would break this. Its header could be durable before the pages. redb recovers from that: it
//!   verifies all pages and falls back to the other slot. But its reads of torn pages would fail on
//!   our checksums. So commits always have two phases here.
//! - Page 0 has no entry. redb uses 320 bytes of it. They lie in one sector, the header, together
//!   with their checksum and the length of the storage. A sector is written whole or not at all, so
//!   the header is the old one or the new one (header.rs keeps two copies). redb has checksums for
//!   its two commit slots, but not for the bits that choose between them: one flipped bit there
//!   would silently bring back an older state.
//!
//! The length is part of the header because redb's layout depends on it. Both change together, so
//! after a crash they agree, or the length is the longer one (after a shrink), which redb accepts.

use std::collections::{BTreeMap, HashMap};
use std::fmt;

use parking_lot::Mutex;
use uringfs_buffer::Buffer;
use uringfs_device::{Durability, Errno};

use super::bit_repair::{BadPage, FlippedBit, PageDamage, correct_flipped_bit};
use super::checksum::{UNWRITTEN, checksum_entry};
use super::header::{self, Header};
use super::page_layout::{GROUP_PAGES, PageLayout};
use crate::blocks::{BLOCK, BlockIo, Run};
use crate::error::{Error, ErrorKind};

const PAGE_BYTES: usize = BLOCK as usize;
/// The most queued pages, approximately. More are written early, which is safe: nothing durable
/// refers to them before the next sync.
const MAX_QUEUED_PAGES: usize = 1024;
/// The most bytes of one write.
const MAX_WRITE_BYTES: usize = 1 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    ReadWrite,
    /// Nothing is written. Pages that redb writes while it verifies stay in the queue.
    ReadOnly,
}

/// The treatment of pages that cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LostPages {
    /// The read fails.
    Fail,
    /// They are empty. For salvage, never for writing.
    Empty,
    /// They are returned as they are on the device. For pages that redb's own checksums prove good,
    /// so that only our checksums are lost.
    Raw,
}

/// The most damaged pages that are remembered.
const MAX_DAMAGED: usize = 10_000;
/// Byte 0 of the pages in which redb keeps records. A page that is zero otherwise has no records.
const LEAF_PAGE_TYPE: u8 = 1;

/// The catalog's blocks as a storage of pages.
pub(crate) struct Store {
    blocks: BlockIo,
    access: Access,
    state: Mutex<StoreState>,
}

struct StoreState {
    lost: LostPages,
    layout: PageLayout,
    /// In bytes, as redb set it. May exceed the blocks until the transaction that grew it is
    /// undone.
    length: u64,
    header: Header,
    header_queued: bool,
    /// Pages to write. Page 0 is kept in the header instead.
    queue: BTreeMap<u64, Box<[u8]>>,
    /// The checksums of each group used so far: 4 KiB for 4 MiB of catalog.
    checksums: HashMap<u64, ChecksumGroup>,
    /// Number of headers that have become durable.
    durable_headers: u64,
    /// Pages found damaged.
    damaged: BTreeMap<u64, BadPage>,
    failed: Option<Errno>,
}

/// The entries of one group.
struct ChecksumGroup {
    entries: Box<[u32]>,
    queued: bool,
}

impl Store {
    /// Creates an empty storage over `runs`.
    ///
    /// # Errors
    /// The device's.
    pub(crate) fn create(blocks: BlockIo, runs: &[Run]) -> Result<Store, Error> {
        let store = Store::new(blocks, Access::ReadWrite, LostPages::Fail);
        store.prepare(runs)?;
        store.add(runs);
        Ok(store)
    }

    /// Opens the storage in `runs`.
    ///
    /// # Errors
    /// The device's; `Damaged` when the header is damaged.
    pub(crate) fn open(
        blocks: BlockIo,
        runs: &[Run],
        access: Access,
        lost: LostPages,
    ) -> Result<Store, Error> {
        let layout = PageLayout::new(runs);
        let damaged = |what: &str| Error::damaged(format!("the catalog cannot be opened: {what}"));
        let Some(block) = layout.block_of(0) else {
            return Err(damaged("the superblock names no blocks"));
        };
        let bytes = blocks.read(block, PAGE_BYTES).map_err(|errno| {
            Error::io(format!("reading the catalog's header, block {block}"), errno)
        })?;
        let Some((header, length)) = header::parse(&bytes) else {
            return Err(damaged(&format!("its header, block {block}, has a wrong checksum")));
        };
        if length == 0 || !length.is_multiple_of(BLOCK) || length > layout.pages() * BLOCK {
            let has = layout.pages() * BLOCK;
            return Err(damaged(&format!("it is {length} bytes long, but its blocks hold {has}")));
        }
        let store = Store::new(blocks, access, lost);
        {
            let mut state = store.state.lock();
            (state.layout, state.length, state.header) = (layout, length, header);
        }
        Ok(store)
    }

    /// Whether it is open for reading only.
    pub(crate) fn access(&self) -> Access {
        self.access
    }

    /// The same storage with nothing cached. It stays at the commit that this was opened at, whatever
    /// the device has now. Only for a storage that is open for reading.
    pub(crate) fn opened_again(&self, lost: LostPages) -> Store {
        let again = Store::new(self.blocks.clone(), self.access, lost);
        {
            let (mut state, before) = (again.state.lock(), self.state.lock());
            (state.layout, state.length) = (before.layout.clone(), before.length);
            state.header = before.header.clone();
        }
        again
    }

    fn new(blocks: BlockIo, access: Access, lost: LostPages) -> Store {
        let state = StoreState {
            lost,
            layout: PageLayout::default(),
            length: 0,
            header: Header::default(),
            header_queued: false,
            queue: BTreeMap::new(),
            checksums: HashMap::new(),
            durable_headers: 0,
            damaged: BTreeMap::new(),
            failed: None,
        };
        Store { blocks, access, state: Mutex::new(state) }
    }

    /// Prepares blocks to be added: writes checksums which say that no page has been written.
    /// Durable when it returns. After that a superblock may name the blocks, and then [`Self::add`]
    /// uses them.
    ///
    /// # Errors
    /// The device's.
    pub(crate) fn prepare(&self, runs: &[Run]) -> Result<(), Error> {
        let layout = self.state.lock().layout.clone();
        for block in layout.new_checksum_blocks(runs) {
            self.blocks
                .write(block, Buffer::zeroed(PAGE_BYTES))
                .map_err(|e| Error::io(format!("clearing block {block} for the catalog"), e))?;
        }
        self.blocks.flush().map_err(|e| Error::io("flushing blocks for the catalog", e))
    }

    /// Adds prepared blocks.
    pub(crate) fn add(&self, runs: &[Run]) {
        self.state.lock().layout.add(runs);
    }

    /// Damage in the header that lost nothing, one line each.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let state = self.state.lock();
        let block = state.layout.block_of(0).unwrap_or_default();
        let line = |copy| format!("catalog header, block {block}, byte {copy}: wrong checksum");
        state.header.bad_copies.iter().map(line).collect()
    }

    /// Pages found damaged, up to a limit.
    pub(crate) fn damaged(&self) -> Vec<BadPage> {
        self.state.lock().damaged.values().cloned().collect()
    }

    /// Whether the last writer closed the storage. If not, its header may be in the device's cache
    /// only.
    pub(crate) fn was_closed_cleanly(&self) -> bool {
        !self.state.lock().header.was_left_open()
    }

    /// Writes the corrected content of these pages, and the header. Durable when it returns. A
    /// power cut meanwhile leaves each sector as it was or corrected.
    ///
    /// # Errors
    /// Those of reading a page; the device's.
    pub(crate) fn rewrite(&self, pages: &[u64]) -> Result<(), Error> {
        for page in pages {
            let mut bytes = vec![0; PAGE_BYTES];
            self.read_pages(*page, &mut bytes)?;
            let mut state = self.state.lock();
            if let Some(checksums) = state.checksums.get_mut(&(page / GROUP_PAGES)) {
                checksums.queued = true;
            }
            state.queue.insert(*page, bytes.into_boxed_slice());
            state.write_queued(&self.blocks)?;
        }
        self.state.lock().header_queued = true;
        self.sync()
    }

    /// Bytes that the blocks hold.
    pub(crate) fn capacity(&self) -> u64 {
        self.state.lock().layout.pages() * BLOCK
    }

    /// Bytes that redb has set.
    pub(crate) fn length(&self) -> u64 {
        self.state.lock().length
    }

    /// Accepts nothing more. The durable state stays as it is.
    pub(crate) fn abandon(&self) {
        self.state.lock().fail("", Errno::IO);
    }

    /// The last log record that the committed state contains.
    pub(crate) fn checkpoint_lsn(&self) -> u64 {
        self.state.lock().header.checkpoint_lsn
    }

    /// The commit that begins now contains the log up to this record.
    pub(crate) fn set_next_checkpoint_lsn(&self, number: u64) {
        self.state.lock().header.next_checkpoint_lsn = number;
    }

    /// Extends the storage to all of its blocks, before redb opens it.
    pub(crate) fn extend_to_capacity(&self) {
        let mut state = self.state.lock();
        state.length = state.layout.pages() * BLOCK;
    }

    /// Whether redb made the storage longer than its blocks. The transaction must be undone then.
    pub(crate) fn exceeds_blocks(&self) -> bool {
        let state = self.state.lock();
        state.length > state.layout.pages() * BLOCK
    }

    /// Number of headers that have become durable. A commit makes two of them durable. If it
    /// fails after its second header is durable, it has taken effect all the same.
    pub(crate) fn durable_headers(&self) -> u64 {
        self.state.lock().durable_headers
    }

    /// The error that stopped the storage: mostly a failed write or flush. Nothing is read or
    /// written any more, since the failed write may or may not be on the device.
    pub(crate) fn failure(&self) -> Option<Errno> {
        self.state.lock().failed
    }

    /// Reads whole pages, from `first` on.
    fn read_pages(&self, first: u64, out: &mut [u8]) -> Result<(), Error> {
        let count = (out.len() / PAGE_BYTES) as u64;
        let (page_runs, entries) = {
            let mut state = self.state.lock();
            let mut entries = Vec::with_capacity(count as usize);
            for (page, bytes) in (first..).zip(out.chunks_exact_mut(PAGE_BYTES)) {
                entries.push(state.copy_from_memory(&self.blocks, page, bytes)?);
            }
            (state.layout.page_runs(first, count), entries)
        };
        // Without the lock: a page that is read is not rewritten before its reader is done.
        for page_run in page_runs {
            let range =
                (page_run.page - first) as usize..(page_run.page + page_run.count - first) as usize;
            if entries[range.clone()].iter().all(Option::is_none) {
                continue;
            }
            let mut bytes = self
                .blocks
                .read(page_run.block, page_run.count as usize * PAGE_BYTES)
                .map_err(|e| Error::io(format!("reading catalog block {}", page_run.block), e))?;
            for (index, bytes) in range.zip(bytes.chunks_exact_mut(PAGE_BYTES)) {
                let Some(entry) = entries[index] else { continue };
                if checksum_entry(bytes) != entry {
                    self.correct_page(first + index as u64, bytes, entry)?;
                }
                out[index * PAGE_BYTES..][..PAGE_BYTES].copy_from_slice(bytes);
            }
        }
        Ok(())
    }

    /// Corrects a page that does not match its entry.
    fn correct_page(&self, page: u64, bytes: &mut [u8], entry: u32) -> Result<(), Error> {
        let mut state = self.state.lock();
        let damage = match correct_flipped_bit(bytes, entry) {
            Some(FlippedBit::Page { byte, bit }) => PageDamage::FlippedBit { byte, bit },
            Some(FlippedBit::Entry(right)) => {
                if let Some(checksums) = state.checksums.get_mut(&(page / GROUP_PAGES)) {
                    checksums.entries[(page % GROUP_PAGES) as usize] = right;
                }
                PageDamage::FlippedChecksumBit
            }
            None if state.lost == LostPages::Raw => PageDamage::ChecksumLost,
            None => {
                let block = state.layout.block_of(page).unwrap_or_default();
                let what = if entry == UNWRITTEN { "no checksum" } else { "a wrong checksum" };
                let context = format!("catalog page {page} (block {block}) has {what}");
                return Err(Error::damaged(context));
            }
        };
        state.record_damage(page, damage);
        Ok(())
    }

    /// Fills in an empty page for a lost one, if `lost` says so.
    fn substitute(&self, first: u64, out: &mut [u8], error: Error) -> Result<(), Error> {
        if self.state.lock().lost != LostPages::Empty || first == 0 {
            return Err(error);
        }
        let damage = match error.kind() {
            // A second read of the device may succeed.
            ErrorKind::Io(_) if self.read_pages(first, out).is_ok() => return Ok(()),
            ErrorKind::Io(_) => PageDamage::Unreadable(error.to_string()),
            _ => PageDamage::Lost(error.to_string()),
        };
        self.state.lock().record_damage(first, damage);
        out.fill(0);
        out[0] = LEAF_PAGE_TYPE;
        Ok(())
    }

    pub(super) fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), Error> {
        self.check_range(offset, out.len())?;
        let first = offset / BLOCK;
        let inside = (offset % BLOCK) as usize;
        if inside == 0 && out.len().is_multiple_of(PAGE_BYTES) {
            return self.read_pages(first, out).or_else(|error| self.substitute(first, out, error));
        }
        let mut pages = vec![0; (inside + out.len()).next_multiple_of(PAGE_BYTES)];
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
            let (part, rest) = data.split_at(data.len().min(PAGE_BYTES - inside));
            self.write_part(page, inside, part)?;
            offset += part.len() as u64;
            data = rest;
        }
        let mut state = self.state.lock();
        let full = state.queue.len() > MAX_QUEUED_PAGES && self.access == Access::ReadWrite;
        // A transaction that exceeds the blocks is undone, not written.
        if full && state.length <= state.layout.pages() * BLOCK {
            state.write_queued(&self.blocks)?;
        }
        Ok(())
    }

    fn write_part(&self, page: u64, inside: usize, part: &[u8]) -> Result<(), Error> {
        if page == 0 {
            let mut state = self.state.lock();
            state.header_queued = true;
            return state.header.update(inside, part);
        }
        let mut bytes = vec![0; PAGE_BYTES].into_boxed_slice();
        if part.len() < PAGE_BYTES {
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
        let header = {
            let mut state = self.state.lock();
            state.check()?;
            let header = state.header_queued;
            state.write_queued(&self.blocks)?;
            header
        };
        let flushed = self.blocks.flush();
        let mut state = self.state.lock();
        match flushed {
            Ok(()) => {
                state.durable_headers += u64::from(header);
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
        // Pages that are cut off count as never written when the storage grows again.
        let end = state.length.div_ceil(BLOCK).min(state.layout.pages());
        for page in pages.max(1)..end {
            let (group, index) = (page / GROUP_PAGES, (page % GROUP_PAGES) as usize);
            let checksums = state.checksums(&self.blocks, group)?;
            checksums.queued |= checksums.entries[index] != UNWRITTEN;
            checksums.entries[index] = UNWRITTEN;
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
                let context = format!(
                    "the catalog is damaged: its pages refer to {bytes} bytes at {offset}, past its end at {}",
                    state.length
                );
                Err(Error::damaged(context))
            }
        }
    }
}

impl StoreState {
    fn check(&self) -> Result<(), Error> {
        match self.failed {
            None => Ok(()),
            Some(errno) => Err(Error::io("the catalog failed before", errno)),
        }
    }

    fn record_damage(&mut self, page: u64, damage: PageDamage) {
        let block = self.layout.block_of(page).unwrap_or_default();
        let checksum_block = self.layout.checksum_block(page / GROUP_PAGES).unwrap_or_default();
        if self.damaged.len() < MAX_DAMAGED {
            self.damaged.insert(page, BadPage { page, block, checksum_block, damage });
        }
    }

    /// Stops the storage and drops the queue.
    fn fail(&mut self, doing: &str, errno: Errno) -> Error {
        self.failed = Some(errno);
        self.queue.clear();
        self.checksums.clear();
        Error::io(doing, errno)
    }

    /// Fills in a page that is in memory. Otherwise returns its entry.
    fn copy_from_memory(
        &mut self,
        blocks: &BlockIo,
        page: u64,
        out: &mut [u8],
    ) -> Result<Option<u32>, Error> {
        if page == 0 {
            self.header.copy_to(out);
        } else if let Some(bytes) = self.queue.get(&page) {
            out.copy_from_slice(bytes);
        } else if page >= self.layout.pages() {
            out.fill(0);
        } else {
            // redb never reads a page that was never written. If the entry says so, the entry is
            // lost.
            return Ok(Some(
                self.checksums(blocks, page / GROUP_PAGES)?.entries[(page % GROUP_PAGES) as usize],
            ));
        }
        Ok(None)
    }

    /// The checksums of a group, read at first use.
    fn checksums(&mut self, blocks: &BlockIo, group: u64) -> Result<&mut ChecksumGroup, Error> {
        if !self.checksums.contains_key(&group) {
            let block =
                self.layout.checksum_block(group).ok_or_else(|| no_blocks(group * GROUP_PAGES))?;
            let entries = match blocks.read(block, PAGE_BYTES) {
                Ok(bytes) => {
                    let (words, _) = bytes.as_chunks::<4>();
                    words.iter().map(|word| u32::from_le_bytes(*word)).collect()
                }
                Err(_) if self.lost == LostPages::Raw => [UNWRITTEN; GROUP_PAGES as usize].into(),
                Err(errno) => {
                    let context = format!("reading catalog checksums, block {block}");
                    return Err(Error::io(context, errno));
                }
            };
            self.checksums.insert(group, ChecksumGroup { entries, queued: false });
        }
        Ok(self.checksums.get_mut(&group).expect("the group was read"))
    }

    /// Writes all that is queued at once, adjacent blocks as one write. Durable after the next flush.
    fn write_queued(&mut self, blocks: &BlockIo) -> Result<(), Error> {
        let mut sent: Vec<(u64, Box<[u8]>)> = Vec::new();
        for (page, bytes) in std::mem::take(&mut self.queue) {
            let Some(block) = self.layout.block_of(page) else {
                return Err(self.fail("writing past the catalog's blocks", Errno::NOSPC));
            };
            let checksums = match self.checksums(blocks, page / GROUP_PAGES) {
                Ok(checksums) => checksums,
                Err(error) => {
                    self.fail("", Errno::IO);
                    return Err(error);
                }
            };
            checksums.entries[(page % GROUP_PAGES) as usize] = checksum_entry(&bytes);
            checksums.queued = true;
            sent.push((block, bytes));
        }
        for (group, checksums) in
            self.checksums.iter_mut().filter(|(_, checksums)| checksums.queued)
        {
            let block =
                self.layout.checksum_block(*group).ok_or_else(|| no_blocks(group * GROUP_PAGES))?;
            sent.push((
                block,
                checksums.entries.iter().flat_map(|entry| entry.to_le_bytes()).collect(),
            ));
            checksums.queued = false;
        }
        if self.header_queued {
            let block = self.layout.block_of(0).ok_or_else(|| no_blocks(0))?;
            let mut bytes = vec![0; PAGE_BYTES].into_boxed_slice();
            self.header.encode_into(&mut bytes, self.length);
            sent.push((block, bytes));
            self.header_queued = false;
        }
        sent.sort_unstable_by_key(|(block, _)| *block);
        let mut writes = Vec::new();
        for row in sent.chunk_by(|one, next| one.0 + 1 == next.0) {
            for part in row.chunks(MAX_WRITE_BYTES / PAGE_BYTES) {
                let mut buffer = Buffer::zeroed(part.len() * PAGE_BYTES);
                for (to, (_, bytes)) in buffer.chunks_exact_mut(PAGE_BYTES).zip(part) {
                    to.copy_from_slice(bytes);
                }
                writes.push((part[0].0, buffer));
            }
        }
        blocks
            .write_each(writes, Durability::Volatile)
            .map_err(|(block, errno)| self.fail(&format!("writing catalog block {block}"), errno))
    }
}

fn no_blocks(page: u64) -> Error {
    Error::io(format!("catalog page {page} has no block"), Errno::NOSPC)
}

impl fmt::Debug for Store {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state.lock();
        write!(out, "catalog store, {} of {} bytes", state.length, state.layout.pages() * BLOCK)
    }
}

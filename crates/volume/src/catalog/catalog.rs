//! [`Catalog`]: opening, reading and committing, and reopening after an error.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::{Mutex, RwLock};
use redb::ConcurrencyMode;

use super::backend::{ReadOnlyBackend, ReadWriteBackend};
use super::batch::{self, Batch};
use super::bit_repair::BadPage;
use super::page_budget::{self, BatchSize, PageBudget, Reserve, length_after_growth};
use super::pin::{PagePin, PagePins};
use super::record::{self, Key, Table};
use super::redb_error::{RedbError, catch_panic};
use super::redb_handle::{OpenDatabase, RedbHandle};
use super::redo_log::{LoggedEntries, RedoLog, Replay};
use super::snapshot::Snapshot;
use super::store::{Access, LostPages, Store};
use crate::blocks::{BLOCK, BlockIo, Run};
use crate::error::{Error, ErrorKind};
use crate::superblock::{MAX_CATALOG_RUNS, Superblock};

/// Default size of redb's page cache, in bytes.
pub(crate) const CACHE_BYTES: usize = 16 << 20;
/// The fewest blocks of a new catalog.
pub(crate) const MIN_BLOCKS: u64 = 1024;

#[derive(Clone, Copy, Debug)]
pub(crate) struct CatalogOptions {
    /// Size of redb's page cache, in bytes.
    pub(crate) cache_bytes: usize,
    pub(crate) access: Access,
    pub(crate) lost_page_policy: LostPages,
    /// If a record of the log is lost, ends the log before it. Without this the catalog does not
    /// open, since later records were acknowledged.
    pub(crate) truncate_damaged_log: bool,
}

impl Default for CatalogOptions {
    fn default() -> CatalogOptions {
        CatalogOptions {
            cache_bytes: CACHE_BYTES,
            access: Access::ReadWrite,
            lost_page_policy: LostPages::Fail,
            truncate_damaged_log: false,
        }
    }
}

/// The records of a volume.
pub(crate) struct Catalog {
    pub(super) blocks: BlockIo,
    pub(super) options: CatalogOptions,
    pub(super) state: RwLock<CatalogState>,
    pub(super) log: Mutex<RedoLog>,
    /// Entries that the log has and redb has not.
    pub(super) logged: Mutex<LoggedEntries>,
    /// Set if redb had to walk every page to open. With the commits of this catalog it never has
    /// to.
    pub(super) repaired: Arc<AtomicBool>,
    pins: PagePins,
}

pub(super) struct CatalogState {
    pub(super) open: Option<Open>,
    /// Why the catalog has stopped. It may still be open for reading.
    failed: Option<(ErrorKind, String)>,
    pub(super) runs: Vec<Run>,
    warnings: Vec<String>,
    /// Pages found damaged.
    pub(super) damaged: BTreeMap<u64, BadPage>,
    /// Number of reopenings.
    reopen_count: u64,
    /// The last writer closed the catalog.
    was_closed_cleanly: bool,
}

pub(super) struct Open {
    pub(super) redb: RedbHandle,
    pub(super) store: Arc<Store>,
}

impl Catalog {
    /// Creates an empty catalog in `runs`, with a log in `log`, which it clears first. Nothing
    /// refers to the catalog until a superblock is written.
    ///
    /// # Errors
    /// `Input` for fewer than [`MIN_BLOCKS`] blocks; the device's.
    pub(crate) fn create(
        blocks: &BlockIo,
        runs: &[Run],
        log: Run,
        options: CatalogOptions,
    ) -> Result<Catalog, Error> {
        RedoLog::clear(blocks, log)?;
        Catalog::create_with(blocks, runs, RedoLog::starting_after(log, 0), options)
    }

    /// Creates an empty catalog in `runs` that will replace another. Both may use the same log: its
    /// records have numbers that the new catalog counts as old.
    ///
    /// # Errors
    /// As [`Self::create`].
    pub(crate) fn create_replacing(
        old: &Catalog,
        runs: &[Run],
        log: Run,
        options: CatalogOptions,
    ) -> Result<Catalog, Error> {
        let old_log = old.log.lock();
        if log != old_log.run() {
            RedoLog::clear(&old.blocks, log)?;
        }
        let log = RedoLog::starting_after(log, old_log.last_number());
        drop(old_log);
        Catalog::create_with(&old.blocks, runs, log, options)
    }

    fn create_with(
        blocks: &BlockIo,
        runs: &[Run],
        log: RedoLog,
        options: CatalogOptions,
    ) -> Result<Catalog, Error> {
        let given = block_count(runs);
        if given < MIN_BLOCKS {
            let context = format!("a catalog of {given} blocks: it needs at least {MIN_BLOCKS}");
            return Err(Error::new(ErrorKind::Input, context));
        }
        let catalog = Catalog::new_closed(blocks, runs, log, options);
        let store = Store::create(blocks.clone(), runs)?;
        catalog.state.write().open = Some(catalog.open_redb(store)?);
        catalog.checkpoint(&Batch::creating_tables())?;
        Ok(catalog)
    }

    /// Opens the catalog of a volume in the state of the last commit that it finds. That commit may
    /// be in the device's cache only. If the catalog is opened for writing, the commit is durable
    /// when this returns.
    ///
    /// # Errors
    /// `Damaged` when the catalog cannot be read; the device's.
    pub(crate) fn open(
        blocks: &BlockIo,
        runs: &[Run],
        log: Run,
        options: CatalogOptions,
    ) -> Result<Catalog, Error> {
        let catalog = Catalog::new_closed(blocks, runs, RedoLog::starting_after(log, 0), options);
        let store = catalog.open_store(runs, options.access)?;
        let mut warnings = store.warnings();
        let Replay { log, changes, tail, warnings: log_warnings, lost_record } =
            RedoLog::replay(blocks, log, store.checkpoint_lsn())?;
        if let Some(lost_record) = lost_record
            .filter(|lost_record| !options.truncate_damaged_log || lost_record.may_reappear())
        {
            return Err(lost_record.into_error());
        }
        warnings.extend(log_warnings);
        let was_closed_cleanly = store.was_closed_cleanly() && !tail.has_record();
        if options.access == Access::ReadWrite && !was_closed_cleanly {
            tail.rewrite_last(blocks)?;
            store.rewrite(&[])?;
            tail.clear_next_record(blocks)?;
        }
        let open = catalog.open_redb(store)?;
        (*catalog.log.lock(), *catalog.logged.lock()) = (log, changes);
        {
            let mut state = catalog.state.write();
            state.open = Some(open);
            state.warnings = warnings;
            state.was_closed_cleanly = was_closed_cleanly;
        }
        Ok(catalog)
    }

    fn new_closed(
        blocks: &BlockIo,
        runs: &[Run],
        log: RedoLog,
        options: CatalogOptions,
    ) -> Catalog {
        let state = RwLock::new(CatalogState {
            open: None,
            failed: None,
            runs: runs.to_vec(),
            warnings: Vec::new(),
            damaged: BTreeMap::new(),
            reopen_count: 0,
            was_closed_cleanly: true,
        });
        Catalog {
            blocks: blocks.clone(),
            options,
            state,
            log: Mutex::new(log),
            logged: Mutex::default(),
            repaired: Arc::default(),
            pins: PagePins::default(),
        }
    }

    pub(super) fn open_redb(&self, store: Store) -> Result<Open, Error> {
        let store = Arc::new(store);
        let opened = catch_panic(|| {
            Ok(match store.access() {
                Access::ReadWrite => {
                    let backend = ReadWriteBackend(store.clone());
                    OpenDatabase::ReadWrite(self.builder().create_with_backend(backend)?)
                }
                Access::ReadOnly => {
                    let mut builder = self.builder();
                    builder.set_concurrency_mode(ConcurrencyMode::SingleWriter);
                    let backend = ReadOnlyBackend(store.clone());
                    OpenDatabase::ReadOnly(builder.open_read_only_with_backend(backend)?)
                }
            })
        });
        let redb = RedbHandle::new(opened.map_err(RedbError::into_error)?);
        Ok(Open { redb, store })
    }

    fn builder(&self) -> redb::Builder {
        let repaired = self.repaired.clone();
        let mut builder = redb::Builder::new();
        builder.set_cache_size(self.options.cache_bytes);
        builder.set_repair_callback(move |_| repaired.store(true, Ordering::Relaxed));
        builder
    }

    /// Whether the last writer closed the catalog. If not, its last write may be in the device's
    /// cache only.
    pub(crate) fn was_closed_cleanly(&self) -> bool {
        self.state.read().was_closed_cleanly
    }

    /// Whether redb had to read all pages to open.
    pub(crate) fn was_repaired(&self) -> bool {
        self.repaired.load(Ordering::Relaxed)
    }

    /// Damage found so far that lost nothing, one line each.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let pages = self.damaged_pages();
        let before = self.state.read().warnings.clone();
        before.into_iter().chain(pages.iter().map(ToString::to_string)).collect()
    }

    /// Stops the catalog: from now on each change returns this error. It counts as not closed, so the
    /// next opening makes durable what it finds. If the device can be read, so can the catalog.
    fn stop(&self, error: Error) -> Error {
        self.stop_locked(&mut self.state.write(), error)
    }

    fn stop_locked(&self, state: &mut CatalogState, error: Error) -> Error {
        let is_first = state.failed.is_none();
        let error = state.stop(error);
        self.pins.release_all();
        if is_first {
            // The state of a commit that is durable; memory has all later records.
            let store = self.open_store(&state.runs, Access::ReadOnly);
            state.open = store.and_then(|store| self.open_redb(store)).ok();
            state.reopen_count += 1;
        }
        error
    }

    /// Why the catalog has stopped, if it has.
    pub(crate) fn failure(&self) -> Option<Error> {
        self.state.read().failure()
    }

    /// Blocks to add with [`Self::extend`] before these changes are committed: enough for the
    /// changes, and for redb to double its storage, since redb expects to find the blocks. Without
    /// them commits succeed as long as the storage has free pages.
    pub(crate) fn wanted_blocks(&self, coming: BatchSize) -> u64 {
        let coming = coming + self.logged.lock().size();
        let state = self.state.read();
        state.open.as_ref().map_or(0, |open| {
            let length = open.store.length();
            let needed = length + coming.max_pages(length / BLOCK, Reserve::Keep) * BLOCK;
            let mut grown_to = length_after_growth(length);
            while grown_to < needed {
                grown_to = length_after_growth(grown_to);
            }
            let pages = grown_to.saturating_sub(open.store.capacity()).div_ceil(BLOCK);
            // Each group of pages, also an incomplete one, takes one block for its checksums.
            pages + pages.div_ceil(1024)
        })
    }

    /// Adds blocks to the catalog and writes the superblock that names them.
    ///
    /// # Errors
    /// `NoSpace` when the superblock has no room for more runs; nothing is changed then. The
    /// device's; the catalog has stopped then, since a superblock may name the blocks. Do not reuse
    /// the blocks before another superblock is written.
    pub(crate) fn extend(&self, superblock: &mut Superblock, more: &[Run]) -> Result<(), Error> {
        let mut state = self.state.write();
        let store = state.usable()?.store.clone();
        store.prepare(more)?;
        let before = superblock.clone();
        superblock.catalog.extend_from_slice(more);
        merge_adjacent(&mut superblock.catalog);
        if superblock.catalog.len() > MAX_CATALOG_RUNS {
            let runs = superblock.catalog.len();
            *superblock = before;
            let context = format!(
                "the catalog would have {runs} runs of blocks, the limit is {MAX_CATALOG_RUNS}: remove large \
                 files, so that longer free runs appear"
            );
            return Err(Error::new(ErrorKind::NoSpace, context));
        }
        if let Err(error) = superblock.write(&self.blocks) {
            superblock.catalog = before.catalog;
            return Err(self.stop_locked(&mut state, error));
        }
        store.add(more);
        state.runs.clone_from(&superblock.catalog);
        self.pins.release_above(block_count(&state.runs));
        Ok(())
    }

    /// Writes a superblock that describes this catalog.
    ///
    /// # Errors
    /// The device's; the catalog has stopped then, since the device may have either superblock. It
    /// counts as not closed, so the next opening makes durable what it finds.
    pub(crate) fn write_superblock(&self, superblock: &mut Superblock) -> Result<(), Error> {
        let mut state = self.state.write();
        superblock.write(&self.blocks).map_err(|error| self.stop_locked(&mut state, error))
    }

    /// Calls `open` while the device has exactly the last commit, and keeps that commit's pages of
    /// records from being reused while the pin is held. So `open` may return the same catalog, opened
    /// for reading only, which stays as it is. Commits wait until `open` returns. The pin is released
    /// when the catalog gets more than `max_blocks` blocks, when [`Self::release_pins`] is called,
    /// and when redb is reopened, which forgets it.
    ///
    /// # Errors
    /// Those of `open`; as [`Self::get`].
    pub(crate) fn pin_pages<T>(
        &self,
        max_blocks: u64,
        open: impl Fn() -> Result<T, Error>,
    ) -> Result<(PagePin, T), Error> {
        // With this lock no commit is in progress. `with_redb` locks the state: neither redb nor the
        // superblock is being written.
        let _log = self.log.lock();
        let pinned = self.with_redb(Access::ReadWrite, |live| {
            let pin = self.pins.add(live.redb.snapshot()?, max_blocks);
            Ok((pin, open().map_err(RedbError::Ours)?))
        });
        pinned.map_err(RedbError::into_error)
    }

    /// Releases all pins, so that the next checkpoint can reuse their pages.
    pub(crate) fn release_pins(&self) {
        self.pins.release_all();
    }

    /// Number of its blocks.
    pub(crate) fn block_count(&self) -> u64 {
        block_count(&self.state.read().runs)
    }

    /// The value of a record.
    ///
    /// # Errors
    /// `Damaged` naming the page or record; the device's.
    pub(crate) fn get(&self, key: Key<'_>) -> Result<Option<Vec<u8>>, Error> {
        self.record(key.table(), &key.bytes())
    }

    /// As [`Self::get`], by the bytes of the key.
    ///
    /// # Errors
    /// As [`Self::get`].
    pub(crate) fn record(&self, table: Table, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        // The log first, then redb: a checkpoint drops a record from the log only when redb has it.
        let logged = self.logged.lock().get(table, key);
        if let Some(stored) = logged {
            return stored
                .map(|stored| record::verified_value(table, key, &stored).map(<[u8]>::to_vec))
                .transpose();
        }
        self.read(|snapshot| {
            let Some(guard) = snapshot.table(table)?.get(key)? else { return Ok(None) };
            record::verified_value(table, key, guard.value())
                .map(|value| Some(value.to_vec()))
                .map_err(RedbError::Ours)
        })
    }

    /// Applies all of a batch, in order, or nothing. Durable when it returns. The batch goes into
    /// redb together with all records of the log: a checkpoint.
    ///
    /// # Errors
    /// `NoSpace` when the blocks do not suffice, with nothing changed: add blocks or free records,
    /// then try again. `Damaged`, with nothing changed, when a page that the commit needs is
    /// damaged. After any other error the catalog has stopped, and reopening may or may not find
    /// the batch.
    pub(crate) fn checkpoint(&self, batch: &Batch) -> Result<(), Error> {
        self.check_writable()?;
        let mut log = self.log.lock();
        let batch = self.logged.lock().checkpoint_batch(batch);
        let mut done = self.try_checkpoint(&batch, log.last_number());
        for make_room in [Catalog::take_back_pages, Catalog::use_all_blocks] {
            if is_no_space(&done) && make_room(self)? {
                done = self.try_checkpoint(&batch, log.last_number());
            }
        }
        done?;
        log.reset();
        *self.logged.lock() = LoggedEntries::default();
        Ok(())
    }

    /// Appends a batch to the log, all of it or nothing. Durable when it returns. Costs one flush
    /// and no page. Returns false, with nothing done, if the log has no room.
    ///
    /// The next [`Self::checkpoint`] moves it into redb: the catalog needs pages for both.
    ///
    /// # Errors
    /// The device's. The catalog has stopped then, and reopening may or may not find the batch.
    pub(crate) fn append_to_log(&self, batch: &Batch) -> Result<bool, Error> {
        self.check_writable()?;
        self.state.read().usable()?;
        let mut log = self.log.lock();
        match log.append(&self.blocks, batch) {
            Ok(true) => self.logged.lock().extend(batch),
            Ok(false) => return Ok(false),
            Err(error) => return Err(self.stop(error)),
        }
        Ok(true)
    }

    /// The size of the entries in the log, which the next [`Self::checkpoint`] moves into redb.
    pub(crate) fn logged_size(&self) -> BatchSize {
        self.logged.lock().size()
    }

    fn check_writable(&self) -> Result<(), Error> {
        match self.options.access {
            Access::ReadWrite => Ok(()),
            Access::ReadOnly => {
                Err(Error::new(ErrorKind::Input, "the volume is open for reading only"))
            }
        }
    }

    fn try_checkpoint(&self, batch: &Batch, lsn: u64) -> Result<(), Error> {
        self.pins.expire();
        let done = self.with_redb(Access::ReadWrite, |open| {
            let before = open.store.durable_headers();
            open.store.set_next_checkpoint_lsn(lsn);
            let done = batch::apply(open.redb.writer(), &open.store, batch);
            // redb also commits at close; that covers no further log record.
            open.store.set_next_checkpoint_lsn(open.store.checkpoint_lsn());
            open.redb.invalidate_snapshot();
            // The second header of the commit is durable: the commit happened, whatever failed
            // later.
            let happened = open.store.durable_headers() >= before + 2;
            done.map_err(|error| if happened { RedbError::AfterCommit } else { error })
        });
        match done {
            Err(RedbError::AfterCommit) => Ok(()),
            done => done.map_err(RedbError::into_error),
        }
    }

    /// Pages for the next commits. Do not call while a commit is in progress.
    ///
    /// # Errors
    /// As [`Self::get`].
    pub(crate) fn page_budget(&self) -> Result<PageBudget, Error> {
        if self.options.access == Access::ReadOnly {
            return Ok(PageBudget::default());
        }
        let measure = |open: &Open| page_budget::measure(open.redb.writer(), &open.store);
        let room = self.with_redb(Access::ReadWrite, measure);
        room.map(|room| room.with_logged(self.logged_size())).map_err(RedbError::into_error)
    }

    /// Releases all pins, and commits nothing, so that redb gets the pages that only they have held. Returns
    /// whether there may be any.
    fn take_back_pages(&self) -> Result<bool, Error> {
        self.pins.release_all();
        if !self.pins.take_held_back() {
            return Ok(false);
        }
        let lsn = self.state.read().usable()?.store.checkpoint_lsn();
        let mut nothing = Batch::default();
        nothing.set_reserve(Reserve::Use);
        let done = self.try_checkpoint(&nothing, lsn);
        if is_no_space(&done) { Ok(false) } else { done.map(|()| true) }
    }

    /// Lets redb use every block there is, where doubling its storage would need more: redb adopts
    /// the length that it finds at open. Returns whether that added any.
    fn use_all_blocks(&self) -> Result<bool, Error> {
        let mut state = self.state.write();
        let store = &state.usable()?.store;
        if store.length() >= store.capacity() {
            return Ok(false);
        }
        let open = state.open.take().expect("a usable catalog is open");
        self.pins.release_all();
        let access = self.options.access;
        let closed = open.close().and_then(|()| self.open_store(&state.runs, access));
        let reopened = closed.and_then(|store| {
            store.extend_to_capacity();
            self.open_redb(store)
        });
        match reopened {
            Ok(open) => {
                state.open = Some(open);
                state.reopen_count += 1;
                Ok(true)
            }
            Err(error) => Err(self.stop_locked(&mut state, error)),
        }
    }

    fn open_store(&self, runs: &[Run], access: Access) -> Result<Store, Error> {
        Store::open(self.blocks.clone(), runs, access, self.options.lost_page_policy)
    }

    /// Reads from one snapshot of the catalog.
    pub(super) fn read<T>(
        &self,
        query: impl Fn(&Snapshot) -> Result<T, RedbError>,
    ) -> Result<T, Error> {
        let query = |open: &Open| query(&*open.redb.snapshot()?);
        self.with_redb(Access::ReadOnly, query).map_err(RedbError::into_error)
    }

    /// Runs `work` on redb. After an error it leaves a catalog that works, or one that has stopped
    /// and says why.
    fn with_redb<T>(
        &self,
        access: Access,
        work: impl Fn(&Open) -> Result<T, RedbError>,
    ) -> Result<T, RedbError> {
        let attempt = |state: &CatalogState| {
            let open = match access {
                Access::ReadWrite => state.usable(),
                Access::ReadOnly => state.readable(),
            };
            let done = open.map_err(RedbError::Ours).and_then(|open| catch_panic(|| work(open)));
            (done, state.reopen_count)
        };
        let mut tried = attempt(&self.state.read());
        if matches!(tried, (Err(RedbError::PreviousIo(_)), _)) {
            // Alone, so that no other call can break this one again.
            let mut state = self.state.write();
            tried = attempt(&state);
            if matches!(tried, (Err(RedbError::PreviousIo(_)), _)) {
                self.reopen_locked(&mut state).map_err(RedbError::Ours)?;
                tried = attempt(&state);
            }
        }
        let (Err(error), reopen_count) = tried else { return tried.0 };
        match error {
            RedbError::Ours(_) => Err(error),
            RedbError::Panic(_) => Err(RedbError::Ours(self.stop(error.into_error()))),
            RedbError::Storage(_) | RedbError::PreviousIo(_) | RedbError::AfterCommit => {
                self.reopen(reopen_count).map_err(RedbError::Ours)?;
                Err(error)
            }
        }
    }

    /// Reopens redb unless another thread already did.
    fn reopen(&self, reopen_count: u64) -> Result<(), Error> {
        let mut state = self.state.write();
        match state.reopen_count == reopen_count {
            true => self.reopen_locked(&mut state),
            false => Ok(()),
        }
    }

    /// Reopens redb from what is durable. A catalog that is open for reading stays at its commit.
    fn reopen_locked(&self, state: &mut CatalogState) -> Result<(), Error> {
        let Some(open) = state.open.take() else { return Ok(()) };
        state.collect_damaged(&open.store);
        self.pins.release_all();
        let broken = open.store.failure();
        // redb's shutdown writes nothing, since redb remembers the error.
        drop(open.redb);
        if let Some(errno) = broken {
            let error = Error::io("the catalog could not be written", errno);
            return Err(self.stop_locked(state, error));
        }
        let store = match open.store.access() {
            Access::ReadWrite => self.open_store(&state.runs, Access::ReadWrite),
            Access::ReadOnly => Ok(open.store.opened_again(self.options.lost_page_policy)),
        };
        match store.and_then(|store| self.open_redb(store)) {
            Ok(open) => {
                state.open = Some(open);
                state.reopen_count += 1;
                Ok(())
            }
            Err(error) => Err(self.stop_locked(state, error)),
        }
    }

    /// Closes the catalog, so that the next opening has nothing to recover.
    ///
    /// # Errors
    /// The device's. All commits are kept.
    pub(crate) fn close(self) -> Result<(), Error> {
        self.state.into_inner().open.map_or(Ok(()), Open::close)
    }
}

impl Open {
    fn close(self) -> Result<(), Error> {
        let Open { redb, store } = self;
        drop(redb);
        match store.failure() {
            None => Ok(()),
            Some(errno) => Err(Error::io("closing the catalog", errno)),
        }
    }
}

impl CatalogState {
    fn failure(&self) -> Option<Error> {
        let (kind, why) = self.failed.as_ref()?;
        Some(Error::new(*kind, format!("the catalog has stopped, reopen the volume: {why}")))
    }

    /// The open catalog, if it can be changed.
    fn usable(&self) -> Result<&Open, Error> {
        self.failure().map_or_else(|| self.readable(), Err)
    }

    /// The open catalog, if it can be read.
    fn readable(&self) -> Result<&Open, Error> {
        let failure = || self.failure().expect("a catalog is open unless it has failed");
        self.open.as_ref().ok_or_else(failure)
    }

    pub(super) fn stop(&mut self, error: Error) -> Error {
        if let Some(open) = self.open.take() {
            // Stop the store first: at shutdown redb would write its current state.
            open.store.abandon();
        }
        self.failed = Some((error.kind(), error.to_string()));
        error
    }
}

fn is_no_space(done: &Result<(), Error>) -> bool {
    done.as_ref().is_err_and(|error| error.kind() == ErrorKind::NoSpace)
}

fn block_count(runs: &[Run]) -> u64 {
    runs.iter().map(|run| run.length).sum()
}

/// Merges runs that are adjacent, in the catalog's order.
fn merge_adjacent(runs: &mut Vec<Run>) {
    runs.dedup_by(|next, run| {
        let is_adjacent = run.end() == next.start;
        if is_adjacent {
            run.length += next.length;
        }
        is_adjacent
    });
}

//! [`Catalog`]: opened, read, committed to, and opened anew after an error.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::{Mutex, RwLock};
use redb::ConcurrencyMode;

use super::backend::{Backend, Reader};
use super::batch::{self, Batch};
use super::bit_repair::BadPage;
use super::fence::{Fenced, Opened};
use super::page_budget::{self, CatalogRoom, Reserve, Size, grown};
use super::record::{self, Key, Table};
use super::redb_error::{Trouble, contained};
use super::redo_log::{Log, Logged, Replayed};
use super::snapshot::View;
use super::store::{Access, LostPages, Store};
use crate::blocks::{BLOCK, Blocks, Run};
use crate::error::{Error, ErrorKind};
use crate::superblock::{MAX_CATALOG_RUNS, Superblock};
/// Bytes of catalog pages kept in memory unless told otherwise.
pub(crate) const CACHE_BYTES: usize = 16 << 20;
/// Blocks that a new catalog has at least.
pub(crate) const MIN_BLOCKS: u64 = 1024;

/// How often a call is begun again that a page damaged elsewhere cut off.
const TRIES: usize = 4;

/// How a catalog is opened.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CatalogOptions {
    /// Bytes of pages kept in memory.
    pub(crate) cache_bytes: usize,
    pub(crate) access: Access,
    pub(crate) lost: LostPages,
    /// A log of which a record is lost ends there. Else it is not opened: later ones were acknowledged.
    pub(crate) cuts_log: bool,
}

impl Default for CatalogOptions {
    fn default() -> CatalogOptions {
        CatalogOptions {
            cache_bytes: CACHE_BYTES,
            access: Access::ReadWrite,
            lost: LostPages::Refuse,
            cuts_log: false,
        }
    }
}

/// The records of a volume.
pub(crate) struct Catalog {
    pub(super) blocks: Blocks,
    pub(super) options: CatalogOptions,
    pub(super) state: RwLock<State>,
    pub(super) log: Mutex<Log>,
    /// What the log has and redb has not.
    pub(super) logged: Mutex<Logged>,
    /// redb had to walk every page to open; with commits as they are here it never has to.
    pub(super) repaired: Arc<AtomicBool>,
}

pub(super) struct State {
    pub(super) open: Option<Open>,
    /// Why nothing works any more.
    failed: Option<(ErrorKind, String)>,
    pub(super) runs: Vec<Run>,
    flaws: Vec<String>,
    /// Pages that were found damaged.
    pub(super) damaged: BTreeMap<u64, BadPage>,
    /// Counts the times it was opened.
    opened: u64,
    /// The last who wrote it has closed it.
    was_closed: bool,
}

pub(super) struct Open {
    pub(super) redb: Fenced,
    pub(super) store: Arc<Store>,
}

impl Catalog {
    /// An empty catalog in `runs`, with a log that lies in `log`, cleared before. Nothing leads to it before
    /// a superblock is written.
    ///
    /// # Errors
    /// `Input` for fewer than [`MIN_BLOCKS`]; the device's.
    pub(crate) fn create(
        blocks: &Blocks,
        runs: &[Run],
        log: Run,
        options: CatalogOptions,
    ) -> Result<Catalog, Error> {
        Log::clear(blocks, log)?;
        Catalog::create_with(blocks, runs, Log::after(log, 0), options)
    }

    /// An empty catalog in `runs` that is to take the place of another. Its log may lie where that of the other
    /// does: nothing that is in there now belongs to it.
    ///
    /// # Errors
    /// As [`Self::create`].
    pub(crate) fn create_in_place_of(
        old: &Catalog,
        runs: &[Run],
        log: Run,
        options: CatalogOptions,
    ) -> Result<Catalog, Error> {
        let old_log = old.log.lock();
        if log != old_log.run() {
            Log::clear(&old.blocks, log)?;
        }
        let log = Log::after(log, old_log.number());
        drop(old_log);
        Catalog::create_with(&old.blocks, runs, log, options)
    }

    fn create_with(
        blocks: &Blocks,
        runs: &[Run],
        log: Log,
        options: CatalogOptions,
    ) -> Result<Catalog, Error> {
        let given: u64 = runs.iter().map(|run| run.length).sum();
        if given < MIN_BLOCKS {
            let context = format!("a catalog of {given} blocks: {MIN_BLOCKS} at least");
            return Err(Error::new(ErrorKind::Input, context));
        }
        let catalog = Catalog::closed(blocks, runs, log, options);
        let store = Store::create(blocks.clone(), runs)?;
        catalog.state.write().open = Some(catalog.open_redb(store)?);
        catalog.commit(&Batch::of_new_catalog())?;
        Ok(catalog)
    }

    /// The catalog of a volume, as the last commit that is found left it. Opened to be written, that commit is
    /// durable when this returns, though it may have been in the device's cache only.
    ///
    /// # Errors
    /// `Damaged` when it cannot be read; the device's.
    pub(crate) fn open(
        blocks: &Blocks,
        runs: &[Run],
        log: Run,
        options: CatalogOptions,
    ) -> Result<Catalog, Error> {
        let catalog = Catalog::closed(blocks, runs, Log::after(log, 0), options);
        let store = catalog.open_store(runs)?;
        let mut flaws = store.flaws();
        let Replayed { log, changes, tail, flaws: of_log, loss } =
            Log::replay(blocks, log, store.log())?;
        if let Some(loss) = loss.filter(|loss| !options.cuts_log || loss.may_come_back()) {
            return Err(loss.into_error());
        }
        flaws.extend(of_log);
        let was_closed = store.was_closed() && !tail.has_record();
        if options.access == Access::ReadWrite && !was_closed {
            tail.write_again(blocks)?;
            store.rewrite(&[])?;
            tail.cut(blocks)?;
        }
        let open = catalog.open_redb(store)?;
        (*catalog.log.lock(), *catalog.logged.lock()) = (log, changes);
        {
            let mut state = catalog.state.write();
            state.open = Some(open);
            state.flaws = flaws;
            state.was_closed = was_closed;
        }
        Ok(catalog)
    }

    fn closed(blocks: &Blocks, runs: &[Run], log: Log, options: CatalogOptions) -> Catalog {
        let state = RwLock::new(State {
            open: None,
            failed: None,
            runs: runs.to_vec(),
            flaws: Vec::new(),
            damaged: BTreeMap::new(),
            opened: 0,
            was_closed: true,
        });
        Catalog {
            blocks: blocks.clone(),
            options,
            state,
            log: Mutex::new(log),
            logged: Mutex::default(),
            repaired: Arc::default(),
        }
    }

    fn open_redb(&self, store: Store) -> Result<Open, Error> {
        let store = Arc::new(store);
        let opened = contained(|| {
            Ok(match self.options.access {
                Access::ReadWrite => {
                    let backend = Backend(store.clone());
                    Opened::ToWrite(self.builder().create_with_backend(backend)?)
                }
                Access::ReadOnly => {
                    let mut builder = self.builder();
                    builder.set_concurrency_mode(ConcurrencyMode::SingleWriter);
                    let backend = Reader(store.clone());
                    Opened::ToRead(builder.open_read_only_with_backend(backend)?)
                }
            })
        });
        let redb = Fenced::of(opened.map_err(Trouble::into_error)?);
        Ok(Open { redb, store })
    }

    fn builder(&self) -> redb::Builder {
        let repaired = self.repaired.clone();
        let mut builder = redb::Builder::new();
        builder.set_cache_size(self.options.cache_bytes);
        builder.set_repair_callback(move |_| repaired.store(true, Ordering::Relaxed));
        builder
    }

    /// Whether the last who wrote it has closed it: else what he wrote last may have been in the device's cache only.
    pub(crate) fn was_closed(&self) -> bool {
        self.state.read().was_closed
    }

    /// Whether opening it meant reading all of it.
    pub(crate) fn was_repaired(&self) -> bool {
        self.repaired.load(Ordering::Relaxed)
    }

    /// What was found damaged so far though nothing is lost, a line each.
    pub(crate) fn flaws(&self) -> Vec<String> {
        let pages = self.damaged_pages();
        let heads = self.state.read().flaws.clone();
        heads.into_iter().chain(pages.iter().map(ToString::to_string)).collect()
    }

    /// Stops it: each call says why from now on, and it is not closed. So the next who opens it makes durable what
    /// he finds.
    pub(crate) fn stop(&self, error: Error) -> Error {
        self.state.write().stop(error)
    }

    /// Why nothing works any more, if so.
    pub(crate) fn failure(&self) -> Option<Error> {
        self.state.read().failure()
    }

    /// Blocks to be added with [`Self::extend`] before these changes are committed: enough for them,
    /// and for redb to double its storage, since it must find the blocks there. Without them commits
    /// go on as long as pages are free in the storage as it is.
    pub(crate) fn wanted_blocks(&self, coming: Size) -> u64 {
        let coming = coming + self.logged.lock().size();
        let state = self.state.read();
        state.open.as_ref().map_or(0, |open| {
            let length = open.store.length();
            let needed = length + coming.most_pages(length / BLOCK, Reserve::Keep) * BLOCK;
            let mut grown_to = grown(length);
            while grown_to < needed {
                grown_to = grown(grown_to);
            }
            let pages = grown_to.saturating_sub(open.store.capacity()).div_ceil(BLOCK);
            // What a group of checksums takes is rounded up.
            pages + pages.div_ceil(1024)
        })
    }

    /// Gives the catalog more blocks, and writes the superblock that says so.
    ///
    /// # Errors
    /// `NoSpace` when the superblock holds no more runs, with nothing changed; the device's: then
    /// the catalog has stopped, since a superblock may name the blocks. Nobody else may have them
    /// before another superblock was written.
    pub(crate) fn extend(&self, superblock: &mut Superblock, more: &[Run]) -> Result<(), Error> {
        let mut state = self.state.write();
        let store = state.usable()?.store.clone();
        store.prepare(more)?;
        let before = superblock.clone();
        superblock.catalog.extend_from_slice(more);
        join(&mut superblock.catalog);
        if superblock.catalog.len() > MAX_CATALOG_RUNS {
            let runs = superblock.catalog.len();
            *superblock = before;
            let context = format!("the catalog would lie in {runs} pieces; free a larger one");
            return Err(Error::new(ErrorKind::NoSpace, context));
        }
        if let Err(error) = superblock.write(&self.blocks) {
            superblock.catalog = before.catalog;
            return Err(state.stop(error));
        }
        store.adopt(more);
        state.runs.clone_from(&superblock.catalog);
        Ok(())
    }

    /// The value of a record.
    ///
    /// # Errors
    /// `Damaged` naming the page or record; the device's.
    pub(crate) fn get(&self, key: Key<'_>) -> Result<Option<Vec<u8>>, Error> {
        self.record(key.table(), &key.bytes())
    }

    /// The same, by the key's bytes.
    ///
    /// # Errors
    /// As [`Self::get`].
    pub(crate) fn record(&self, table: Table, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        // Before redb is read: what is not in the log any more is there.
        let logged = self.logged.lock().get(table, key);
        if let Some(stored) = logged {
            return stored
                .map(|stored| record::open(table, key, &stored).map(<[u8]>::to_vec))
                .transpose();
        }
        self.read(|view| {
            let Some(guard) = view.table(table)?.get(key)? else { return Ok(None) };
            record::open(table, key, guard.value())
                .map(|value| Some(value.to_vec()))
                .map_err(Trouble::Mine)
        })
    }

    /// Makes all of a batch happen, in its order, or nothing; durable when it returns. It goes into redb with
    /// all that is in the log: a checkpoint.
    ///
    /// # Errors
    /// `NoSpace` when the blocks do not suffice, with nothing changed: add blocks or free records,
    /// then try again. `Damaged` with nothing changed when a page it needs is. After any other the
    /// catalog has stopped, and the batch may be there after opening it anew or not.
    pub(crate) fn commit(&self, batch: &Batch) -> Result<(), Error> {
        self.must_be_writable()?;
        let mut log = self.log.lock();
        let batch = self.logged.lock().before(batch);
        match self.try_commit(&batch, log.number()) {
            Err(error) if error.kind() == ErrorKind::NoSpace && self.stretch()? => {
                self.try_commit(&batch, log.number())
            }
            done => done,
        }?;
        log.restart();
        *self.logged.lock() = Logged::default();
        Ok(())
    }

    /// Makes all of a batch happen, in its order, or nothing; durable when it returns. It goes into the log,
    /// if it has room, and costs a flush and no page; else this answers false, and nothing has happened.
    ///
    /// The next [`Self::commit`] takes it into redb: the room that it has must be enough for both.
    ///
    /// # Errors
    /// The device's. The catalog has stopped then, and the batch may be there after opening it anew or not.
    pub(crate) fn log(&self, batch: &Batch) -> Result<bool, Error> {
        self.must_be_writable()?;
        self.state.read().usable()?;
        let mut log = self.log.lock();
        match log.append(&self.blocks, batch) {
            Ok(true) => self.logged.lock().extend(batch),
            Ok(false) => return Ok(false),
            Err(error) => return Err(self.state.write().stop(error)),
        }
        Ok(true)
    }

    /// How much the next [`Self::commit`] takes from the log.
    pub(crate) fn logged(&self) -> Size {
        self.logged.lock().size()
    }

    fn must_be_writable(&self) -> Result<(), Error> {
        match self.options.access {
            Access::ReadWrite => Ok(()),
            Access::ReadOnly => {
                Err(Error::new(ErrorKind::Input, "the volume is open for reading only"))
            }
        }
    }

    fn try_commit(&self, batch: &Batch, log: u64) -> Result<(), Error> {
        let done = self.attempt(|open| {
            let heads = open.store.heads();
            open.store.set_next_log(log);
            let done = batch::apply(open.redb.writer(), &open.store, batch);
            // What redb commits by itself has no more of it.
            open.store.set_next_log(open.store.log());
            open.redb.pass_view();
            // Its second head is durable: it happened, whatever came after.
            let happened = open.store.heads() >= heads + 2;
            done.map_err(|trouble| if happened { Trouble::Late } else { trouble })
        });
        match done {
            Err(Trouble::Late) => Ok(()),
            done => done.map_err(Trouble::into_error),
        }
    }

    /// What there is for the next commits. Not while one is under way.
    ///
    /// # Errors
    /// As [`Self::get`].
    pub(crate) fn room(&self) -> Result<CatalogRoom, Error> {
        if self.options.access == Access::ReadOnly {
            return Ok(CatalogRoom::default());
        }
        let room = self.attempt(|open| page_budget::room_of(open.redb.writer(), &open.store));
        room.map(|room| room.beside(self.logged())).map_err(Trouble::into_error)
    }

    /// Lets redb use every block there is, where doubling would need more: it takes the length
    /// that it finds when it opens. Whether that brought any.
    fn stretch(&self) -> Result<bool, Error> {
        let mut state = self.state.write();
        let store = &state.usable()?.store;
        if store.length() >= store.capacity() {
            return Ok(false);
        }
        let open = state.open.take().expect("it is usable");
        let closed = open.close().and_then(|()| self.open_store(&state.runs));
        let stretched = closed.and_then(|store| {
            store.stretch();
            self.open_redb(store)
        });
        match stretched {
            Ok(open) => {
                state.open = Some(open);
                state.opened += 1;
                Ok(true)
            }
            Err(error) => Err(state.stop(error)),
        }
    }

    fn open_store(&self, runs: &[Run]) -> Result<Store, Error> {
        Store::open(self.blocks.clone(), runs, self.options.access, self.options.lost)
    }

    /// Reads within one state of the catalog.
    pub(super) fn read<T>(&self, ask: impl Fn(&View) -> Result<T, Trouble>) -> Result<T, Error> {
        self.attempt(|open| ask(&*open.redb.view()?)).map_err(Trouble::into_error)
    }

    /// Does something with redb, and after it went wrong leaves a catalog that works, or one that
    /// says why it does not.
    fn attempt<T>(&self, work: impl Fn(&Open) -> Result<T, Trouble>) -> Result<T, Trouble> {
        let mut tries = 1;
        loop {
            let (trouble, opened) = {
                let state = self.state.read();
                let open = state.usable().map_err(Trouble::Mine)?;
                match contained(|| work(open)) {
                    Ok(done) => return Ok(done),
                    Err(trouble) => (trouble, state.opened),
                }
            };
            match trouble {
                Trouble::Mine(_) => return Err(trouble),
                Trouble::Panic(_) => {
                    let error = self.state.write().stop(trouble.into_error());
                    return Err(Trouble::Mine(error));
                }
                Trouble::Store(_) | Trouble::Latched(_) | Trouble::Late => {
                    self.reopen(opened).map_err(Trouble::Mine)?;
                    if !matches!(trouble, Trouble::Latched(_)) || tries == TRIES {
                        return Err(trouble);
                    }
                    tries += 1;
                }
            }
        }
    }

    /// Opens redb anew from what is durable, unless another thread has done so since.
    fn reopen(&self, opened: u64) -> Result<(), Error> {
        let mut state = self.state.write();
        if state.opened != opened {
            return Ok(());
        }
        let Some(open) = state.open.take() else { return Ok(()) };
        state.keep_damaged(&open.store);
        let broken = open.store.failed();
        // Its shutdown writes nothing: redb has latched the error.
        drop(open.redb);
        if let Some(errno) = broken {
            return Err(state.stop(Error::io("the catalog could not be written", errno)));
        }
        let store = self.open_store(&state.runs);
        match store.and_then(|store| self.open_redb(store)) {
            Ok(open) => {
                state.open = Some(open);
                state.opened += 1;
                Ok(())
            }
            Err(error) => Err(state.stop(error)),
        }
    }

    /// Ends it well: the next open finds nothing to recover.
    ///
    /// # Errors
    /// The device's; nothing that was committed is lost.
    pub(crate) fn close(self) -> Result<(), Error> {
        self.state.into_inner().open.map_or(Ok(()), Open::close)
    }
}

impl Open {
    fn close(self) -> Result<(), Error> {
        let Open { redb, store } = self;
        drop(redb);
        match store.failed() {
            None => Ok(()),
            Some(errno) => Err(Error::io("closing the catalog", errno)),
        }
    }
}

impl State {
    fn failure(&self) -> Option<Error> {
        let (kind, why) = self.failed.as_ref()?;
        Some(Error::new(*kind, format!("the catalog has stopped, open the volume anew: {why}")))
    }

    fn usable(&self) -> Result<&Open, Error> {
        match (&self.open, self.failure()) {
            (Some(open), None) => Ok(open),
            (_, Some(failure)) => Err(failure),
            (None, None) => unreachable!("it is open unless it failed"),
        }
    }

    fn stop(&mut self, error: Error) -> Error {
        if let Some(open) = self.open.take() {
            // Ending, redb would write down what it believes now.
            open.store.abandon();
        }
        self.failed = Some((error.kind(), error.to_string()));
        error
    }
}

/// Makes one run of those that lie in a row, in the catalog's order.
fn join(runs: &mut Vec<Run>) {
    runs.dedup_by(|next, run| {
        let in_a_row = run.end() == next.start;
        if in_a_row {
            run.length += next.length;
        }
        in_a_row
    });
}

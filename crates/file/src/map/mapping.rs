//! Where a file's bytes lie. A map only answers, and hears what was done; it moves nothing.

use std::fmt;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;

use rustix::io::Errno;
use uringfs_reactor::Epoch;

use crate::map::hot_extent::View;

/// What lies behind a range of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Nothing: reads as zeros.
    Hole,
    /// Allocated at this address on the device, never written: reads as zeros.
    Unwritten(u64),
    /// Written at this address on the device.
    Written(u64),
}

/// The answer for one offset: from there on, this many bytes lie so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// Bytes; 0 only behind the size.
    pub length: u64,
    /// Where they lie.
    pub place: Place,
}

/// Ends when the map's owner has done what is waited for: a commit, above all.
pub type Commit = Pin<Box<dyn Future<Output = Result<(), Errno>> + Send>>;

/// What a map says that was asked for room.
pub enum Prepared<T = ()> {
    /// There is room for every byte.
    Ready(T),
    /// There may be room when this has ended: ask again then.
    AfterCommit(Commit),
    /// There may be room when everything in flight at this moment has finished: ask again then.
    AfterQuiescence(Epoch),
}

/// Bytes of a file, and where on the device they are to be, all in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The offset of the first in the file.
    pub offset: u64,
    /// Its address.
    pub address: u64,
    /// How many.
    pub length: u64,
}

impl Piece {
    /// Which bytes of the file.
    pub fn range(&self) -> Range<u64> {
        self.offset..self.offset + self.length
    }
}

/// Gives blocks back that were kept.
type GiveBack = Box<dyn FnOnce(Vec<Piece>) + Send>;

/// Places on the device that are kept for a range of a file and that nothing leads to, in the order of the
/// file. Dropped, they are given back.
pub struct Reservation {
    extents: Vec<Piece>,
    give_back: Option<GiveBack>,
}

impl Reservation {
    /// Keeps these until it is dropped.
    pub fn new(extents: Vec<Piece>, give_back: GiveBack) -> Reservation {
        Reservation { extents, give_back: Some(give_back) }
    }

    /// What is kept.
    pub fn pieces(&self) -> &[Piece] {
        &self.extents
    }

    /// Takes them: they are not given back.
    pub fn take(mut self) -> Vec<Piece> {
        self.give_back = None;
        std::mem::take(&mut self.extents)
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if let Some(give_back) = self.give_back.take() {
            give_back(std::mem::take(&mut self.extents));
        }
    }
}

/// Room on the device that is kept for bytes whose place is found later. What is left of it when it is dropped is given
/// back.
#[derive(Default)]
pub struct Promise {
    bytes: u64,
    give_back: Option<Arc<dyn Fn(u64) + Send + Sync>>,
}

impl Promise {
    /// Keeps so many bytes, whole blocks, until it is dropped.
    pub fn new(bytes: u64, give_back: Arc<dyn Fn(u64) + Send + Sync>) -> Promise {
        Promise { bytes, give_back: Some(give_back) }
    }

    /// How many.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Takes so many bytes of it, or all: they are not given back.
    pub fn redeem(&mut self, bytes: u64) {
        self.bytes = self.bytes.saturating_sub(bytes);
    }

    /// Takes some of it.
    pub(crate) fn split_off(&mut self, bytes: u64) -> Promise {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        Promise { bytes, give_back: self.give_back.clone() }
    }

    /// Adds another of the same file.
    pub(crate) fn join(&mut self, mut other: Promise) {
        self.bytes += std::mem::take(&mut other.bytes);
        self.give_back = self.give_back.take().or(other.give_back.take());
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        if let Some(give_back) = self.give_back.take().filter(|_| self.bytes > 0) {
            give_back(self.bytes);
        }
    }
}

impl fmt::Debug for Promise {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Promise of {} bytes", self.bytes)
    }
}

/// What is to be durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durable {
    /// The bytes, and what is needed to find them (`fdatasync`).
    Data,
    /// All that is known of the file, too (`fsync`).
    Everything,
}

/// Counts how often a file was emptied while it may have been written to.
pub type Generation = u64;

/// Where the bytes of one file lie. Asked from any thread; answers from memory.
pub trait Map: Send + Sync + 'static {
    /// What lies at `offset`, and how far. Behind the size there is nothing but what was prepared.
    fn map(&self, offset: u64) -> Mapping;

    /// The address of `length` bytes from `offset` on, when they lie in one
    /// written extent inside the size: all that a simple transfer asks.
    fn written(&self, offset: u64, length: u64) -> Option<u64> {
        if offset.checked_add(length)? > self.size() {
            return None;
        }
        let mapping = self.map(offset);
        match mapping.place {
            Place::Written(address) if mapping.length >= length => Some(address),
            _ => None,
        }
    }

    /// The file's size in bytes.
    fn size(&self) -> u64;

    /// The block that is allocated and becomes written as a whole, in bytes: a power of two. A
    /// write of part of a new one brings zeros for the rest.
    fn block_size(&self) -> u64 {
        1
    }

    /// True when writes behind the size make the file longer.
    fn grows(&self) -> bool {
        false
    }

    /// True when nothing may be written, though the device takes writes.
    fn is_read_only(&self) -> bool {
        false
    }

    /// Has every byte of a range lie somewhere, so that it can be written: what was a hole is
    /// unwritten then. Asked before anything of a write is issued that does not lie in one written
    /// extent. What was promised for it is redeemed then, in part also where it has to be asked again. Of a file
    /// that has been emptied since `generation` nothing changes. Does not wait: see [`Prepared`].
    ///
    /// # Errors
    /// ENOSPC and its like; some of the range may lie somewhere then.
    fn prepare(
        &self,
        _range: Range<u64>,
        _promise: &mut Promise,
        _begun: Generation,
    ) -> Result<Prepared, Errno> {
        Ok(Prepared::Ready(()))
    }

    /// Keeps room for so many bytes, whole blocks, until it is known where they are to lie. Does not wait: see
    /// [`Prepared`].
    ///
    /// # Errors
    /// ENOSPC and its like; nothing has changed then.
    fn promise(&self, _bytes: u64) -> Result<Prepared<Promise>, Errno> {
        Ok(Prepared::Ready(Promise::default()))
    }

    /// Whether nobody will ever read the file but by this map, since it has no name any more and no other opening: it
    /// is not given to anybody from then on.
    fn abandon(&self) -> bool {
        false
    }

    /// Keeps places on the device for a range of whole blocks, wherever it lies now. Nothing leads to
    /// them. Does not wait: see [`Prepared`].
    ///
    /// # Errors
    /// EOPNOTSUPP where blocks are where they are; ENOSPC and its like, with nothing changed.
    fn reserve(&self, _range: Range<u64>) -> Result<Prepared<Reservation>, Errno> {
        Err(Errno::OPNOTSUPP)
    }

    /// Has a range lie where it was reserved, and written, all at once; the file is at least as long then.
    /// Unless it has been emptied since `generation`: then what was reserved is left. [`Self::commit`] makes it
    /// durable as a whole. The caller holds the range's lock.
    ///
    /// # Errors
    /// ENOSPC and its like, with nothing changed.
    fn replace(
        &self,
        _range: Range<u64>,
        _reserved: &mut Option<Reservation>,
        _begun: Generation,
    ) -> Result<Prepared, Errno> {
        Err(Errno::OPNOTSUPP)
    }

    /// Cuts the file off, or makes it longer by a hole. The caller keeps writers out, and has seen
    /// to it that what of the last block lies behind the old end is zeros, if the file becomes longer.
    ///
    /// # Errors
    /// EOPNOTSUPP where sizes are fixed; ENOSPC and its like, with nothing changed.
    fn set_size(&self, _size: u64) -> Result<(), Errno> {
        Err(Errno::OPNOTSUPP)
    }

    /// Makes whole blocks a hole. The caller keeps writers out.
    ///
    /// # Errors
    /// EOPNOTSUPP where there are no holes; EIO and its like.
    fn remove(&self, _range: Range<u64>) -> Result<(), Errno> {
        Err(Errno::OPNOTSUPP)
    }

    /// Makes what is written of whole blocks unwritten, where it lies. The caller keeps writers out.
    ///
    /// # Errors
    /// EOPNOTSUPP where nothing is unwritten.
    fn unwrite(&self, _range: Range<u64>) -> Result<(), Errno> {
        Err(Errno::OPNOTSUPP)
    }

    /// Bytes of the device that the file has.
    fn allocated(&self) -> u64 {
        self.size()
    }

    /// Moves when the file is emptied by somebody who did not keep writers out. What a write that
    /// began before does after that is as if it had come before, too: it leaves nothing, but where
    /// somebody writes the same range by then it may be seen as one of two that write at once.
    fn generation(&self) -> Generation {
        0
    }

    /// The generation, and how long the file was in it, in bytes: both of one moment.
    fn end(&self) -> (Generation, u64) {
        (self.generation(), self.size())
    }

    /// What has to follow a flush for what was written to be durable, under names and sizes as they
    /// are now; none while nothing of it has changed but bytes in place. It flushes itself.
    fn commit(&self, _what: Durable) -> Option<Commit> {
        None
    }

    /// Hears that a flush failed: the device may have lost what was written, whoever wrote it, and no
    /// later flush says so again.
    fn flush_failed(&self) {}

    /// Whether one has: then a flush that ends well may be one that had nothing left to save.
    fn has_flush_failed(&self) -> bool {
        false
    }

    /// Hears that bytes which were written through a page cache could not be saved and are lost, since nobody has the
    /// file open through one any more. Does not wait.
    fn lost_bytes(&self) {}

    /// Whether bytes of the file were lost so without anybody being told who had it open; says it once.
    fn take_lost_bytes(&self) -> bool {
        false
    }

    /// Where simple reads look first. Asked for once, when the file is opened; what the map shows there
    /// is as good as its own answer.
    fn view(&self) -> View {
        View::default()
    }

    /// [`Self::written`] for a read that nothing but its one request belongs to, and that has not found
    /// its bytes in the [`view`](Self::view); none when [`Self::note_read`] has something to do.
    fn simple_read(&self, offset: u64, length: u64) -> Option<u64> {
        self.written(offset, length)
    }

    /// The same for a write; none when [`Self::note_write`] has something to do.
    fn simple_write(&self, offset: u64, length: u64) -> Option<u64> {
        self.written(offset, length)
    }

    /// Hears that the file is read, of every read that is not simple: its time of access moves.
    fn note_read(&self) {}

    /// Hears that the file is about to be changed, of every change that is not a simple write: its
    /// time of change moves. Answers what to wait for before anything is written, if there is
    /// something: rights that a writer takes away go. If that fails, nothing is written.
    fn note_write(&self) -> Option<Commit> {
        None
    }

    /// Hears that a range which was prepared in a generation has been written: it reads as what was
    /// written, and the file is at least as long; unless it has been emptied since.
    fn wrote(&self, _range: Range<u64>, _begun: Generation) {}

    /// The same of what was written to the page cache some time ago, and is on the device now: its times are those
    /// of then.
    fn wrote_back(&self, range: Range<u64>, generation: Generation) {
        self.wrote(range, generation);
    }
}

/// What has to follow a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WriteKind {
    /// Nothing: it lay in one written extent.
    InPlace,
    /// The map hears of it.
    Allocated,
}

//! The uploads of a store that are known by an id.
//!
//! A part goes to its place in the object when all parts before it have the length of the first one that came, as most
//! programs cut them. Any other part gets a file of its own, and then completing the upload copies all parts.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::{Duration, Instant};

use object_store::multipart::PartId;
use object_store::path::Path;
use object_store::{Error, MultipartId, Result};
use parking_lot::Mutex;

use crate::attributes::Xattrs;
use crate::error::generic;
use crate::multipart::UploadPermit;
use crate::new_object::NewObject;

/// The age at which an upload is removed, if no part came meanwhile. Each upload with an id that begins on the same
/// store, or a clone of it, looks for them.
pub(crate) const MAX_AGE: Duration = Duration::from_secs(24 * 3600);
/// The most parts of an upload, as of S3.
const MAX_PARTS: usize = 10_000;

/// The uploads of a store and its clones.
#[derive(Debug, Default)]
pub(crate) struct Uploads {
    by_id: Mutex<HashMap<MultipartId, Upload>>,
    /// Those without an id, too.
    pub(crate) count: Arc<AtomicUsize>,
}

/// An upload, and the parts that have come.
#[derive(Debug)]
pub(crate) struct Upload {
    location: Path,
    pub(crate) xattrs: Xattrs,
    /// The object.
    pub(crate) new: NewObject,
    /// The length of the first part that came.
    part_bytes: Option<u64>,
    /// Those that are written, by index.
    parts: BTreeMap<usize, Part>,
    /// The indexes of all that have begun.
    begun: BTreeSet<usize>,
    /// The parts whose writes into the object have begun, and have not succeeded. Such a write may change the object at
    /// any later time, also after its future is dropped.
    unfinished: usize,
    last_use: Instant,
    _permit: UploadPermit,
}

/// A part that is written.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    pub(crate) id: String,
    /// The object itself, or a file of its own.
    pub(crate) new: NewObject,
    pub(crate) offset: u64,
    pub(crate) length: u64,
}

impl Uploads {
    /// Removes those without a part for [`MAX_AGE`].
    pub(crate) fn remove_old(&self, now: Instant) {
        let is_in_use = |upload: &mut Upload| now.duration_since(upload.last_use) < MAX_AGE;
        self.by_id.lock().retain(|_, upload| is_in_use(upload));
    }

    pub(crate) fn insert(&self, id: MultipartId, upload: Upload) {
        self.by_id.lock().insert(id, upload);
    }

    pub(crate) fn remove(&self, location: &Path, id: &MultipartId) -> Result<Upload> {
        self.with(location, id, |_| Ok(()))?;
        self.by_id.lock().remove(id).ok_or_else(|| unknown(location, id))
    }

    /// Calls `with` for the upload of an id.
    pub(crate) fn with<T>(
        &self,
        location: &Path,
        id: &MultipartId,
        with: impl FnOnce(&mut Upload) -> Result<T>,
    ) -> Result<T> {
        match self.by_id.lock().get_mut(id) {
            Some(upload) if upload.location == *location => {
                upload.last_use = Instant::now();
                with(upload)
            }
            _ => Err(unknown(location, id)),
        }
    }
}

impl Upload {
    pub(crate) fn new(
        location: Path,
        xattrs: Xattrs,
        new: NewObject,
        permit: UploadPermit,
    ) -> Upload {
        Upload {
            location,
            xattrs,
            new,
            part_bytes: None,
            parts: BTreeMap::new(),
            begun: BTreeSet::new(),
            unfinished: 0,
            last_use: Instant::now(),
            _permit: permit,
        }
    }

    /// Where a part goes: its place in the object, if that is known. Any part that comes again gets a file of its own.
    pub(crate) fn begin_part(&mut self, index: usize, length: u64) -> Result<Option<u64>> {
        if index >= MAX_PARTS {
            return Err(generic(format!(
                "part {index} of an upload, the first is 0: an upload has at most {MAX_PARTS} parts; use larger ones"
            )));
        }
        let part_bytes = *self.part_bytes.get_or_insert(length);
        let is_again = !self.begun.insert(index);
        let fits = length <= part_bytes && !is_again;
        self.unfinished += usize::from(fits);
        Ok(fits.then(|| index as u64 * part_bytes))
    }

    /// Records a part that is written. If it came before, it replaces that one.
    pub(crate) fn end_part(&mut self, index: usize, part: Part) {
        if part.new.inode() == self.new.inode() {
            self.unfinished -= 1;
        }
        self.parts.insert(index, part);
    }

    /// The parts that make the object, and its length.
    pub(crate) fn parts(&self, ids: &[PartId]) -> Result<(Vec<Part>, u64)> {
        let find = |(index, id): (usize, &PartId)| {
            let part = self.parts.get(&index);
            part.filter(|part| part.id == id.content_id).cloned().ok_or_else(|| {
                generic(format!(
                    "part {index} of the upload of {:?} is not the one that was put last; put it again",
                    self.location.as_ref()
                ))
            })
        };
        let parts: Vec<_> = ids.iter().enumerate().map(find).collect::<Result<_>>()?;
        let length = parts.iter().map(|part| part.length).sum();
        Ok((parts, length))
    }

    /// Whether all parts are in the object, each in its place, and nothing else is or can come.
    pub(crate) fn is_whole(&self, parts: &[Part], length: u64) -> bool {
        let mut end = 0;
        let in_place = parts.iter().all(|part| {
            let is_next = part.offset == end && part.new.inode() == self.new.inode();
            end += part.length;
            is_next
        });
        in_place && self.unfinished == 0 && self.new.length() == length
    }
}

fn unknown(location: &Path, id: &MultipartId) -> Error {
    let what = format!(
        "there is no upload {id:?} of this path: it was completed, aborted, or not used for a day, or the store has \
         been opened again; begin another one"
    );
    Error::NotFound { path: location.to_string(), source: what.into() }
}

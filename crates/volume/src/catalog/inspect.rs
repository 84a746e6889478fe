//! The catalog as a check sees it: verifies every page, lists the damaged ones, and writes
//! corrected pages.

use std::sync::Arc;

use super::backend::ReadWriteBackend;
use super::bit_repair::BadPage;
use super::catalog::{Catalog, CatalogState};
use super::redb_error::{RedbError, catch_panic};
use super::redb_handle::{OpenDatabase, RedbHandle};
use super::store::{Access, LostPages, Store};

use crate::blocks::{BlockIo, Run};
use crate::error::{Error, ErrorKind};

/// The result of verifying every page. See also [`Catalog::damaged_pages`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verification {
    /// All pages are good, or were corrected.
    Good,
    /// All pages are good by redb's own checksums. Some of our checksums are lost, or a read of the
    /// device failed at first.
    ChecksumsLost { device_error: Option<String> },
    /// Some pages are damaged, for this reason.
    Damaged(String),
    /// The device failed to read some pages.
    Unreadable(String),
}

impl Catalog {
    /// Reads every page that the last commit on the device reaches, redb's own included, and verifies
    /// it against redb's checksums, too.
    pub(crate) fn verify(&self) -> Verification {
        let (verification, damaged) = self.verify_pages();
        self.note_damaged(damaged);
        verification
    }

    /// As [`Self::verify`], and returns the pages found damaged.
    pub(crate) fn verify_pages(&self) -> (Verification, Vec<BadPage>) {
        let (verified, mut damaged) = self.verify_with(LostPages::Fail);
        let error = match verified {
            Ok(true) => return (Verification::Good, damaged),
            Ok(false) => {
                return (Verification::Damaged("its map of used pages is wrong".into()), damaged);
            }
            Err(error) => error,
        };
        let (again, raw) = self.verify_with(LostPages::Raw);
        let verification = match again {
            Ok(_) => {
                // Pages that are taken as they are count as good only after redb has verified them.
                damaged.extend(raw);
                Verification::ChecksumsLost { device_error: device_error(&error) }
            }
            Err(again) => match device_error(&error).or_else(|| device_error(&again)) {
                Some(unread) => Verification::Unreadable(unread),
                None => Verification::Damaged(error.to_string()),
            },
        };
        (verification, damaged)
    }

    /// Returns whether redb's map of used pages is right, too, and the pages found damaged. redb's repairs are
    /// not written.
    fn verify_with(&self, lost: LostPages) -> (Result<bool, Error>, Vec<BadPage>) {
        let store = Store::open(self.blocks.clone(), &self.runs(), Access::ReadOnly, lost);
        let store = match store {
            Ok(store) => Arc::new(store),
            Err(error) => return (Err(error), Vec::new()),
        };
        let mut builder = redb::Builder::new();
        builder.set_cache_size(self.options.cache_bytes);
        // With this, redb trusts no page before all of them are verified.
        builder.set_check_integrity_on_open(lost == LostPages::Raw);
        let opened =
            catch_panic(|| Ok(builder.create_with_backend(ReadWriteBackend(store.clone()))?))
                .map(|database| RedbHandle::new(OpenDatabase::ReadWrite(database)));
        let verified = opened.and_then(|mut redb| match lost {
            LostPages::Raw => Ok(true),
            _ => catch_panic(|| Ok(redb.writer_mut().check_integrity()?)),
        });
        (verified.map_err(RedbError::into_error), store.damaged())
    }

    /// Adds pages that were found damaged.
    pub(crate) fn note_damaged(&self, damaged: Vec<BadPage>) {
        self.state.write().damaged.extend(damaged.into_iter().map(|bad| (bad.page, bad)));
    }

    /// Reads pages that cannot be read in another way from now on. Only for a catalog that is open for reading.
    ///
    /// # Errors
    /// As [`Catalog::open`].
    pub(crate) fn set_lost_pages(&mut self, lost: LostPages) -> Result<(), Error> {
        self.options.lost_page_policy = lost;
        let before = self.state.get_mut().open.take();
        let store = before.map(|open| open.store.opened_again(lost));
        match store.map(|store| self.open_redb(store)).transpose() {
            Ok(open) => {
                self.state.get_mut().open = open;
                Ok(())
            }
            Err(error) => Err(self.state.get_mut().stop(error)),
        }
    }

    /// All pages found damaged so far.
    pub(crate) fn damaged_pages(&self) -> Vec<BadPage> {
        let mut state = self.state.write();
        if let Some(store) = state.open.as_ref().map(|open| open.store.clone()) {
            state.collect_damaged(&store);
        }
        state.damaged.values().cloned().collect()
    }

    /// Writes the corrected content of these pages, and checksums for those that lost theirs. The
    /// catalog must not be open, and the pages must be verified.
    ///
    /// # Errors
    /// `Damaged` when the header is damaged; the device's.
    pub(crate) fn rewrite(blocks: &BlockIo, runs: &[Run], pages: &[u64]) -> Result<(), Error> {
        let (access, lost) = (Access::ReadWrite, LostPages::Raw);
        Store::open(blocks.clone(), runs, access, lost)?.rewrite(pages)
    }

    /// The runs of its pages, in its order.
    pub(crate) fn runs(&self) -> Vec<Run> {
        self.state.read().runs.clone()
    }

    /// The block of page 0, which holds the header: the second block of the catalog.
    pub(crate) fn header_block(&self) -> Option<u64> {
        self.runs().into_iter().flat_map(|run| run.start..run.end()).nth(1)
    }

    /// All blocks that it uses: its pages and its log.
    pub(crate) fn all_runs(&self) -> Vec<Run> {
        let mut takes = self.runs();
        takes.extend(Some(self.log.lock().run()).filter(|run| run.length > 0));
        takes
    }
}

/// The text of an error, if it is one of the device.
fn device_error(error: &Error) -> Option<String> {
    matches!(error.kind(), ErrorKind::Io(_)).then(|| error.to_string())
}

impl CatalogState {
    /// Takes over a store's damaged pages, which are lost when the store is reopened.
    pub(super) fn collect_damaged(&mut self, store: &Store) {
        self.damaged.extend(store.damaged().into_iter().map(|bad| (bad.page, bad)));
    }
}

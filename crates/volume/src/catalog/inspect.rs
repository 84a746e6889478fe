//! What checking a volume asks of its catalog: whether every page is as it was written, which are not,
//! and to write down what was put right.

use std::sync::Arc;

use super::backend::ReadWriteBackend;
use super::bit_repair::BadPage;
use super::catalog::{Catalog, CatalogState};
use super::redb_error::{RedbError, catch_panic};
use super::redb_handle::{OpenDatabase, RedbHandle};
use super::store::{Access, LostPages, Store};

use crate::blocks::{Blocks, Run};
use crate::error::{Error, ErrorKind};

/// What verifying every page said; see also [`Catalog::damaged_pages`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verified {
    /// They are good, or were put right.
    Good,
    /// They are good as redb's own checksums say, though some of those kept beside them are lost, or the device did
    /// not give something at first.
    WithoutSums { unread: Option<String> },
    /// They are not, for this reason.
    Damaged(String),
    /// The device did not give all of them.
    Unread(String),
}

impl Catalog {
    /// Reads every page that the last commit reaches, redb's own among them, and verifies it against
    /// redb's checksums, too.
    pub(crate) fn verify(&self) -> Verified {
        match self.verify_with(LostPages::Refuse) {
            Ok(true) => Verified::Good,
            Ok(false) => Verified::Damaged("its map of pages in use is wrong".into()),
            Err(error) => match self.verify_with(LostPages::AsTheyAre) {
                Ok(_) => Verified::WithoutSums { unread: device_error(&error) },
                Err(again) => match device_error(&error).or_else(|| device_error(&again)) {
                    Some(unread) => Verified::Unread(unread),
                    None => Verified::Damaged(error.to_string()),
                },
            },
        }
    }

    /// Whether redb's map of pages in use is right, too. What redb would repair is not written.
    fn verify_with(&self, lost: LostPages) -> Result<bool, Error> {
        let store = Store::open(self.blocks.clone(), &self.runs(), Access::ReadOnly, lost)?;
        let store = Arc::new(store);
        let mut builder = redb::Builder::new();
        builder.set_cache_size(self.options.cache_bytes);
        // Then opening trusts no page before all are verified.
        builder.set_check_integrity_on_open(lost == LostPages::AsTheyAre);
        let opened =
            catch_panic(|| Ok(builder.create_with_backend(ReadWriteBackend(store.clone()))?))
                .map(|database| RedbHandle::new(OpenDatabase::ReadWrite(database)));
        let verified = opened.and_then(|mut redb| match lost {
            LostPages::AsTheyAre => Ok(true),
            _ => catch_panic(|| Ok(redb.writer_mut().check_integrity()?)),
        });
        // Of pages taken as they are it is known only now that they are good.
        if lost != LostPages::AsTheyAre || verified.is_ok() {
            self.state.write().collect_damaged(&store);
        }
        verified.map_err(RedbError::into_error)
    }

    /// The pages that were found damaged so far.
    pub(crate) fn damaged_pages(&self) -> Vec<BadPage> {
        let mut state = self.state.write();
        if let Some(store) = state.open.as_ref().map(|open| open.store.clone()) {
            state.collect_damaged(&store);
        }
        state.damaged.values().cloned().collect()
    }

    /// Writes down what was put right in these pages of a catalog that nobody has open, and makes sums
    /// again that were lost. For pages that were verified.
    ///
    /// # Errors
    /// `Damaged` when the head is not one; the device's.
    pub(crate) fn rewrite(blocks: &Blocks, runs: &[Run], pages: &[u64]) -> Result<(), Error> {
        let (access, lost) = (Access::ReadWrite, LostPages::AsTheyAre);
        Store::open(blocks.clone(), runs, access, lost)?.rewrite(pages)
    }

    /// Where its pages lie, in its order.
    pub(crate) fn runs(&self) -> Vec<Run> {
        self.state.read().runs.clone()
    }

    /// The block of page 0, the head: the second of the row.
    pub(crate) fn head_block(&self) -> Option<u64> {
        self.runs().into_iter().flat_map(|run| run.start..run.end()).nth(1)
    }

    /// All that it lies in: its pages, and its log.
    pub(crate) fn takes(&self) -> Vec<Run> {
        let mut takes = self.runs();
        takes.extend(Some(self.log.lock().run()).filter(|run| run.length > 0));
        takes
    }
}

/// What the device did not give, if that is what an error says.
fn device_error(error: &Error) -> Option<String> {
    matches!(error.kind(), ErrorKind::Io(_)).then(|| error.to_string())
}

impl CatalogState {
    /// Takes over what a store knows of damaged pages, which is not kept when it is opened anew.
    pub(super) fn collect_damaged(&mut self, store: &Store) {
        self.damaged.extend(store.damaged().into_iter().map(|bad| (bad.page, bad)));
    }
}

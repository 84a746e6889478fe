//! What checking a volume asks of its catalog: whether every page is as it was written, which are not,
//! and to write down what was put right.

use super::damage::BadPage;
use super::store::LostPages;
use super::trouble::contained;
use super::{Catalog, State};
use crate::blocks::Run;
use crate::error::Error;

impl Catalog {
    /// Reads every page that the last commit reaches, redb's own among them, and verifies it against
    /// redb's checksums, too. What is wrong with the whole, if anything; see also
    /// [`Self::damaged_pages`].
    ///
    /// # Errors
    /// What opening it anew says, which is needed after something was wrong.
    pub(crate) fn verify(&self) -> Result<Option<String>, Error> {
        let (found, opened) = {
            let mut state = self.state.write();
            state.usable()?;
            let opened = state.opened;
            let open = state.open.as_mut().expect("it is usable");
            let database = open.redb.database_mut();
            (contained(|| Ok(database.check_integrity()?)), opened)
        };
        match found {
            Ok(true) => Ok(None),
            Ok(false) => Ok(Some("its map of pages in use is wrong".into())),
            Err(trouble) => {
                self.reopen(opened)?;
                Ok(Some(trouble.into_error().to_string()))
            }
        }
    }

    /// The pages that were found damaged so far.
    pub(crate) fn damaged_pages(&self) -> Vec<BadPage> {
        let mut state = self.state.write();
        state.keep_damaged();
        state.damaged.values().cloned().collect()
    }

    /// Writes down what was put right in these pages.
    ///
    /// # Errors
    /// What reading a page says; the device's.
    pub(crate) fn rewrite(&self, pages: &[u64]) -> Result<(), Error> {
        let state = self.state.write();
        state.usable()?.store.rewrite(pages)
    }

    /// Where it lies, in its order.
    pub(crate) fn runs(&self) -> Vec<Run> {
        self.state.read().runs.clone()
    }

    /// Whether pages that cannot be read hold nothing.
    pub(super) fn is_salvaging(&self) -> bool {
        self.options.lost == LostPages::Empty
    }
}

impl State {
    /// Takes over what the store knows of damaged pages, which is not kept when it is opened anew.
    pub(super) fn keep_damaged(&mut self) {
        if let Some(open) = &self.open {
            self.damaged.extend(open.store.damaged().into_iter().map(|bad| (bad.page, bad)));
        }
    }
}

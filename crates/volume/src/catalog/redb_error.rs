//! What may go wrong inside redb, by what it means for the catalog; and the fence that panics in
//! there do not pass.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::error::{Error, ErrorKind};

/// What went wrong.
#[derive(Debug)]
pub(super) enum RedbError {
    /// Found outside redb, which goes on as before.
    Ours(Error),
    /// A page could not be had, or redb could not make sense of it: it answers nothing more.
    Storage(Error),
    /// Another call met that before; this one did nothing.
    PreviousIo(Error),
    /// It happened, and then a page could not be had.
    AfterCommit,
    /// Where it stood is unknown.
    Panic(String),
}

impl RedbError {
    pub(super) fn into_error(self) -> Error {
        match self {
            RedbError::Ours(error) | RedbError::Storage(error) | RedbError::PreviousIo(error) => {
                error
            }
            RedbError::AfterCommit => {
                Error::damaged("the catalog is damaged behind what was asked")
            }
            RedbError::Panic(what) => {
                Error::damaged(format!("the catalog is damaged, redb gave up: {what}"))
            }
        }
    }
}

impl From<redb::Error> for RedbError {
    fn from(error: redb::Error) -> RedbError {
        use redb::Error as Redb;
        match error {
            Redb::PreviousIo | Redb::DatabaseClosed => {
                RedbError::PreviousIo(Error::damaged("another part of the catalog is damaged"))
            }
            Redb::LockPoisoned(place) => RedbError::Panic(place.to_string()),
            // The store's own errors come back as they were.
            Redb::Io(error) => RedbError::Storage(match error.downcast::<Error>() {
                Ok(ours) => ours,
                Err(theirs) => Error::damaged("the catalog is damaged").because(theirs),
            }),
            // They are all made with the catalog.
            Redb::TableDoesNotExist(_) => RedbError::Ours(Error::damaged(
                "what leads to the catalog's records is lost; bring the volume back from a copy",
            )),
            Redb::ValueTooLarge(bytes) => {
                RedbError::Ours(Error::new(ErrorKind::Input, format!("a record of {bytes} bytes")))
            }
            other => RedbError::Storage(Error::damaged("the catalog is damaged").because(other)),
        }
    }
}

macro_rules! from_redb {
    ($($error:ident),*) => {$(
        impl From<redb::$error> for RedbError {
            fn from(error: redb::$error) -> RedbError {
                redb::Error::from(error).into()
            }
        }
    )*};
}

from_redb!(StorageError, TableError, TransactionError, CommitError, DatabaseError);

/// Runs what calls redb; a panic in there ends there.
pub(super) fn catch_panic<T>(work: impl FnOnce() -> Result<T, RedbError>) -> Result<T, RedbError> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|payload| {
        let text = payload.downcast_ref::<&str>().map(ToString::to_string);
        let text = text.or_else(|| payload.downcast_ref::<String>().cloned());
        Err(RedbError::Panic(text.unwrap_or_default()))
    })
}

//! Errors of redb, by what they mean for the catalog. Turns redb's panics into errors.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::error::{Error, ErrorKind};
use crate::superblock::REPAIR_ADVICE;

#[derive(Debug)]
pub(super) enum RedbError {
    /// Found outside redb, which continues to work.
    Ours(Error),
    /// A page could not be read, or redb could not interpret it. redb serves nothing more.
    Storage(Error),
    /// An earlier call met such an error. This call did nothing.
    PreviousIo(Error),
    /// The commit happened; a page could not be read after it.
    AfterCommit,
    /// redb panicked. Its state is unknown.
    Panic(String),
}

impl RedbError {
    pub(super) fn into_error(self) -> Error {
        match self {
            RedbError::Ours(error) | RedbError::Storage(error) | RedbError::PreviousIo(error) => {
                error
            }
            RedbError::AfterCommit => {
                Error::damaged("the last commit is complete, but the catalog is damaged")
                    .with_advice(REPAIR_ADVICE)
            }
            RedbError::Panic(what) => {
                Error::damaged(format!("the catalog is damaged, redb panicked: {what}"))
            }
        }
    }
}

impl From<redb::Error> for RedbError {
    fn from(error: redb::Error) -> RedbError {
        use redb::Error as Redb;
        match error {
            Redb::PreviousIo | Redb::DatabaseClosed => RedbError::PreviousIo(Error::damaged(
                "an earlier call could not read the catalog; run uringfs check",
            )),
            Redb::LockPoisoned(place) => RedbError::Panic(place.to_string()),
            // The store's own errors come back unchanged.
            Redb::Io(error) => RedbError::Storage(match error.downcast::<Error>() {
                Ok(ours) => ours,
                Err(theirs) => Error::damaged("the catalog is damaged").with_cause(theirs),
            }),
            // All tables are created with the catalog.
            Redb::TableDoesNotExist(_) => RedbError::Ours(Error::damaged(
                "the pages that lead to the catalog's records are lost; restore the volume from a copy",
            )),
            Redb::ValueTooLarge(bytes) => RedbError::Ours(Error::new(
                ErrorKind::Input,
                format!("a record of {bytes} bytes is too large for the catalog"),
            )),
            other => RedbError::Storage(Error::damaged("the catalog is damaged").with_cause(other)),
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

/// Runs code that calls redb, and turns a panic into an error.
pub(super) fn catch_panic<T>(work: impl FnOnce() -> Result<T, RedbError>) -> Result<T, RedbError> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|payload| {
        let text = payload.downcast_ref::<&str>().map(ToString::to_string);
        let text = text.or_else(|| payload.downcast_ref::<String>().cloned());
        Err(RedbError::Panic(text.unwrap_or_default()))
    })
}

//! redb behind a fence: what it panics with ends here, and so does its shutdown.

use std::sync::Arc;

use redb::{Database, ReadOnlyDatabase, ReadableDatabase};

use super::redb_error::{Trouble, contained};
use super::snapshot::{Newest, View};

/// redb as it was opened, and the newest view of it; its end stays inside, too: after a panic its locks
/// may be poisoned.
pub(super) struct Fenced {
    opened: Option<Opened>,
    newest: Newest,
}

pub(super) enum Opened {
    ToWrite(Database),
    ToRead(ReadOnlyDatabase),
}

impl Fenced {
    pub(super) fn of(opened: Opened) -> Fenced {
        Fenced { opened: Some(opened), newest: Newest::default() }
    }

    /// What the last commit left.
    pub(super) fn view(&self) -> Result<Arc<View>, Trouble> {
        self.newest.get(|| match self.opened.as_ref().expect("it is taken only to be dropped") {
            Opened::ToWrite(database) => database.begin_read(),
            Opened::ToRead(database) => database.begin_read(),
        })
    }

    /// To be called after each commit.
    pub(super) fn pass_view(&self) {
        self.newest.pass();
    }

    /// What was opened to write.
    pub(super) fn writer(&self) -> &Database {
        match &self.opened {
            Some(Opened::ToWrite(database)) => database,
            _ => unreachable!("who only reads is sent away before"),
        }
    }

    /// The same, with nobody beside.
    pub(super) fn writer_mut(&mut self) -> &mut Database {
        self.pass_view();
        match &mut self.opened {
            Some(Opened::ToWrite(database)) => database,
            _ => unreachable!("who only reads is sent away before"),
        }
    }
}

impl Drop for Fenced {
    fn drop(&mut self) {
        let opened = self.opened.take();
        // What goes wrong in there shows in the store.
        let _ = contained(|| {
            self.newest.pass();
            drop(opened);
            Ok(())
        });
    }
}

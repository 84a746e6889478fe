//! How an operation comes to its end: tried under the volume's lock, on what memory knows; where that is
//! not enough the catalog is asked, or a commit waited for, without the lock, and it is tried anew.
//!
//! Nothing waits with the lock held. A thread waits in place. A task's thread goes on meanwhile: the
//! catalog is asked by the thread of [`Reader`].

use std::ops::Range;
use std::sync::Arc;

use rustix::io::Errno;
use uringfs_file::Commit;

use crate::catalog::{MAX_RECORDS, Record, Table};
use crate::core::blocking::Who;
use crate::core::state::{MANY_WAITING, Shared, VolumeState};
use crate::error::{Error, ErrorKind};
use crate::namespace::transaction::{Answered, Answers, BATCH, Records, Stop, Wanted};
use crate::records::inode::InodeNumber;
use crate::records::overlay::{Changes, Watch};

/// Commits that an operation waits for at the most, so that it has an answer though others go on.
const MOST_COMMITS: u32 = 3;

/// What the catalog says.
enum Answer {
    Record(Option<Vec<u8>>),
    /// And where more may follow.
    Batch(Vec<Record>, Option<Vec<u8>>),
}

impl Shared {
    /// An operation on records, done as a whole or not at all.
    pub(crate) async fn operate<T>(
        self: &Arc<Self>,
        who: Who,
        mut how: impl FnMut(&mut Records<'_>) -> Result<T, Stop>,
    ) -> Result<T, Error> {
        self.attempt(who, |state, answers| self.try_once(state, answers, &mut how)).await
    }

    pub(super) fn try_once<T>(
        &self,
        state: &mut VolumeState,
        answers: &Answers,
        how: impl FnOnce(&mut Records<'_>) -> Result<T, Stop>,
    ) -> Result<T, Stop> {
        let mut records = state.records(answers);
        let done = how(&mut records)?;
        let effects = records.effects;
        let (more, reserve) = (effects.changes.size(), effects.changes.reserve());
        state.make_room_for(more, state.to_redeem(), reserve, answers)?;
        state.apply(effects);
        if state.pending.waiting().changes > MANY_WAITING {
            self.board.ask(self.board.next());
        }
        Ok(done)
    }

    /// Tries until it is done or refused.
    pub(crate) async fn attempt<T>(
        self: &Arc<Self>,
        who: Who,
        mut once: impl FnMut(&mut VolumeState, &Answers) -> Result<T, Stop>,
    ) -> Result<T, Error> {
        self.check_process()?;
        let mut answers = Answers::default();
        let mut commits = 0;
        loop {
            let stop = {
                let state = &mut *self.state.lock();
                match once(state, &answers) {
                    Ok(done) => return Ok(done),
                    Err(stop) => stop,
                }
            };
            match stop {
                Stop::Refused(error) => return Err(self.told_of(error)),
                Stop::Unknown(wanted) => {
                    let learned = self.learn(who, wanted, &mut answers).await;
                    learned.map_err(|error| self.told_of(error))?;
                }
                Stop::Uncommitted => {
                    commits += 1;
                    answers.has_waited = match self.next_commit(who).await {
                        Ok(()) => commits == MOST_COMMITS,
                        // Not even for what was changed before.
                        Err(Errno::NOSPC) => true,
                        Err(errno) => return Err(Error::io("making room for more changes", errno)),
                    };
                }
            }
        }
    }

    /// # Errors
    /// `Refused` (ECHILD) in the child of a fork, before it takes a lock that nobody gives back there.
    pub(crate) fn check_process(&self) -> Result<(), Error> {
        match self.board.is_forked() {
            false => Ok(()),
            true => {
                let what =
                    "the volume is this process's parent's, which has forked; open it anew here";
                Err(Error::refused(Errno::CHILD, what))
            }
        }
    }

    /// Tells of damage that an operation has met. (Errors of the device are told where it answers.)
    fn told_of(&self, error: Error) -> Error {
        if error.kind() == ErrorKind::Damaged {
            self.publisher.tell_damage(&error.to_string());
        }
        error
    }

    /// Asks for one record that a file's map wants.
    pub(crate) fn told(self: Arc<Self>, wanted: Wanted) -> Commit {
        Box::pin(async move {
            let learned = self.learn(Who::Task, wanted, &mut Answers::default()).await;
            learned.map_err(|error| error.errno())
        })
    }

    /// Asks the catalog, and puts its answer where the next try finds it.
    async fn learn(
        self: &Arc<Self>,
        who: Who,
        wanted: Wanted,
        answers: &mut Answers,
    ) -> Result<(), Error> {
        let (table, keys) = wanted.keys();
        let watch = self.state.lock().pending.watch(table, keys);
        let answer = match who {
            Who::Thread => self.ask(&wanted, &watch),
            Who::Task => {
                let (shared, wanted, watch) = (self.clone(), wanted.clone(), watch.clone());
                self.reader.run(move || shared.ask(&wanted, &watch))?.await
            }
        };
        match answer? {
            Answer::Record(value) => self.state.lock().pending.learn(&watch, value),
            Answer::Batch(records, next) => {
                answers.batches.push(Answered { wanted, records, next, watch });
            }
        }
        Ok(())
    }

    /// Reads the device, and waits for it.
    fn ask(&self, wanted: &Wanted, watch: &Watch) -> Result<Answer, Error> {
        Ok(match wanted {
            Wanted::Record { table, key } => Answer::Record(self.catalog.record(*table, key)?),
            Wanted::Batch { table, inode, from } => {
                let mut from = from.clone();
                loop {
                    let (records, next) = self.ask_some(*table, *inode, from.clone())?;
                    match next {
                        // All of these are going to go: nobody wants to hear of them.
                        Some(next)
                            if self.are_gone(watch, &(from.clone()..next.clone()), &records) =>
                        {
                            from = next;
                        }
                        next => break Answer::Batch(records, next),
                    }
                }
            }
            Wanted::All { table, inode } => {
                let mut all: Vec<Record> = Vec::new();
                let mut from = inode.0.to_be_bytes().to_vec();
                loop {
                    let some = self.catalog.scan(*table, from, Some(inode.0), MAX_RECORDS)?;
                    let is_last = some.len() < MAX_RECORDS;
                    all.extend(some);
                    match all.last() {
                        Some((last, _)) if !is_last => from = [&last[..], &[0]].concat(),
                        _ => break Answer::Batch(all, None),
                    }
                }
            }
        })
    }

    /// [`BATCH`] records of an inode, and where more may follow.
    fn ask_some(
        &self,
        table: Table,
        inode: InodeNumber,
        from: Vec<u8>,
    ) -> Result<(Vec<Record>, Option<Vec<u8>>), Error> {
        let found = self.catalog.scan_each(table, from, Some(inode.0), BATCH)?;
        let is_full = found.len() == BATCH;
        let mut records: Vec<Record> = Vec::new();
        for record in found {
            match record.value {
                Ok(value) => records.push((record.key, value)),
                Err(error) if records.is_empty() => return Err(error.at(record.key)),
                // Told when it is the first.
                Err(_) => return Ok((records, Some(record.key))),
            }
        }
        let last = records.last().filter(|_| is_full);
        let next = last.map(|(last, _)| [&last[..], &[0]].concat());
        Ok((records, next))
    }

    fn are_gone(&self, watch: &Watch, keys: &Range<Vec<u8>>, records: &[Record]) -> bool {
        let pending = &self.state.lock().pending;
        pending.lay_over(&Changes::default(), watch, keys, records).is_empty()
    }

    /// Waits for the next commit to end.
    pub(crate) async fn next_commit(&self, who: Who) -> Result<(), Errno> {
        let number = self.board.next();
        match who {
            Who::Thread => self.board.wait(number),
            Who::Task => self.board.clone().wait_in_task(number).await,
        }
    }
}

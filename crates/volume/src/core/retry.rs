//! Retries a transaction until it is done: it runs under the volume's lock on records in memory. A missing
//! record is read from the catalog. If the catalog is full, a commit is awaited. Both happen without the lock. Then
//! the transaction runs again.
//!
//! No caller waits with the lock held. A thread reads the catalog itself. For a task the thread of [`CatalogThread`]
//! reads, and the task's own thread goes on.

use std::ops::Range;
use std::sync::Arc;

use uringfs_device::Errno;
use uringfs_file::CommitFuture;
use uringfs_reactor::thread_has_reactor;

use crate::catalog::{MAX_RECORDS, Record, ScanEntry, Table};
use crate::core::blocking::WaitMode;
use crate::core::state::{COMMIT_THRESHOLD_RECORDS, VolumeShared, VolumeState};
use crate::error::{Error, ErrorKind};
use crate::namespace::transaction::{
    CHUNK_RECORDS, ReadRequest, ReadResult, ReadResults, Retry, Transaction,
};
use crate::records::inode::InodeNumber;
use crate::records::overlay::{ChangeSet, RangeWatch};
use crate::records::readahead::GROUP_INODES;

/// Commits that one operation waits for, so that it ends even if others fill the catalog.
const MAX_COMMIT_WAITS: u32 = 3;

/// Records that were read from the catalog.
enum CatalogRead {
    Record(Option<Vec<u8>>),
    /// Records, and the key where more may follow.
    Records(Vec<Record>, Option<Vec<u8>>),
}

impl VolumeShared {
    /// Runs a transaction until it is applied as a whole, or fails and changes nothing.
    pub(crate) async fn run_transaction<T>(
        self: &Arc<Self>,
        mode: WaitMode,
        mut operation: impl FnMut(&mut Transaction<'_>) -> Result<T, Retry>,
    ) -> Result<T, Error> {
        self.with_retries(mode, |state, results| {
            self.try_transaction(state, results, &mut operation)
        })
        .await
    }

    pub(super) fn try_transaction<T>(
        &self,
        state: &mut VolumeState,
        results: &ReadResults,
        operation: impl FnOnce(&mut Transaction<'_>) -> Result<T, Retry>,
    ) -> Result<T, Retry> {
        let mut transaction = state.transaction(results);
        let done = operation(&mut transaction)?;
        let effects = transaction.effects;
        let (more, reserve) = (effects.changes.size(), effects.changes.reserve_policy());
        state.catalog_room_or_retry(more, state.delayed_size(), reserve, results)?;
        state.apply(effects);
        if state.overlay.current_size().changes > COMMIT_THRESHOLD_RECORDS {
            self.group_commit.request(self.group_commit.next());
        }
        Ok(done)
    }

    /// Runs `attempt` under the lock until it succeeds or fails.
    pub(crate) async fn with_retries<T>(
        self: &Arc<Self>,
        mode: WaitMode,
        mut attempt: impl FnMut(&mut VolumeState, &ReadResults) -> Result<T, Retry>,
    ) -> Result<T, Error> {
        self.check_process()?;
        let mut results = ReadResults::default();
        let mut commits = 0;
        loop {
            let retry = {
                let state = &mut *self.state.lock();
                match attempt(state, &results) {
                    Ok(done) => return Ok(done),
                    Err(retry) => retry,
                }
            };
            match retry {
                Retry::Fail(error) => return Err(self.report_damage(error)),
                Retry::NeedsRead(request) => {
                    let loaded = self.load_result(mode, request, &mut results).await;
                    loaded.map_err(|error| self.report_damage(error))?;
                }
                Retry::NeedsCommit => {
                    commits += 1;
                    results.is_last_try = match self.wait_for_commit(mode).await {
                        Ok(()) => commits == MAX_COMMIT_WAITS,
                        // The commit itself had no room: another one will not help.
                        Err(Errno::NOSPC) => true,
                        Err(errno) => return Err(Error::io("making room for more changes", errno)),
                    };
                }
            }
        }
    }

    /// # Errors
    /// `Refused` (ECHILD) in the child of a fork, before it takes a lock that nothing releases there.
    pub(crate) fn check_process(&self) -> Result<(), Error> {
        match self.group_commit.is_forked() {
            false => Ok(()),
            true => {
                let what = "the volume belongs to the parent process, which has forked; use it only in the parent, \
                            or open it in a new program after the parent has closed it";
                Err(Error::refused(Errno::CHILD, what))
            }
        }
    }

    /// Publishes damage that an operation met. (The device's failures are published where it completes requests.)
    fn report_damage(&self, error: Error) -> Error {
        if error.kind() == ErrorKind::Damaged {
            self.publisher.publish_damage(&error.to_string());
        }
        error
    }

    /// Reads one record that a file's map needs.
    pub(crate) fn read_async(self: Arc<Self>, request: ReadRequest) -> CommitFuture {
        Box::pin(async move {
            let loaded =
                self.load_result(WaitMode::Async, request, &mut ReadResults::default()).await;
            loaded.map_err(|error| error.errno())
        })
    }

    /// Reads from the catalog, and keeps the result for the next attempt.
    async fn load_result(
        self: &Arc<Self>,
        mode: WaitMode,
        request: ReadRequest,
        results: &mut ReadResults,
    ) -> Result<(), Error> {
        let (table, keys) = request.keys();
        let (watch, group) = {
            let overlay = &mut self.state.lock().overlay;
            (overlay.watch(table, keys.clone()), overlay.watch_group(table, &keys.start))
        };
        let job = {
            let (shared, request, watch) = (self.clone(), request.clone(), watch.clone());
            move || {
                let read = shared.read_catalog(&request, &watch)?;
                Ok((read, group.map(|watch| (shared.read_group(&watch), watch))))
            }
        };
        let (read, group) = match mode {
            WaitMode::Blocking => job(),
            WaitMode::Async => self.catalog_thread.run(job)?.await,
        }?;
        let overlay = &mut self.state.lock().overlay;
        if let Some((found, watch)) = group {
            overlay.insert_group(&watch, found);
        }
        let (records, next) = match read {
            CatalogRead::Record(value) => {
                overlay.insert_read(&watch, value.clone());
                (value.map(|value| (watch.start().1.to_vec(), value)).into_iter().collect(), None)
            }
            CatalogRead::Records(records, next) => (records, next),
        };
        results.reads.insert(request, ReadResult { records, next, watch });
        Ok(())
    }

    /// Reads the records of a group that readahead uses; blocks on the device.
    fn read_group(&self, watch: &RangeWatch) -> Result<Vec<ScanEntry>, Error> {
        let (table, group) = watch.start();
        let limit = match table {
            Table::Inodes => GROUP_INODES,
            // One shows that there are some.
            _ => 1,
        };
        self.catalog.scan_with_prefix(table, group, group, limit)
    }

    /// Reads from the catalog; blocks on the device.
    fn read_catalog(
        &self,
        request: &ReadRequest,
        watch: &RangeWatch,
    ) -> Result<CatalogRead, Error> {
        Ok(match request {
            ReadRequest::Record { table, key } => {
                CatalogRead::Record(self.catalog.record(*table, key)?)
            }
            ReadRequest::Chunk { table, inode, from } => {
                let mut from = from.clone();
                loop {
                    let (records, next) = self.read_chunk(*table, *inode, from.clone())?;
                    match next {
                        // All of these are deleted already and not committed: go on with the next ones.
                        Some(next)
                            if self.are_all_deleted(
                                watch,
                                &(from.clone()..next.clone()),
                                &records,
                            ) =>
                        {
                            from = next;
                        }
                        next => break CatalogRead::Records(records, next),
                    }
                }
            }
            ReadRequest::All { table, inode } => {
                let mut all: Vec<Record> = Vec::new();
                let mut from = inode.0.to_be_bytes().to_vec();
                loop {
                    let some = self.catalog.scan(*table, from, Some(inode.0), MAX_RECORDS)?;
                    let is_last = some.len() < MAX_RECORDS;
                    all.extend(some);
                    match all.last() {
                        Some((last, _)) if !is_last => from = [&last[..], &[0]].concat(),
                        _ => break CatalogRead::Records(all, None),
                    }
                }
            }
        })
    }

    /// Reads up to [`CHUNK_RECORDS`] records of an inode, and the key where more may follow.
    fn read_chunk(
        &self,
        table: Table,
        inode: InodeNumber,
        from: Vec<u8>,
    ) -> Result<(Vec<Record>, Option<Vec<u8>>), Error> {
        let found = self.catalog.scan_entries(table, from, Some(inode.0), CHUNK_RECORDS)?;
        let is_full = found.len() == CHUNK_RECORDS;
        let mut records: Vec<Record> = Vec::new();
        for record in found {
            match record.value {
                Ok(value) => records.push((record.key, value)),
                Err(error) if records.is_empty() => return Err(error.with_key(record.key)),
                // A damaged record is an error only at the front of a chunk.
                Err(_) => return Ok((records, Some(record.key))),
            }
        }
        let last = records.last().filter(|_| is_full);
        let next = last.map(|(last, _)| [&last[..], &[0]].concat());
        Ok((records, next))
    }

    fn are_all_deleted(
        &self,
        watch: &RangeWatch,
        keys: &Range<Vec<u8>>,
        records: &[Record],
    ) -> bool {
        let overlay = &self.state.lock().overlay;
        overlay.merge_over(&ChangeSet::default(), watch, keys, records).is_empty()
    }

    /// Waits for the next commit to end. A thread that blocks for it makes it, if no other commit is in progress or
    /// waited for. One that has reactors leaves it to the commit thread, and turns them meanwhile: the device may be
    /// served by one.
    pub(crate) async fn wait_for_commit(self: &Arc<Self>, mode: WaitMode) -> Result<(), Errno> {
        let number = self.group_commit.next();
        if mode == WaitMode::Blocking && !thread_has_reactor() {
            self.group_commit.commit_in_place(number, |group_commit| self.commit(group_commit));
        }
        mode.wait(self.group_commit.clone().wait(number)).await
    }
}

#[cfg(test)]
mod tests {
    use uringfs_device::Device;
    use uringfs_device::backend::memory::Memory;
    use uringfs_reactor::{Reactor, ReactorOptions};

    use super::*;
    use crate::catalog::Key;
    use crate::namespace::operations;
    use crate::records::overlay::Lookup;
    use crate::volume::options::FormatOptions;
    use crate::volume::volume::Volume;

    const FILES: u64 = 1000;

    /// A volume with files of which nothing is in memory, and the number of the first file's inode.
    fn reopened() -> (Volume, u64) {
        let device = Device::new(Memory::new(64 << 20).unwrap()).unwrap();
        Volume::format(&device, &FormatOptions::default()).unwrap();
        let volume = Volume::open_on(device.clone()).unwrap();
        for number in 0..FILES {
            volume.write(format!("/{number:03}"), "").unwrap();
        }
        let first = volume.metadata("/000").unwrap().ino();
        volume.close().unwrap();
        (Volume::open_on(device).unwrap(), first)
    }

    fn is_in_memory(volume: &Volume, key: Key<'_>) -> bool {
        volume.shared.state.lock().overlay.get(key.table(), &key.bytes()) != Lookup::Unknown
    }

    async fn read_inode(volume: &Volume, number: u64) {
        let operation = operations::live_inode(InodeNumber(number));
        volume.shared.run_transaction(WaitMode::Async, operation).await.unwrap();
    }

    #[test]
    fn inodes_that_are_read_one_after_another_are_read_in_groups() {
        let (volume, first) = reopened();
        Reactor::new(ReactorOptions::default()).unwrap().block_on(async {
            let mut misses = 0;
            for number in first..first + FILES {
                misses += u64::from(!is_in_memory(&volume, Key::Inode(number)));
                read_inode(&volume, number).await;
            }
            let groups = FILES.div_ceil(GROUP_INODES as u64) + 1;
            assert!(misses <= 2 * groups, "{misses} misses in {groups} groups");
        });
    }

    #[test]
    fn inodes_far_from_each_other_are_read_alone() {
        let (volume, first) = reopened();
        Reactor::new(ReactorOptions::default()).unwrap().block_on(async {
            for number in (first..first + FILES).step_by(GROUP_INODES) {
                read_inode(&volume, number).await;
                assert!(!is_in_memory(&volume, Key::Inode(number + 1)));
            }
        });
    }

    #[test]
    fn a_stream_of_names_keeps_them_for_lookups() {
        let (volume, first) = reopened();
        let is_known = |name: &[u8]| is_in_memory(&volume, Key::Name(InodeNumber::ROOT.0, name));
        assert_eq!(volume.read_dir("/").unwrap().count() as u64, FILES);
        assert!(!is_known(b"500"));
        Reactor::new(ReactorOptions::default()).unwrap().block_on(async {
            let mut stream = volume.root().read_dir().await.unwrap();
            stream.next_entry().await.unwrap();
            assert!(is_known(b"500"));
            let (_, found) = volume.root().lookup("500").await.unwrap();
            assert_eq!(found.ino(), first + 500);
        });
    }

    #[test]
    fn attributes_that_no_neighbour_has_are_not_looked_for() {
        let (volume, first) = reopened();
        let key = |number| Key::Xattr(first + number, b"user.a");
        Reactor::new(ReactorOptions::default()).unwrap().block_on(async {
            for number in 0..2 {
                let (file, _) = volume.inode(InodeNumber(first + number)).await.unwrap();
                assert_eq!(file.list_xattrs().await.unwrap(), [[0; 0]; 0]);
            }
            assert!(is_in_memory(&volume, key(100)) && !is_in_memory(&volume, key(300)));
        });
    }
}

//! Pauses after a number of writes, with nothing in flight: syncs, write-back, and the begin of reading back.

use super::super::clock::exact_ns;
use super::{IoLoop, PAUSES, READ_BACK, WRITE_BACK};
use crate::engine::{Engine, Io, SyncKind};
use crate::workload::IoOp;

impl<E: Engine, const TIMED: bool> IoLoop<'_, E, TIMED> {
    /// Counts a write toward the next pause. That of a trimwrite counts as it is trimmed: the pause waits for its end, and
    /// nothing else is trimmed before.
    #[inline]
    pub(super) fn count_write(&mut self, io: Io) {
        let counts = self.pause_every != [0; PAUSES];
        if counts && (io.op == IoOp::Write || self.is_trimmed_for_write(io.op)) {
            self.writes_since_pause = self.writes_since_pause.map(|count| count.saturating_add(1));
            self.pause_due = (0..PAUSES).any(|kind| self.is_due(kind));
            if self.pause_every[WRITE_BACK] != 0 {
                self.note_written(io);
            }
        }
    }

    pub(super) fn is_trimmed_for_write(&self, op: IoOp) -> bool {
        op == IoOp::Trim && self.options.pattern.writes_trimmed()
    }

    /// Extends the range of a file to be written back.
    fn note_written(&mut self, io: Io) {
        let file = io.file as usize;
        if self.written.len() <= file {
            self.written.resize(file + 1, 0..0);
        }
        let (begin, end) = (io.offset, io.offset + u64::from(io.length));
        let written = &mut self.written[file];
        *written = match written.is_empty() {
            true => begin..end,
            false => written.start.min(begin)..written.end.max(end),
        };
    }

    fn is_due(&self, kind: usize) -> bool {
        let every = self.pause_every[kind];
        every != 0 && self.writes_since_pause[kind] >= every
    }

    /// Syncs, and begins reading back, if that is due and nothing is in flight.
    pub(super) fn pause_if_idle(&mut self) {
        if self.in_flight() > 0 {
            return;
        }
        self.pause_due = false;
        for (kind, sync) in [SyncKind::Full, SyncKind::Data].into_iter().enumerate() {
            if self.is_due(kind) {
                self.writes_since_pause[kind] = 0;
                let file = self.file_to_sync();
                self.sync_file(file, sync);
                self.stats.synced();
            }
        }
        if self.is_due(WRITE_BACK) {
            self.writes_since_pause[WRITE_BACK] = 0;
            self.write_back();
            self.stats.synced();
        }
        // The time of a sync is no part of the next I/O.
        self.now_ns = if TIMED { exact_ns() } else { self.now_ns };
        if self.is_due(READ_BACK)
            && let Some(pass) = self.read_back.begin_backlog(self.writes_since_pause[READ_BACK])
        {
            self.begin_reading_back(pass);
        }
    }

    /// Writes back what was written: `sync_file_range`.
    fn write_back(&mut self) {
        let flags = self.options.sync_range.flags;
        for (file, range) in (0..).zip(std::mem::take(&mut self.written)) {
            if range.is_empty() {
                continue;
            }
            let begin = exact_ns();
            if let Err(errno) = self.engine.write_back(file, range, flags) {
                return self.fail_file(errno, "sync_file_range".into(), file);
            }
            self.stats.sync.record(exact_ns() - begin);
        }
    }

    /// The file of the next sync. As with fio, a sync takes the turn of an I/O.
    fn file_to_sync(&mut self) -> u32 {
        // Blocks are read back in the order of the writes, in which no turn may be missing.
        if self.fill_pattern.is_verified() {
            return self.stats.sync.summary().count() as u32 % self.workload.files();
        }
        self.workload.take_turn()
    }

    /// Syncs a file; returns false on failure.
    pub(super) fn sync_file(&mut self, file: u32, kind: SyncKind) -> bool {
        let begin = exact_ns();
        if let Some(iolog) = &mut self.observers.iolog {
            iolog.record_sync(file, kind, begin);
        }
        if let Err(errno) = self.engine.sync(file, kind) {
            self.fail_file(errno, "sync".into(), file);
            return false;
        }
        self.stats.sync.record(exact_ns() - begin);
        true
    }
}

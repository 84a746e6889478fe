//! Reads back the writes of each pass: which passes do so, their time, and the wrong blocks.

use uringfs::Errno;

use super::clock::exact_ns;
use super::failure::Failure;
use crate::engine::Io;
use crate::fill_pattern::FillPattern;
use crate::job::Options;
use crate::workload::Workload;

/// Wrong blocks that are reported one by one.
const MAX_REPORTED: usize = 16;

/// The state of a thread's reading back.
pub struct ReadBack {
    /// Whether the job reads back its writes.
    wanted: bool,
    /// Whether an earlier run has written what is read back.
    of_earlier_run: bool,
    /// Whether the job only reads. Then it verifies the writes of other jobs.
    only_reads: bool,
    /// The workload at the beginning of the pass, until the pass is read back.
    pass: Option<Workload>,
    /// Whether the current pass reads back.
    pub running: bool,
    /// Writes still to be read back of a backlog; `None` is the whole pass.
    backlog: Option<u32>,
    /// Whether reads are verified.
    pub verifies: bool,
    /// The beginning of this reading back, and the time of earlier ones.
    since_ns: u64,
    elapsed_ns: u64,
    /// The first parts of short reads, by slot.
    parts: Vec<(u32, Vec<u8>)>,
    wrong_blocks: Vec<Failure>,
    wrong_count: u64,
}

impl ReadBack {
    /// The state before the first I/O of `workload`.
    pub fn new(options: &Options, fill_pattern: &FillPattern, workload: &Workload) -> Self {
        let (verified, pattern) = (fill_pattern.is_verified(), options.pattern);
        let wanted = verified && pattern.writes() && options.do_verify;
        let only_reads = !pattern.modifies();
        Self {
            wanted,
            of_earlier_run: options.verify_only,
            only_reads,
            pass: wanted.then(|| workload.clone()),
            running: false,
            backlog: None,
            verifies: verified && only_reads,
            since_ns: 0,
            elapsed_ns: 0,
            parts: Vec::new(),
            wrong_blocks: Vec::new(),
            wrong_count: 0,
        }
    }

    /// Begins reading back; returns the workload of the pass, if it has one to read back.
    pub fn begin(&mut self) -> Option<Workload> {
        let pass = self.pass.take()?;
        self.running = true;
        self.verifies = true;
        self.since_ns = exact_ns();
        Some(pass)
    }

    /// Begins reading back the first writes of the pass: `verify_backlog`. Returns the workload, if the job
    /// reads back.
    pub fn begin_backlog(&mut self, writes: u32) -> Option<Workload> {
        let pass = self.begin()?;
        self.backlog = Some(writes);
        Some(pass)
    }

    /// Counts a write that is read back.
    pub fn count(&mut self) {
        if let Some(left) = &mut self.backlog {
            *left -= 1;
        }
    }

    /// Whether all writes of a backlog are being or have been read back.
    pub fn is_backlog_over(&self) -> bool {
        self.backlog == Some(0)
    }

    /// Ends reading back, if it was running. `next` is the workload before the first I/O of the next pass.
    pub fn end(&mut self, fill_pattern: &FillPattern, next: Option<&Workload>) {
        if self.running {
            self.elapsed_ns += exact_ns() - self.since_ns;
        }
        self.running = false;
        self.backlog = None;
        self.verifies = fill_pattern.is_verified() && self.only_reads;
        self.pass = next.filter(|_| self.wanted).cloned();
    }

    /// Restarts the measurement of its time.
    pub fn restart_clock(&mut self, now_ns: u64) {
        (self.elapsed_ns, self.since_ns) = (0, now_ns);
    }

    /// The time of reading back in nanoseconds, the current pass included.
    pub fn elapsed_ns(&self) -> u64 {
        let now = if self.running { exact_ns() - self.since_ns } else { 0 };
        self.elapsed_ns + now
    }

    /// Saves the first part of a short read: the rest uses the buffer from the beginning.
    pub fn save_part(&mut self, slot: u32, bytes: &[u8]) {
        match self.parts.iter_mut().find(|(owner, _)| *owner == slot) {
            Some((_, part)) => part.extend_from_slice(bytes),
            None => self.parts.push((slot, bytes.to_vec())),
        }
    }

    /// Verifies a complete read. `io` is its last part; `buffer` has the length of the whole read.
    #[inline(never)]
    pub fn verify(
        &mut self,
        fill_pattern: &FillPattern,
        io: Io,
        buffer: &mut [u8],
    ) -> Result<(), Failure> {
        let done = buffer.len() - io.length as usize;
        if let Some(at) = self.parts.iter().position(|(owner, _)| *owner == io.slot) {
            buffer.copy_within(..io.length as usize, done);
            buffer[..done].copy_from_slice(&self.parts.swap_remove(at).1);
        }
        let offset = io.offset - done as u64;
        let Err(wrong) = fill_pattern.verify(buffer, offset, self.running && !self.of_earlier_run)
        else {
            return Ok(());
        };
        let wrong = Failure::new(Errno::ILSEQ, wrong.to_string(), Some(io.file));
        self.wrong_count += 1;
        if self.wrong_blocks.len() < MAX_REPORTED {
            self.wrong_blocks.push(wrong.clone());
        }
        Err(wrong)
    }

    /// The failure that counts all wrong blocks, if there are any.
    pub fn verdict(&self) -> Option<Failure> {
        let (count, s) = (self.wrong_count, if self.wrong_count == 1 { "" } else { "s" });
        let what = format!("verify found {count} wrong block{s}");
        (count > 0).then(|| Failure::new(Errno::ILSEQ, what, None))
    }

    /// The first wrong blocks.
    pub fn into_wrong_blocks(self) -> Vec<Failure> {
        self.wrong_blocks
    }
}

//! Reading back what a job wrote: which passes do, how long they take, and which blocks were wrong.

use super::clock::exact_ns;
use super::failure::Failure;
use crate::engine::Io;
use crate::fill_pattern::FillPattern;
use crate::job::Options;
use crate::workload::Workload;
use rustix::io::Errno;

/// Wrong blocks that are told one by one.
const MAX_REPORTED: usize = 16;

/// What a thread knows of its reading back.
pub struct ReadBack {
    /// The job reads back what it writes.
    wanted: bool,
    /// The job writes; what it reads beside is not held against anything.
    writes: bool,
    /// The pass as it was before its first step, until what it wrote has been read back.
    pass: Option<Workload>,
    /// The pass is one that reads back.
    pub running: bool,
    /// Reads are held against what was written.
    pub verifies: bool,
    /// Since when it reads back, and how long passes that did took before.
    since_ns: u64,
    elapsed_ns: u64,
    /// The first bytes of reads that come in parts, by slot.
    parts: Vec<(u32, Vec<u8>)>,
    wrong_blocks: Vec<Failure>,
    wrong_count: u64,
}

impl ReadBack {
    /// Before the first step of `workload`.
    pub fn new(options: &Options, fill_pattern: &FillPattern, workload: &Workload) -> Self {
        let (verified, writes) = (fill_pattern.is_verified(), options.pattern.writes());
        let wanted = verified && writes && options.do_verify;
        Self {
            wanted,
            writes,
            pass: wanted.then(|| workload.clone()),
            running: false,
            // A job that only reads is held against what others wrote.
            verifies: verified && !writes,
            since_ns: 0,
            elapsed_ns: 0,
            parts: Vec::new(),
            wrong_blocks: Vec::new(),
            wrong_count: 0,
        }
    }

    /// The pass that wrote, if it is to be read back now.
    pub fn begin(&mut self) -> Option<Workload> {
        let pass = self.pass.take()?;
        self.running = true;
        self.verifies = true;
        self.since_ns = exact_ns();
        Some(pass)
    }

    /// The pass is over, and was one that read back or there is nothing to. `next` is what comes
    /// after it, before its first step.
    pub fn end(&mut self, fill_pattern: &FillPattern, next: Option<&Workload>) {
        if self.running {
            self.elapsed_ns += exact_ns() - self.since_ns;
        }
        self.running = false;
        self.verifies = fill_pattern.is_verified() && !self.writes;
        self.pass = next.filter(|_| self.wanted).cloned();
    }

    /// Counts its time from here on.
    pub fn restart_clock(&mut self, now_ns: u64) {
        (self.elapsed_ns, self.since_ns) = (0, now_ns);
    }

    /// How long it took, the pass that is under way included.
    pub fn elapsed_ns(&self) -> u64 {
        let now = if self.running { exact_ns() - self.since_ns } else { 0 };
        self.elapsed_ns + now
    }

    /// Puts aside what a read has brought so far: its rest uses the buffer from the beginning.
    pub fn save_part(&mut self, slot: u32, bytes: &[u8]) {
        match self.parts.iter_mut().find(|(owner, _)| *owner == slot) {
            Some((_, part)) => part.extend_from_slice(bytes),
            None => self.parts.push((slot, bytes.to_vec())),
        }
    }

    /// Holds what a read brought against what was written there. `io` is its last part, `buffer`
    /// as long as the whole.
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
        let Err(wrong) = fill_pattern.verify(buffer, offset, self.running) else { return Ok(()) };
        let wrong = Failure { errno: Errno::ILSEQ, what: wrong.to_string(), file: Some(io.file) };
        self.wrong_count += 1;
        if self.wrong_blocks.len() < MAX_REPORTED {
            self.wrong_blocks.push(wrong.clone());
        }
        Err(wrong)
    }

    /// What it comes to, if blocks were wrong.
    pub fn verdict(&self) -> Option<Failure> {
        let (count, s) = (self.wrong_count, if self.wrong_count == 1 { "" } else { "s" });
        let what = format!("verify found {count} wrong block{s}");
        (count > 0).then_some(Failure { errno: Errno::ILSEQ, what, file: None })
    }

    /// The first blocks that were wrong.
    pub fn into_wrong_blocks(self) -> Vec<Failure> {
        self.wrong_blocks
    }
}

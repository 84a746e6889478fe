//! Reading back what a job wrote: which passes do, how long they take, and which blocks were wrong.

use super::clock::exact_ns;
use super::failure::Failure;
use crate::contents::Contents;
use crate::engine::Io;
use crate::job::Options;
use crate::workload::Workload;
use rustix::io::Errno;

/// Wrong blocks that are told one by one.
const MOST_TOLD: usize = 16;

/// What a thread knows of its reading back.
pub struct ReadBack {
    /// The job reads back what it writes.
    wanted: bool,
    /// The job writes; what it reads beside is not held against anything.
    writes: bool,
    /// The pass as it was before its first step, until what it wrote has been read back.
    pass: Option<Workload>,
    /// The pass is one that reads back.
    pub under_way: bool,
    /// Reads are held against what was written.
    pub compares: bool,
    /// Since when it reads back, and how long passes that did took before.
    since_ns: u64,
    took_ns: u64,
    /// The first bytes of reads that come in parts, by slot.
    parts: Vec<(u32, Vec<u8>)>,
    wrong_blocks: Vec<Failure>,
    wrong_count: u64,
}

impl ReadBack {
    /// Before the first step of `workload`.
    pub fn new(options: &Options, contents: &Contents, workload: &Workload) -> Self {
        let (verified, writes) = (contents.are_verified(), options.pattern.writes());
        let wanted = verified && writes && options.do_verify;
        Self {
            wanted,
            writes,
            pass: wanted.then(|| workload.clone()),
            under_way: false,
            // A job that only reads is held against what others wrote.
            compares: verified && !writes,
            since_ns: 0,
            took_ns: 0,
            parts: Vec::new(),
            wrong_blocks: Vec::new(),
            wrong_count: 0,
        }
    }

    /// The pass that wrote, if it is to be read back now.
    pub fn begin(&mut self) -> Option<Workload> {
        let pass = self.pass.take()?;
        self.under_way = true;
        self.compares = true;
        self.since_ns = exact_ns();
        Some(pass)
    }

    /// The pass is over, and was one that read back or there is nothing to. `next` is what comes
    /// after it, before its first step.
    pub fn end(&mut self, contents: &Contents, next: Option<&Workload>) {
        if self.under_way {
            self.took_ns += exact_ns() - self.since_ns;
        }
        self.under_way = false;
        self.compares = contents.are_verified() && !self.writes;
        self.pass = next.filter(|_| self.wanted).cloned();
    }

    /// Counts its time from here on.
    pub fn restart_clock(&mut self, now_ns: u64) {
        (self.took_ns, self.since_ns) = (0, now_ns);
    }

    /// How long it took, the pass that is under way included.
    pub fn took_ns(&self) -> u64 {
        let now = if self.under_way { exact_ns() - self.since_ns } else { 0 };
        self.took_ns + now
    }

    /// Puts aside what a read has brought so far: its rest uses the buffer from the beginning.
    pub fn keep_part(&mut self, slot: u32, bytes: &[u8]) {
        match self.parts.iter_mut().find(|(of, _)| *of == slot) {
            Some((_, part)) => part.extend_from_slice(bytes),
            None => self.parts.push((slot, bytes.to_vec())),
        }
    }

    /// Holds what a read brought against what was written there. `io` is its last part, `buffer`
    /// as long as the whole.
    #[inline(never)]
    pub fn compare(
        &mut self,
        contents: &Contents,
        io: Io,
        buffer: &mut [u8],
    ) -> Result<(), Failure> {
        let done = buffer.len() - io.length as usize;
        if let Some(at) = self.parts.iter().position(|(of, _)| *of == io.slot) {
            buffer.copy_within(..io.length as usize, done);
            buffer[..done].copy_from_slice(&self.parts.swap_remove(at).1);
        }
        let offset = io.offset - done as u64;
        let Err(wrong) = contents.compare(buffer, offset, self.under_way) else { return Ok(()) };
        let wrong = Failure { errno: Errno::ILSEQ, what: wrong.to_string(), file: Some(io.file) };
        self.wrong_count += 1;
        if self.wrong_blocks.len() < MOST_TOLD {
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

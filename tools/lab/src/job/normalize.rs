//! Checks the keys of a job against each other, after all are parsed, and makes values what fio makes of them.

use super::direction::DIRECTIONS;
use super::distribution::Distribution;
use super::keys::assign;
use super::options::{BlockRange, Options, SyncWrites, Verify};
use super::value::SizeOrPercent;
use crate::verify::HEADER_BYTES;
use std::time::Duration;

impl Options {
    /// Checks keys against each other, after all are parsed. As fio does, it clamps batches to the depth
    /// and raises an upper limit that is below its lower limit. Combinations that cannot work are errors.
    pub(super) fn normalize(&mut self) -> Result<(), String> {
        if self.batch_submit == 0 || self.batch_submit > self.depth {
            self.batch_submit = self.depth;
        }
        self.complete_min = self.complete_min.min(self.depth);
        if self.depth_low == 0 || self.depth_low > self.depth {
            self.depth_low = self.depth;
        }
        if self.complete_max == 0 || self.complete_max > self.depth {
            self.complete_max = self.depth;
        }
        self.complete_max = self.complete_max.max(self.complete_min);
        if self.time_based && self.runtime.is_none_or(|time| time.is_zero()) {
            return Err("time_based needs a runtime".into());
        }
        if self.polled && !self.direct {
            return Err("hipri needs direct=1: only direct I/O is polled".into());
        }
        if self.rate.iter().zip(self.rate_iops).any(|(&rate, iops)| rate != 0 && iops != 0) {
            return Err("rate and rate_iops exclude each other in one direction".into());
        }
        if self.iolog_copy.is_some() && self.jobs > 1 {
            return Err("write_iolog names one file; give each thread a job of its own".into());
        }
        self.normalize_blocks();
        self.check_batch()?;
        self.check_number_of_ios()?;
        let mut unzoned =
            self.zones.iter().zip(self.pattern.chosen()).filter(|(zones, _)| zones.is_empty());
        if self.distribution == Distribution::Zoned && unzoned.any(|(_, used)| used) {
            return Err("random_distribution has no zones for a direction of the job".into());
        }
        self.normalize_verify()?;
        if self.iolog.is_some() && self.verify.is_some() {
            return Err("verify and read_iolog exclude each other: a trace has no bytes".into());
        }
        // As with fio: pages that have been read in advance are not dropped.
        self.invalidate &= !self.pre_read;
        if self.max_latency != [Duration::ZERO; DIRECTIONS] && !self.measure().lat {
            return Err("max_latency needs total latencies: no disable_lat or gtod_reduce".into());
        }
        if !self.latency_target.is_zero() && !self.measure().lat {
            return Err(
                "latency_target needs total latencies: no disable_lat or gtod_reduce".into()
            );
        }
        // As with fio: without a duration nothing is judged.
        self.steady = self.steady.filter(|_| !self.steady_duration.is_zero());
        const MAX_STEADY: Duration = Duration::from_secs(86_400);
        if self.steady_duration > MAX_STEADY {
            return Err("steadystate_duration is more than a day".into());
        }
        if self.steady.is_some() && !self.measure().latency() {
            return Err("steadystate needs times of I/Os: no gtod_reduce".into());
        }
        let logs = [&self.bandwidth_log, &self.iops_log, &self.latency_log];
        if logs.iter().any(|log| log.is_some()) && !self.measure().latency() {
            return Err("logs need times of I/Os: no gtod_reduce".into());
        }
        if let Some(SizeOrPercent::Bytes(size)) = self.size
            && size < self.largest_block()
        {
            return Err(format!("size={size} is less than one block of {}", self.largest_block()));
        }
        // The buffers are allocated before the run: depth x block bytes for each thread.
        const MAX_BUFFER_BYTES: u64 = 16 << 30;
        let memory = u64::from(self.depth) * self.buffer_bytes() * u64::from(self.jobs);
        if memory > MAX_BUFFER_BYTES {
            return Err(format!(
                "iodepth x bs x numjobs is {} GiB of buffers; at most 16 GiB",
                memory >> 30
            ));
        }
        Ok(())
    }

    fn normalize_blocks(&mut self) {
        // As with fio: `bsrange` counts, wherever `bs` stands.
        assign(&mut self.block, self.block_range);
        for (range, split) in self.block.iter_mut().zip(&self.block_split) {
            let sizes = || split.iter().map(|share| share.bytes);
            if let (Some(min), Some(max)) = (sizes().min(), sizes().max()) {
                *range = BlockRange { min, max };
            }
        }
        // A block that follows another one may have been visited.
        let mut shares = self.random_percentage.iter().zip(self.pattern.chosen());
        if self.pattern.random() && shares.any(|(percent, used)| used && *percent < 100) {
            self.random_map = false;
        }
        // As with fio.
        let mut aligned = self.block_align.iter().zip(&self.block);
        if self.pattern.random() && aligned.any(|(align, range)| ![0, range.min].contains(align)) {
            self.random_map = false;
        }
    }

    /// Checks `batch`: a batch moves whole buffers of one length, and its writes are not durable.
    fn check_batch(&self) -> Result<(), String> {
        let one_size = self.smallest_block() == self.largest_block();
        match self.batch {
            true if self.iolog.is_some() => {
                Err("batch and read_iolog exclude each other: a trace has any lengths".into())
            }
            true if self.pattern.trims() => Err("batch is for reads and writes: no trims".into()),
            true if !one_size => Err("batch needs blocks of one size".into()),
            true if self.pattern.writes() && self.sync != SyncWrites::No => {
                Err("batch has no durable writes: no sync=".into())
            }
            _ => Ok(()),
        }
    }

    /// Checks `number_ios`, whose bytes must be known before the run.
    fn check_number_of_ios(&self) -> Result<(), String> {
        let mut sizes = self.blocks_in_use().flat_map(|range| [range.min, range.max]);
        match self.number_ios {
            0 => Ok(()),
            _ if self.time_based => Err("number_ios and time_based exclude each other".into()),
            _ if sizes.any(|size| size != self.largest_block()) => {
                Err("number_ios needs blocks of one size; give io_size".into())
            }
            _ => Ok(()),
        }
    }

    fn normalize_verify(&mut self) -> Result<(), String> {
        // As with fio: a pattern is verified unless the job sets verify=0.
        if self.verify.is_none() && !self.verify_pattern.is_empty() {
            self.verify = Some(Verify::Pattern);
        }
        self.verify = self.verify.filter(|verify| *verify != Verify::Nothing);
        // A job that does not write verifies in any case.
        self.verify_only &= self.pattern.writes();
        if self.verify_only && (self.verify.is_none() || !self.do_verify || self.time_based) {
            return Err("verify_only needs verify, and neither do_verify=0 nor time_based".into());
        }
        if self.verify.is_none() || !self.do_verify {
            self.verify_backlog = 0;
        }
        if self.verify == Some(Verify::Pattern) && self.verify_pattern.is_empty() {
            return Err("verify=pattern needs a verify_pattern".into());
        }
        // A block that began inside another one would destroy its header.
        let mut aligned = self.block_align.iter().zip(&self.block);
        if self.verify.is_some() && aligned.any(|(align, range)| align % range.min != 0) {
            return Err("verify needs a blockalign that is a multiple of the smallest block".into());
        }
        let smallest = self.smallest_block();
        if self.verify == Some(Verify::Crc32c) && smallest < HEADER_BYTES as u64 {
            return Err(format!(
                "verify=crc32c needs blocks of {HEADER_BYTES} bytes; one is {smallest}"
            ));
        }
        Ok(())
    }
}

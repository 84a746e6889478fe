//! Logs of a thread over time, in fio's format: `write_bw_log`, `write_iops_log`, `write_lat_log`. A line is
//! an I/O, or with `log_avg_msec` a direction in a window: time in milliseconds, value, direction, bytes,
//! offset (`log_offset`), priority. Lines are collected in a buffer of fixed size.

use super::failure::Failure;
use crate::Error;
use crate::job::{DIRECTIONS, Job};
use crate::workload::IoOp;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::PathBuf;
use uringfs::Errno;

/// The buffer of a log: about 50,000 lines.
const BUFFER_BYTES: usize = 1 << 20;

/// A completed I/O. Times are those of the monotonic clock in nanoseconds.
#[derive(Debug, Clone, Copy)]
pub struct LoggedIo {
    /// Read, write or trim.
    pub op: IoOp,
    /// Offset in the file, in bytes.
    pub offset: u64,
    /// Length in bytes.
    pub length: u32,
    /// The creation.
    pub created_ns: u64,
    /// The submission.
    pub issued_ns: u64,
    /// The completion.
    pub done_ns: u64,
}

/// The logs of one thread.
#[derive(Debug)]
pub struct IoLogs {
    logs: Vec<Log>,
    /// The length of a window; 0 logs each I/O.
    window_ns: u64,
    /// Windows have the longest latency instead of the mean.
    log_maximum: bool,
    log_offset: bool,
    /// The beginning of the measurement; nothing is logged before.
    began_ns: Option<u64>,
    /// The last I/O since then.
    last_ns: u64,
}

/// The value of a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Figure {
    Bandwidth,
    Ios,
    Submission,
    Completion,
    Total,
}

#[derive(Debug)]
struct Log {
    figure: Figure,
    path: PathBuf,
    out: BufWriter<File>,
    windows: [Window; DIRECTIONS],
    error: Option<io::Error>,
}

/// The I/Os of one direction since the last line.
#[derive(Debug, Clone, Copy, Default)]
struct Window {
    /// Since the beginning of the measurement.
    begin_ns: u64,
    ios: u64,
    bytes: u64,
    sum_ns: u64,
    max_ns: u64,
}

impl IoLogs {
    /// The paths of a thread's logs; `number` counts the threads of all jobs from 1.
    pub fn paths(job: &Job, number: usize, synchronous: bool) -> impl Iterator<Item = PathBuf> {
        Self::figures(job, number, synchronous).map(|(_, path)| path)
    }

    fn figures(
        job: &Job,
        number: usize,
        synchronous: bool,
    ) -> impl Iterator<Item = (Figure, PathBuf)> {
        let options = &job.options;
        let measure = options.measure();
        let lat = &options.latency_log;
        let wanted = [
            (&options.bandwidth_log, true, Figure::Bandwidth, "bw"),
            (&options.iops_log, true, Figure::Ios, "iops"),
            (lat, measure.slat && !synchronous, Figure::Submission, "slat"),
            (lat, measure.clat, Figure::Completion, "clat"),
            (lat, measure.lat, Figure::Total, "lat"),
        ];
        wanted.into_iter().filter_map(move |(prefix, is_measured, figure, kind)| {
            let prefix = prefix.as_ref().filter(|_| is_measured)?;
            let prefix = if prefix.is_empty() { &job.name } else { prefix };
            Some((figure, PathBuf::from(format!("{prefix}_{kind}.{number}.log"))))
        })
    }

    /// Creates the files of a thread. Older ones are replaced. `None` if the job has no logs.
    ///
    /// # Errors
    /// A file cannot be created.
    pub fn create(job: &Job, number: usize, synchronous: bool) -> Result<Option<Self>, Error> {
        let options = &job.options;
        let mut logs = Vec::new();
        for (figure, path) in Self::figures(job, number, synchronous) {
            let file = File::create(&path)
                .map_err(|error| Error::input(path.display().to_string()).because(error))?;
            let out = BufWriter::with_capacity(BUFFER_BYTES, file);
            logs.push(Log {
                figure,
                path,
                out,
                windows: [Window::default(); DIRECTIONS],
                error: None,
            });
        }
        Ok((!logs.is_empty()).then_some(Self {
            logs,
            window_ns: options.log_window.as_nanos() as u64,
            log_maximum: options.log_maximum,
            log_offset: options.log_offset,
            began_ns: None,
            last_ns: 0,
        }))
    }

    /// Begins the measurement. A search for the depth begins it again, and the logs have all of the search.
    pub fn begin(&mut self, now_ns: u64) {
        self.began_ns.get_or_insert(now_ns);
    }

    /// Logs a completed I/O.
    pub fn record(&mut self, io: LoggedIo) {
        let Some(began_ns) = self.began_ns else { return };
        let elapsed_ns = io.done_ns.saturating_sub(began_ns);
        self.last_ns = elapsed_ns;
        for log in &mut self.logs {
            if self.window_ns == 0 {
                let offset = self.log_offset.then_some(io.offset);
                let value = log.figure.of_io(io);
                log.write(elapsed_ns, value, io.op, io.length.into(), offset);
                continue;
            }
            log.windows[io.op as usize].add(log.figure.latency_ns(io), io.length);
            if elapsed_ns.saturating_sub(log.windows[io.op as usize].begin_ns) >= self.window_ns {
                log.end_window(elapsed_ns, io.op, self.log_maximum, self.log_offset);
                // As with fio, windows begin at multiples of their length.
                let begin_ns = elapsed_ns / self.window_ns * self.window_ns;
                log.windows[io.op as usize] = Window { begin_ns, ..Window::default() };
            }
        }
    }

    /// Ends the last windows with the last I/O, and writes what is left.
    ///
    /// # Errors
    /// The first write that has failed.
    pub fn finish(mut self) -> Result<(), Failure> {
        for mut log in self.logs.drain(..) {
            for op in IoOp::ALL {
                if log.windows[op as usize].ios > 0 {
                    log.end_window(self.last_ns, op, self.log_maximum, self.log_offset);
                }
            }
            let flushed = log.out.flush();
            if let Some(error) = log.error.or(flushed.err()) {
                let errno = error.raw_os_error().map_or(Errno::IO, Errno::from_raw_os_error);
                let what = format!("write of the log {}", log.path.display());
                // A part of a log would look like the log of a shorter run. It may be gone already.
                let _ = std::fs::remove_file(&log.path);
                return Err(Failure::new(errno, what, None));
            }
        }
        Ok(())
    }
}

impl Figure {
    /// The latency of an I/O that the log has; 0 for other figures.
    fn latency_ns(self, io: LoggedIo) -> u64 {
        match self {
            Self::Bandwidth | Self::Ios => 0,
            Self::Submission => io.issued_ns.saturating_sub(io.created_ns),
            Self::Completion => io.done_ns.saturating_sub(io.issued_ns),
            Self::Total => io.done_ns.saturating_sub(io.created_ns),
        }
    }

    /// The value of one I/O.
    fn of_io(self, io: LoggedIo) -> u64 {
        match self {
            Self::Bandwidth => {
                kib_per_second(io.length.into(), io.done_ns.saturating_sub(io.issued_ns))
            }
            // As with fio: an I/O.
            Self::Ios => 1,
            Self::Submission | Self::Completion | Self::Total => self.latency_ns(io),
        }
    }
}

impl Window {
    fn add(&mut self, latency_ns: u64, length: u32) {
        self.ios += 1;
        self.bytes += u64::from(length);
        self.sum_ns = self.sum_ns.saturating_add(latency_ns);
        self.max_ns = self.max_ns.max(latency_ns);
    }
}

impl Log {
    fn end_window(&mut self, elapsed_ns: u64, op: IoOp, log_maximum: bool, log_offset: bool) {
        let Window { begin_ns, ios, bytes, sum_ns, max_ns } = self.windows[op as usize];
        let span_ns = elapsed_ns.saturating_sub(begin_ns);
        let value = match self.figure {
            Figure::Bandwidth => kib_per_second(bytes, span_ns),
            Figure::Ios => per_second(ios, span_ns),
            _ if log_maximum => max_ns,
            // Rounded to the nearest, as with fio.
            _ => (sum_ns + ios / 2) / ios.max(1),
        };
        self.write(elapsed_ns, value, op, 0, log_offset.then_some(0));
    }

    fn write(&mut self, elapsed_ns: u64, value: u64, op: IoOp, length: u64, offset: Option<u64>) {
        let (ms, direction) = (elapsed_ns / 1_000_000, op as u8);
        let written = match offset {
            Some(offset) => {
                writeln!(self.out, "{ms}, {value}, {direction}, {length}, {offset}, 0")
            }
            None => writeln!(self.out, "{ms}, {value}, {direction}, {length}, 0"),
        };
        if let Err(error) = written {
            self.error.get_or_insert(error);
        }
    }
}

fn per_second(count: u64, ns: u64) -> u64 {
    (u128::from(count) * 1_000_000_000).checked_div(ns.into()).unwrap_or(0) as u64
}

fn kib_per_second(bytes: u64, ns: u64) -> u64 {
    per_second(bytes, ns) >> 10
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::{Parser, UnknownKeys};
    use std::path::Path;

    const MS: u64 = 1_000_000;

    /// Logs six I/Os, one each 40 ms, and returns the files by name.
    fn files(keys: &str) -> Vec<(String, String)> {
        let folder = tempfile::tempdir().unwrap();
        let prefix = folder.path().join("log");
        let mut parser = Parser::new(&|_| None, UnknownKeys::Refuse);
        let keys = keys.replace("PREFIX", prefix.to_str().unwrap());
        parser.bytes(format!("[j]\n{keys}").as_bytes(), "x.fio").unwrap();
        let job = parser.finish().unwrap().jobs.remove(0);
        let mut logs = IoLogs::create(&job, 3, false).unwrap().unwrap();
        let io = |n: u64, op| LoggedIo {
            op,
            offset: n << 20,
            length: 4096,
            created_ns: 1000 * MS + n * 40 * MS - 3 * MS,
            issued_ns: 1000 * MS + n * 40 * MS - 2 * MS,
            done_ns: 1000 * MS + n * 40 * MS + n * MS,
        };
        logs.record(io(9, IoOp::Read));
        logs.begin(1000 * MS);
        (1..6).for_each(|n| logs.record(io(n, IoOp::Read)));
        // As a search for the depth does.
        logs.begin(1220 * MS);
        logs.record(io(6, IoOp::Write));
        logs.finish().unwrap();
        let read = |path: &Path| std::fs::read_to_string(path).unwrap();
        let entries = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path());
        let name = |path: &Path| path.file_name().unwrap().to_str().unwrap().to_owned();
        let mut files: Vec<_> = entries.map(|path| (name(&path), read(&path))).collect();
        files.sort();
        files
    }

    #[test]
    fn each_io_is_a_line() {
        let found = files("write_bw_log=PREFIX\nwrite_iops_log=PREFIX\nlog_offset=1\n");
        let bandwidth: Vec<String> = (1..6)
            .map(|n| format!("{}, {}, 0, 4096, {}, 0\n", 41 * n, 4000 / (n + 2), n << 20))
            .collect();
        let bandwidth = format!("{}246, 500, 1, 4096, 6291456, 0\n", bandwidth.concat());
        let ios: Vec<String> =
            (1..6).map(|n| format!("{}, 1, 0, 4096, {}, 0\n", 41 * n, n << 20)).collect();
        let ios = format!("{}246, 1, 1, 4096, 6291456, 0\n", ios.concat());
        let expected = [("log_bw.3.log", bandwidth), ("log_iops.3.log", ios)];
        assert_eq!(found, expected.map(|(name, text)| (name.to_owned(), text)));
    }

    #[test]
    fn latencies_have_a_log_each() {
        let found = files("write_lat_log=PREFIX\n");
        for ((name, text), (kind, more)) in found.iter().zip([("clat", 2), ("lat", 3), ("slat", 1)])
        {
            assert_eq!(*name, format!("log_{kind}.3.log"));
            for (line, n) in text.lines().zip(1..) {
                let value = if kind == "slat" { MS } else { (n + more) * MS };
                assert_eq!(line, format!("{}, {value}, {}, 4096, 0", 41 * n, n / 6));
            }
            assert_eq!(text.lines().count(), 6);
        }
        let found = files("write_lat_log=PREFIX\ndisable_slat=1\ndisable_lat=1\n");
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].0, "log_clat.3.log");
    }

    #[test]
    fn windows_have_rates_and_means() {
        // The I/Os end at 41, 82, 123, 164, 205 and 246 ms.
        let keys =
            "log_avg_msec=100\nwrite_bw_log=PREFIX\nwrite_iops_log=PREFIX\nwrite_lat_log=PREFIX\n";
        let found = files(keys);
        let first_lines = |kind: &str| {
            let name = format!("log_{kind}.3.log");
            let (_, text) = found.iter().find(|(found, _)| *found == name).unwrap();
            text.lines().take(2).map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(first_lines("bw"), ["123, 97, 0, 0, 0", "205, 76, 0, 0, 0"]);
        assert_eq!(first_lines("iops"), ["123, 24, 0, 0, 0", "205, 19, 0, 0, 0"]);
        // 4, 5 and 6 ms; 7 and 8 ms.
        assert_eq!(first_lines("lat"), ["123, 5000000, 0, 0, 0", "205, 7500000, 0, 0, 0"]);
        let found = files(&format!("{keys}log_max_value=1\nlog_offset=1\n"));
        let (_, lat) = found.iter().find(|(name, _)| name == "log_lat.3.log").unwrap();
        assert!(lat.starts_with("123, 6000000, 0, 0, 0, 0\n205, 8000000, 0, 0, 0, 0\n"), "{lat}");
        let last = lat.lines().last().unwrap();
        assert!(
            last.ends_with(", 9000000, 1, 0, 0, 0"),
            "the write is in a window of its own: {last}"
        );
    }

    #[test]
    fn a_log_that_cannot_be_written_is_a_failure() {
        let mut parser = Parser::new(&|_| None, UnknownKeys::Refuse);
        parser.bytes(b"[j]\nwrite_iops_log=/no/such/folder/log\n", "x.fio").unwrap();
        let job = parser.finish().unwrap().jobs.remove(0);
        let error = IoLogs::create(&job, 1, false).unwrap_err().to_string();
        assert!(error.starts_with("/no/such/folder/log_iops.1.log: "), "{error}");
    }
}

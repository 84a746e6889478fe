//! The n-th read, write or flush fails, for every n, once or from then on; or the n-th write finds
//! the host's disk full. Each failure is reported. No sync succeeds after a failed flush.
//! Acknowledged data are there when the volume is opened again, with or without a power cut in
//! between. The names and sizes that are found then survive the next power cut.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::io::Write;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;

use uringfs_buffer::Buffer;
use uringfs_device::backend::sim::{Crash, Fault, Rule, Sim, SimOptions, When, WriteCache};
use uringfs_device::{Device, Errno, Op};
use uringfs_file::{FallocateSize, File};
use uringfs_reactor::{Reactor, ReactorOptions};
use uringfs_volume::{
    CheckOptions, Error, ErrorEvent, EventStream, FormatOptions, OpenOptions, Volume,
};

use crate::random;

const SIZE: u64 = 16 << 20;
const BLOCK: usize = 4096;
const SECTOR: usize = 512;

/// The content of a file. `None` if the name does not exist.
type Content = Option<Vec<u8>>;

/// For each file: the last acknowledged content, and all later ones.
#[derive(Clone, Default)]
struct ExpectedFiles {
    files: BTreeMap<String, Vec<Content>>,
}

impl ExpectedFiles {
    fn now(&self, path: &str) -> Content {
        self.files.get(path).and_then(|contents| contents.last().cloned()).flatten()
    }

    /// Begins to give the file this content.
    fn begin(&mut self, path: &str, content: Content) {
        self.files.entry(path.into()).or_insert(vec![None]).push(content);
    }

    /// The last content is durable.
    fn acknowledge(&mut self, path: &str) {
        let contents = self.files.get_mut(path).expect("the file has a content");
        contents.drain(..contents.len() - 1);
    }

    fn acknowledge_all(&mut self) {
        let paths: Vec<String> = self.files.keys().cloned().collect();
        paths.iter().for_each(|path| self.acknowledge(path));
    }

    /// Whether a file has its acknowledged content, where each sector may also come from a later
    /// content.
    fn allows(&self, path: &str, found: &Content) -> bool {
        let contents = &self.files[path];
        let Some(found) = found else { return contents.contains(&None) };
        let given = || contents.iter().flatten();
        let is_of = |content: &Vec<u8>, at: usize, sector: &[u8]| {
            let there = content.get(at..).unwrap_or_default();
            let there = &there[..there.len().min(sector.len())];
            sector.starts_with(there) && sector[there.len()..].iter().all(|byte| *byte == 0)
        };
        given().any(|content| content.len() == found.len())
            && found.chunks(SECTOR).enumerate().all(|(number, sector)| {
                given().any(|content| is_of(content, number * SECTOR, sector))
            })
    }
}

/// Works on a volume: tries a failed operation twice, then gives up.
struct Worker<'w> {
    volume: &'w Volume,
    reactor: &'w Reactor,
    errors: &'w EventStream,
    expected: ExpectedFiles,
    reported: usize,
    flush_failed: bool,
}

/// An operation failed twice.
#[derive(Debug)]
struct GaveUp;

impl Worker<'_> {
    /// Counts the errors that the volume reported.
    fn listen(&mut self) {
        while let Some(event) = self.errors.try_next() {
            self.reported += 1;
            self.flush_failed |= matches!(event, ErrorEvent::Request { op: Op::Flush, .. });
        }
    }

    fn note<T, E: Into<Failed>>(&mut self, result: Result<T, E>) -> Result<T, GaveUp> {
        result.map_err(|_| {
            self.reported += 1;
            GaveUp
        })
    }

    fn retry_once<T, E: Into<Failed>>(
        &mut self,
        mut what: impl FnMut(&Self) -> Result<T, E>,
    ) -> Result<T, GaveUp> {
        let first = what(self);
        match self.note(first) {
            Ok(done) => Ok(done),
            Err(GaveUp) => {
                let second = what(self);
                self.note(second)
            }
        }
    }

    /// An operation that makes data durable. It must not succeed after a failed flush.
    fn durable<T, E: Into<Failed>>(
        &mut self,
        what: impl FnMut(&Self) -> Result<T, E>,
    ) -> Result<T, GaveUp> {
        let done = self.retry_once(what);
        self.listen();
        assert!(done.is_err() || !self.flush_failed, "a sync succeeded after a failed flush");
        done
    }

    fn sync_all(&mut self) -> Result<(), GaveUp> {
        self.durable(|it| it.volume.sync())?;
        self.expected.acknowledge_all();
        Ok(())
    }

    fn open(&mut self, path: &str) -> Result<File, GaveUp> {
        self.retry_once(|it| it.volume.open_with(path, create()))
    }

    /// An operation that gives a file this content.
    fn set_content(
        &mut self,
        path: &str,
        content: Content,
        what: impl FnMut(&Self) -> Result<(), Errno>,
    ) -> Result<(), GaveUp> {
        self.expected.begin(path, content);
        self.retry_once(what)
    }

    fn write(&mut self, path: &str, offset: usize, bytes: &[u8]) -> Result<(), GaveUp> {
        let file = self.open(path)?;
        let mut content = self.expected.now(path).unwrap_or_default();
        content.resize(content.len().max(offset + bytes.len()), 0);
        content[offset..][..bytes.len()].copy_from_slice(bytes);
        self.set_content(path, Some(content), |it| {
            let write = file.write_at(Buffer::copy_of(bytes), offset as u64);
            it.reactor.block_on(write).0.map(drop)
        })
    }

    /// Reads a file and compares it with its last content.
    fn compare(&mut self, path: &str) -> Result<(), GaveUp> {
        let file = self.open(path)?;
        let read = self.retry_once(|it| content_of(it.reactor, &file))?;
        assert_eq!(Some(read), self.expected.now(path), "{path}");
        Ok(())
    }
}

/// Any error of an operation.
struct Failed;

impl From<Errno> for Failed {
    fn from(_: Errno) -> Failed {
        Failed
    }
}

impl From<Error> for Failed {
    fn from(_: Error) -> Failed {
        Failed
    }
}

fn create() -> OpenOptions {
    OpenOptions::new().read(true).write(true).create(true).mode(0o600).direct(true)
}

fn content_of(reactor: &Reactor, file: &File) -> Result<Vec<u8>, Errno> {
    let (read, bytes) = reactor.block_on(file.read_at(Buffer::zeroed(file.len() as usize), 0));
    read.map(|read| bytes[..read].to_vec())
}

/// Durable appends of records to a log.
fn log(it: &mut Worker<'_>) -> Result<(), GaveUp> {
    let file = it.open("/log")?;
    if it.expected.now("/log").is_none() {
        it.expected.begin("/log", Some(Vec::new()));
    }
    for record in 0..14 {
        let bytes = vec![record as u8 + 1; [200, 512, 4096, 5000][record % 4]];
        let before = it.expected.now("/log").unwrap();
        it.expected.begin("/log", Some([&before[..], &bytes[..]].concat()));
        let append = file.append_durably(Buffer::copy_of(&bytes));
        let appended = it.reactor.block_on(append).0;
        match it.note(appended) {
            Ok(at) => {
                assert_eq!(at as usize, before.len());
                it.listen();
                assert!(!it.flush_failed, "a durable append succeeded after a failed flush");
                it.expected.acknowledge("/log");
            }
            // The record is not there, and the next one takes its place.
            Err(_) if file.len() as usize == before.len() => {
                it.expected.begin("/log", Some(before))
            }
            Err(_) => return Err(GaveUp),
        }
        if record % 5 == 4 {
            it.compare("/log")?;
        }
    }
    it.sync_all()
}

/// Many small files that are renamed and removed.
fn tree(it: &mut Worker<'_>) -> Result<(), GaveUp> {
    for directory in 0..2 {
        let directory = format!("/{directory}");
        it.retry_once(|it| match it.volume.create_dir_with_mode(&directory, 0o700) {
            Err(error) if error.errno() == Errno::EXIST => Ok(()),
            made => made,
        })?;
    }
    for n in 0..12_usize {
        let path = format!("/{}/{n}", n % 2);
        it.write(&path, 0, &vec![n as u8 + 1; 300 * (n + 1)])?;
        if n % 3 == 1 {
            let new = format!("/{}/new {n}", (n + 1) % 2);
            let content = it.expected.now(&path);
            it.expected.begin(&new, content);
            it.expected.begin(&path, None);
            it.retry_once(|it| it.volume.rename(&path, &new))?;
        }
        if n % 4 == 3 {
            it.sync_all()?;
            let old = format!("/{}/{}", (n - 3) % 2, n - 3);
            if it.expected.now(&old).is_some() {
                it.expected.begin(&old, None);
                it.retry_once(|it| it.volume.remove_file(&old))?;
            }
        }
    }
    it.sync_all()?;
    it.compare("/1/11")
}

const TASKS: usize = 4;

/// Tasks that overwrite existing data, each in its own file, and sync.
fn overwrites(it: &mut Worker<'_>) -> Result<(), GaveUp> {
    let mut files = Vec::new();
    for task in 0..TASKS {
        let path = format!("/{task}");
        if it.expected.now(&path).is_none() {
            it.write(&path, 0, &[0xff; 8 * BLOCK])?;
        }
        files.push((it.open(&path)?, path));
    }
    it.sync_all()?;
    for round in 0..5 {
        type Task<'t> = Pin<Box<dyn Future<Output = Result<(), Errno>> + 't>>;
        let mut tasks: Vec<Option<Task<'_>>> = Vec::new();
        for (task, (file, path)) in files.iter().enumerate() {
            let (block, bytes) = ((round * 3 + task) % 7, vec![round as u8 + 1; BLOCK + 512]);
            let mut content = it.expected.now(path).expect("the file has a content");
            content[block * BLOCK..][..bytes.len()].copy_from_slice(&bytes);
            it.expected.begin(path, Some(content));
            tasks.push(Some(Box::pin(async move {
                let write = || file.write_at(Buffer::copy_of(&bytes), (block * BLOCK) as u64);
                // Tried twice.
                if write().await.0.is_err() {
                    write().await.0?;
                }
                file.sync_data().await
            })));
        }
        let mut ended = vec![Ok(()); TASKS];
        it.reactor.block_on(poll_fn(|context| {
            for (task, ended) in tasks.iter_mut().zip(&mut ended) {
                if let Some(Poll::Ready(result)) =
                    task.as_mut().map(|task| task.as_mut().poll(context))
                {
                    (*ended, *task) = (result, None);
                }
            }
            match tasks.iter().all(Option::is_none) {
                true => Poll::Ready(()),
                false => Poll::Pending,
            }
        }));
        drop(tasks);
        for (result, (_, path)) in ended.iter().zip(&files) {
            if it.note(*result).is_ok() {
                it.expected.acknowledge(path);
            }
        }
        it.listen();
        if ended.iter().any(Result::is_err) {
            return Err(GaveUp);
        }
    }
    it.sync_all()?;
    it.compare("/1")
}

/// Overlapping atomic writes to a growing file.
fn atomic_writes(it: &mut Worker<'_>) -> Result<(), GaveUp> {
    it.write("/atomic", 0, &[0xff; 6 * BLOCK])?;
    it.sync_all()?;
    let file = it.open("/atomic")?;
    for round in 0..8 {
        let (block, bytes) = (round % 5, vec![round as u8 + 1; (1 + round % 3) * BLOCK]);
        let mut content = it.expected.now("/atomic").unwrap();
        content.resize(content.len().max(block * BLOCK + bytes.len()), 0);
        content[block * BLOCK..][..bytes.len()].copy_from_slice(&bytes);
        it.expected.begin("/atomic", Some(content));
        it.durable(|it| {
            let write = file.write_atomic(Buffer::copy_of(&bytes), (block * BLOCK) as u64);
            it.reactor.block_on(write).0
        })?;
        it.expected.acknowledge("/atomic");
        if round % 3 == 2 {
            it.compare("/atomic")?;
        }
    }
    Ok(())
}

/// A file that is allocated, punched, truncated and removed.
fn space(it: &mut Worker<'_>) -> Result<(), GaveUp> {
    for round in 0..3_usize {
        let path = format!("/space {}", round % 2);
        let file = it.open(&path)?;
        let operation =
            |it: &mut Worker<'_>,
             content: Vec<u8>,
             what: &dyn Fn(&File) -> uringfs_file::FileOp<Result<(), Errno>>| {
                it.set_content(&path, Some(content), |it| it.reactor.block_on(what(&file)))?;
                it.durable(|it| it.reactor.block_on(file.sync_all()))?;
                it.expected.acknowledge_all();
                Ok(())
            };
        it.write(&path, 0, &vec![round as u8 + 1; 5 * BLOCK + 700])?;
        let mut content = it.expected.now(&path).unwrap();
        content.resize(9 * BLOCK, 0);
        operation(it, content.clone(), &|file| file.set_len(9 * BLOCK as u64))?;
        content[1000..3 * BLOCK].fill(0);
        operation(it, content.clone(), &|file| file.punch_hole(1000, 3 * BLOCK as u64 - 1000))?;
        it.write(&path, BLOCK, &vec![round as u8 + 11; BLOCK + 100])?;
        let mut content = it.expected.now(&path).unwrap();
        content[4 * BLOCK..5 * BLOCK + 100].fill(0);
        let zeroed = BLOCK as u64 + 100;
        operation(it, content.clone(), &|file| {
            file.zero_range(4 * BLOCK as u64, zeroed, FallocateSize::Keep)
        })?;
        content.truncate(BLOCK + 50);
        operation(it, content.clone(), &|file| file.set_len(BLOCK as u64 + 50))?;
        content.resize(12 * BLOCK, 0);
        operation(it, content, &|file| file.allocate(0, 12 * BLOCK as u64, FallocateSize::Extend))?;
        it.compare(&path)?;
        drop(file);
        if round < 2 {
            it.expected.begin(&path, None);
            it.retry_once(|it| it.volume.remove_file(&path))?;
            it.sync_all()?;
        }
    }
    Ok(())
}

type Workload = fn(&mut Worker<'_>) -> Result<(), GaveUp>;

const WORKLOADS: [(&str, Workload); 5] = [
    ("log", log),
    ("tree", tree),
    ("overwrites", overwrites),
    ("atomic writes", atomic_writes),
    ("space", space),
];

/// A volume on which a workload has run.
fn worked_on(workload: Workload, cache: WriteCache, reactor: &Reactor) -> (Sim, ExpectedFiles) {
    let sim = Sim::new(SimOptions::new(SIZE).cache(cache));
    let device = Device::new(sim.clone()).unwrap();
    Volume::format(&device, &FormatOptions::default()).unwrap();
    let volume = Volume::open_on(device).unwrap();
    let expected = work(workload, &volume, reactor, ExpectedFiles::default());
    assert_eq!((expected.1, expected.2), (true, 0));
    drop(volume);
    (sim, expected.0)
}

/// Runs a workload. Returns the contents, whether it completed, and the number of reported errors.
fn work(
    workload: Workload,
    volume: &Volume,
    reactor: &Reactor,
    expected: ExpectedFiles,
) -> (ExpectedFiles, bool, usize) {
    let errors = volume.errors();
    let (reported, flush_failed) = (0, false);
    let mut worker = Worker { volume, reactor, errors: &errors, expected, reported, flush_failed };
    let is_done = workload(&mut worker).is_ok();
    worker.listen();
    (worker.expected, is_done, worker.reported)
}

/// Opens the volume again, checks it, and compares it with the contents.
fn compare(sim: &Sim, expected: &ExpectedFiles, reactor: &Reactor) -> Result<(), String> {
    let device = Device::new(sim.clone()).unwrap();
    let checked = Volume::check(&device, CheckOptions::default(), &mut |_, _| {});
    let report = checked.map_err(|error| error.to_string())?;
    let has_two_copies =
        |line: &String| ["superblock", "catalog head"].iter().any(|start| line.starts_with(start));
    let mut lines = report.findings.iter().map(ToString::to_string);
    if let Some(line) = lines.find(|line| !has_two_copies(line)) {
        return Err(line);
    }
    let volume = Volume::open_on(device).map_err(|error| error.to_string())?;
    for path in expected.files.keys() {
        let found =
            match volume.open_with(path, OpenOptions::new().read(true).write(true).direct(true)) {
                Ok(file) => Some(content_of(reactor, &file).map_err(|errno| errno.to_string())?),
                Err(error) if error.errno() == Errno::NOENT => None,
                Err(error) => return Err(error.to_string()),
            };
        if !expected.allows(path, &found) {
            return Err(format!("{path} holds {:?} bytes", found.map(|found| found.len())));
        }
    }
    volume.create_dir_with_mode("/after", 0o700).map_err(|error| error.to_string())?;
    volume.sync().map_err(|error| error.to_string())
}

/// Opens the volume again and cuts the power at once: names and sizes stay as they were found.
fn stays(sim: &Sim, expected: &ExpectedFiles) -> Result<(), String> {
    let found = |sim: Sim| {
        let volume =
            Volume::open_on(Device::new(sim.clone()).unwrap()).map_err(|e| e.to_string())?;
        let size = |path: &String| {
            volume
                .open_with(path, OpenOptions::new().read(true).write(true).direct(true))
                .map(|file| file.len())
        };
        let sizes: Vec<_> =
            expected.files.keys().map(|path| (path.clone(), size(path).ok())).collect();
        let image = sim.crash_image(Crash::LoseAll);
        Ok::<_, String>((sizes, image))
    };
    let (before, image) = found(sim.clone())?;
    let (after, _) = found(image)?;
    match before == after {
        true => Ok(()),
        false => Err(format!("{before:?}, and after a power cut {after:?}")),
    }
}

/// Runs a workload on a device with this failure. False if the workload never met it.
fn fails(
    workload: Workload,
    (before, expected): &(Sim, ExpectedFiles),
    rule: Rule,
    reactor: &Reactor,
) -> Result<bool, String> {
    let sim = before.crash_image(Crash::KeepAll);
    sim.inject(rule);
    let (mut expected, mut reported) = (expected.clone(), 0);
    match Volume::open_on(Device::new(sim.clone()).unwrap()) {
        Err(_) => reported += 1,
        Ok(volume) => {
            let errors = volume.errors();
            reported += volume.recent_errors().len();
            let done = work(workload, &volume, reactor, expected);
            expected = done.0;
            reported += done.2;
            drop(volume);
            reported += std::iter::from_fn(|| errors.try_next()).count();
        }
    }
    let has_failed = sim.faults_hit() > 0;
    if has_failed && reported == 0 {
        return Err("no error was reported".into());
    }
    sim.clear_faults();
    for crash in [Crash::LoseAll, Crash::KeepAll, Crash::Seeded(1)] {
        let image = sim.crash_image(crash);
        compare(&image, &expected, reactor).map_err(|flaw| format!("{crash:?}: {flaw}"))?;
    }
    stays(&sim, &expected).map_err(|flaw| format!("opened again: {flaw}"))?;
    compare(&sim, &expected, reactor).map_err(|flaw| format!("without a power cut: {flaw}"))?;
    Ok(has_failed)
}

#[test]
fn each_failed_request_is_reported_and_loses_no_acknowledged_data() {
    // Each with the usual volume, and with four times the amount on every kind of cache.
    let stride = (4 / random::scaled(4)).max(1);
    let caches = [WriteCache::VolatileWithFua, WriteCache::Volatile, WriteCache::None];
    let kinds = [
        (Op::Read, Errno::IO),
        (Op::Write, Errno::IO),
        (Op::Write, Errno::NOSPC),
        (Op::Flush, Errno::IO),
    ];
    let runs = AtomicUsize::new(0);
    let fail_all = |cache: WriteCache, how: fn(u64) -> When| {
        let reactor = Reactor::new(ReactorOptions::default()).unwrap();
        for (name, workload) in WORKLOADS {
            let worked_on = worked_on(workload, cache, &reactor);
            for (op, errno) in kinds {
                let failed = (1..).step_by(stride).take_while(|n| {
                    let rule = Rule::new(op, how(*n), Fault::Error(errno));
                    let failed = fails(workload, &worked_on, rule, &reactor);
                    failed.unwrap_or_else(|flaw| panic!("{name}, {cache:?}, {rule:?}: {flaw}"))
                });
                let failed = failed.count();
                assert!(failed > 0, "{name}: no {op:?} failed");
                runs.fetch_add(failed, Ordering::Relaxed);
            }
        }
    };
    for cache in caches.into_iter().take(random::scaled(1)) {
        std::thread::scope(|scope| {
            scope.spawn(|| fail_all(cache, When::Nth));
            scope.spawn(|| fail_all(cache, When::From));
        });
    }
    // To stderr, since the harness captures printed output.
    let runs = runs.into_inner();
    writeln!(std::io::stderr(), "requests that failed, once or for good: {runs}").unwrap();
}

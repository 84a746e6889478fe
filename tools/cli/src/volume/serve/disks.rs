//! The files that a server serves as disks, by their names.

use super::super::exit_codes::{refused, with_io_code};
use super::super::quoting::quoted_if_needed;
use super::super::volume_path::{VolumePath, as_path, join, last_name, with_path};
use super::metrics::{Kind, Metric, Observed, Page, metric};
use super::targets::{OpenTarget, Targets};
use std::ffi::OsStr;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use uringfs::cache::Cache;
use uringfs::device::Access;
use uringfs::{File, OpenOptions};
use uringfs_lab::Error;

/// How the files are opened.
pub(super) struct DiskOptions {
    pub(super) protocol: &'static str,
    /// The socket of their server, by which the metrics tell it from another server of the same files.
    pub(super) address: Option<String>,
    pub(super) read_only: bool,
    /// Reads and writes go through the page cache of the volume.
    pub(super) is_cached: bool,
    /// What to do with a directory instead of serving it.
    pub(super) directory_advice: &'static str,
}

/// A file that is served as a disk.
pub(super) struct Disk {
    data: Arc<DiskData>,
    /// Open for as long as the disk is.
    _target: Option<Arc<OpenTarget>>,
}

/// What the metrics show of a disk.
struct DiskData {
    protocol: &'static str,
    address: Option<String>,
    name: String,
    /// Where it comes from.
    description: String,
    file: File,
    read_only: bool,
    numbers: OnceLock<Numbers>,
}

/// Adds what a protocol knows about a disk, with these labels.
type Numbers = Box<dyn Fn(&mut Page, &[(&str, &str)]) + Send + Sync>;

/// The disks of a server.
pub(super) struct Disks<'t> {
    options: DiskOptions,
    targets: &'t mut Targets,
    disks: Vec<Disk>,
}

impl Disk {
    /// Makes all that was written to it durable, and closes it.
    pub(super) fn close(self) -> Result<(), Error> {
        self.data.file.sync_all().wait().map_err(|errno| {
            let error = std::io::Error::from(errno);
            with_io_code(Error::run(format!("{}: {error}", self.description())), &error)
        })
    }

    pub(super) fn name(&self) -> &str {
        &self.data.name
    }

    pub(super) fn description(&self) -> &str {
        &self.data.description
    }

    pub(super) fn file(&self) -> &File {
        &self.data.file
    }

    /// Lets the metrics show what the protocol knows about it, too.
    pub(super) fn show(
        &self,
        numbers: impl Fn(&mut Page, &[(&str, &str)]) + Send + Sync + 'static,
    ) {
        let _ = self.data.numbers.set(Box::new(numbers));
    }

    /// Whether another one is the same.
    pub(super) fn is_same(&self, other: &Disk) -> bool {
        (self.name(), self.description()) == (other.name(), other.description())
    }
}

const SIZE: Metric = metric("uringfs_disk_size_bytes", Kind::Gauge, "Size of the disk.");
const READ_ONLY: Metric =
    metric("uringfs_disk_read_only", Kind::Gauge, "1 if every change is refused, 0 otherwise.");

impl Observed for DiskData {
    fn observe(&self, page: &mut Page) {
        let mut labels =
            vec![("protocol", self.protocol), ("disk", &self.name), ("target", &self.description)];
        labels.extend(self.address.as_deref().map(|address| ("address", address)));
        page.add(&SIZE, &labels, self.file.len());
        page.add(&READ_ONLY, &labels, self.read_only.into());
        if let Some(numbers) = self.numbers.get() {
            numbers(page, &labels);
        }
    }
}

/// Closes disks. The first error counts, and all are closed.
pub(super) fn close_all(disks: impl IntoIterator<Item = Disk>) -> Result<(), Error> {
    let closed: Vec<_> = disks.into_iter().map(Disk::close).collect();
    closed.into_iter().collect()
}

impl<'t> Disks<'t> {
    pub(super) fn new(options: DiskOptions, targets: &'t mut Targets) -> Disks<'t> {
        Disks { options, targets, disks: Vec::new() }
    }

    pub(super) fn into_vec(self) -> Vec<Disk> {
        self.disks
    }

    /// Opens what an argument names: a file in a volume, or a whole file or device. Its name is `name`, or the last name of its path.
    pub(super) fn add(&mut self, argument: &OsStr, name: Option<&str>) -> Result<(), Error> {
        let path = VolumePath::split(argument)?;
        let is_whole = path.target == argument || Path::new(argument).exists();
        let (opened, last) = match is_whole {
            true => {
                let last = Path::new(argument).file_name().unwrap_or(argument);
                (self.open_whole(argument)?, last.as_encoded_bytes().to_vec())
            }
            false => {
                let last = last_name(&path.bytes).unwrap_or_default().to_vec();
                (self.open_file(&path)?, last)
            }
        };
        let description = argument.to_string_lossy().into_owned();
        self.insert(name.map_or(last, |name| name.as_bytes().to_vec()), description, opened)
    }

    /// Opens each file of a directory in a volume.
    pub(super) fn add_all(&mut self, argument: &OsStr) -> Result<(), Error> {
        let path = VolumePath::parse(argument)?;
        let (_target, volume) = self.targets.volume(&path.target, self.access())?;
        let in_directory = |error| with_path(&path, error);
        let before = self.disks.len();
        for entry in volume.read_dir(as_path(&path.bytes)).map_err(in_directory)? {
            let entry = entry.map_err(in_directory)?;
            if !entry.file_type().is_file() {
                continue;
            }
            let name = entry.file_name().as_encoded_bytes().to_vec();
            let path = path.in_same_volume(join(&path.bytes, &name));
            let opened = self.open_file(&path)?;
            self.insert(name, path.to_string(), opened)?;
        }
        match self.disks.len() == before {
            true => Err(refused(format!("{path}: has no files to serve"))),
            false => Ok(()),
        }
    }

    fn insert(&mut self, name: Vec<u8>, description: String, opened: Opened) -> Result<(), Error> {
        let name = String::from_utf8(name).map_err(|error| {
            let name = quoted_if_needed(error.as_bytes());
            Error::input(format!("{name}: the name of a disk is UTF-8; rename the file, or serve it alone with --name"))
        })?;
        if let Some(other) = self.disks.iter().find(|disk| disk.name() == name) {
            let other = other.description();
            let what = format!("{description}: {other} has the name {name:?} already");
            return Err(Error::input(format!("{what}; rename one of them")));
        }
        let (_target, file) = opened;
        let DiskOptions { protocol, read_only, .. } = self.options;
        let (address, numbers) = (self.options.address.clone(), OnceLock::new());
        let data = DiskData { protocol, address, name, description, file, read_only, numbers };
        let data = Arc::new(data);
        self.targets.registry.insert(&data);
        self.disks.push(Disk { data, _target });
        Ok(())
    }

    fn access(&self) -> Access {
        if self.options.read_only { Access::Read } else { Access::ReadWrite }
    }

    fn open_whole(&mut self, target: &OsStr) -> Result<Opened, Error> {
        let (target, file) = self.targets.whole(target, self.access())?;
        let is_cached = self.options.is_cached;
        Ok((target, if is_cached { file.buffered(&Cache::of_process()) } else { file }))
    }

    fn open_file(&mut self, path: &VolumePath) -> Result<Opened, Error> {
        let (target, volume) = self.targets.volume(&path.target, self.access())?;
        let found =
            volume.metadata(as_path(&path.bytes)).map_err(|error| with_path(path, error))?;
        if found.is_dir() {
            let advice = self.options.directory_advice;
            return Err(refused(format!("{path}: is a directory; {advice}")));
        }
        let options = OpenOptions::new().read(true).write(!self.options.read_only);
        let options = options.direct(!self.options.is_cached);
        let file = options.open(&volume, as_path(&path.bytes));
        Ok((Some(target), file.map_err(|error| with_path(path, error))?))
    }
}

/// A file, and the target that it is in.
type Opened = (Option<Arc<OpenTarget>>, File);

//! [`Mount`]: a volume that is mounted on a directory.

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::iter;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::thread::sched_setaffinity;
use uringfs::reactor::Require;
use uringfs::volume::{AtimePolicy, Statistics};
use uringfs::{Reactor, ReactorOptions, Volume};

use crate::attach::{Attachment, MountId, attach, clone_channel, detach, set_nonblocking};
use crate::control::{ControlVolumes, ControlledVolume, Served, ServedMount};
use crate::notify::Kernel;
use crate::ring::RingQueues;
use crate::session::{MountCache, Session, SessionOptions};

/// Options of a mount.
#[derive(Clone, Debug)]
#[must_use]
pub struct MountOptions {
    source: OsString,
    read_only: bool,
    allow_other: bool,
    access_times: bool,
    executable: bool,
    set_id: bool,
    devices: bool,
    threads: usize,
    session: SessionOptions,
}

impl Default for MountOptions {
    fn default() -> MountOptions {
        MountOptions::new()
    }
}

impl MountOptions {
    /// For the mounting user alone, with one reactor for each processor, at most 8. The kernel caches files, and changes are
    /// durable after 5 seconds at most.
    pub fn new() -> MountOptions {
        MountOptions {
            source: "uringfs".into(),
            read_only: false,
            allow_other: false,
            access_times: true,
            executable: true,
            set_id: false,
            devices: false,
            session: SessionOptions {
                cache: MountCache::Kernel,
                writeback: false,
                commit_interval: Duration::from_secs(5),
                default_permissions: true,
                access_time: AtimePolicy::Relative,
                io_uring: true,
                spin: true,
            },
            threads: thread::available_parallelism().map_or(1, |count| count.get().min(8)),
        }
    }

    /// The name of the volume in `/proc/mounts`. If root mounts a volume on a block device, it is the device's path instead.
    pub fn source(mut self, source: impl Into<OsString>) -> MountOptions {
        self.source = source.into();
        self
    }

    /// Refuses every change.
    pub fn read_only(mut self, read_only: bool) -> MountOptions {
        self.read_only = read_only;
        self
    }

    /// Lets other users in. For an ordinary user `/etc/fuse.conf` has to allow it.
    pub fn allow_other(mut self, allow_other: bool) -> MountOptions {
        self.allow_other = allow_other;
        self
    }

    /// False: reads leave access times alone.
    pub fn access_times(mut self, access_times: bool) -> MountOptions {
        self.access_times = access_times;
        self.session.access_time = match access_times {
            true => AtimePolicy::Relative,
            false => AtimePolicy::Never,
        };
        self
    }

    /// False: no program in the volume can be run.
    pub fn executable(mut self, executable: bool) -> MountOptions {
        self.executable = executable;
        self
    }

    /// True: set-ID bits and capabilities of programs in the volume have effect. Only root can mount so, and only a volume that
    /// no other user can write.
    pub fn set_id(mut self, set_id: bool) -> MountOptions {
        self.set_id = set_id;
        self
    }

    /// True: device nodes in the volume are devices. As with [`Self::set_id`].
    pub fn devices(mut self, devices: bool) -> MountOptions {
        self.devices = devices;
        self
    }

    /// Where the bytes of files are cached.
    pub fn cache(mut self, cache: MountCache) -> MountOptions {
        self.session.cache = cache;
        self
    }

    /// With [`MountCache::Kernel`], the kernel gathers writes in its own page cache and sends them later, in long runs. A write
    /// error is then reported by `fsync` or `close`, as on local file systems. `SEEK_DATA` and `SEEK_HOLE` take all bytes of a
    /// file for data.
    pub fn writeback(mut self, writeback: bool) -> MountOptions {
        self.session.writeback = writeback;
        self
    }

    /// The longest time that a change waits until it is made durable without an `fsync`.
    pub fn commit_interval(mut self, commit_interval: Duration) -> MountOptions {
        self.session.commit_interval = commit_interval;
        self
    }

    /// False: takes all requests over `/dev/fuse`, even if the kernel passes them over io_uring, which root allows it by the
    /// parameter `enable_uring` of the module fuse.
    pub fn io_uring(mut self, io_uring: bool) -> MountOptions {
        self.session.io_uring = io_uring;
        self
    }

    /// False: a thread that has answered all of its requests sleeps at once. Otherwise it may spin for the next one for up to
    /// 50 us, which programs that do one thing after another gain, and which costs processor time.
    pub fn spin(mut self, spin: bool) -> MountOptions {
        self.session.spin = spin;
        self
    }

    /// The number of threads that serve requests, each with a reactor of its own; at least 1.
    pub fn threads(mut self, threads: usize) -> MountOptions {
        self.threads = threads.max(1);
        self
    }

    /// All options, in the words of `uringfs mount -o`.
    fn words(&self) -> String {
        let cache = match self.session.cache {
            MountCache::Kernel => "cache=kernel",
            MountCache::Volume => "cache=volume",
            MountCache::None => "cache=none",
        };
        let words = [
            (if self.read_only { "ro" } else { "rw" }, true),
            ("allow_other", self.allow_other),
            ("noatime", !self.access_times),
            ("noexec", !self.executable),
            ("suid", self.set_id),
            ("dev", self.devices),
            (cache, true),
            ("writeback", self.session.writeback),
            ("io_uring=off", !self.session.io_uring),
            ("spin=off", !self.session.spin),
        ];
        let words = words.iter().filter(|(_, is_set)| *is_set).map(|(word, _)| *word);
        let commit = format!("commit={}", self.session.commit_interval.as_secs());
        words.chain([&*commit]).collect::<Vec<_>>().join(",")
    }
}

/// A mounted volume.
///
/// The kernel keeps names and attributes, and with [`MountCache::Kernel`](crate::MountCache::Kernel) bytes, for as long as it
/// likes. So a program that serves a mount changes the volume only through the mount or its [control socket](Self::control),
/// which tells the kernel; other changes in the volume may stay unseen.
pub struct Mount {
    volume: Volume,
    unmounter: Unmounter,
    channels: Vec<OwnedFd>,
    options: MountOptions,
    session: Arc<Session>,
    control: Option<ControlledVolume>,
    observed: MountObserver,
}

/// Looks at the volume of a [`Mount`] from any thread. Once that is served, this does not keep the volume open.
#[derive(Clone)]
pub struct MountObserver(Arc<Mutex<Option<Volume>>>);

/// Unmounts a [`Mount`], from any thread. Another file system that is mounted over it, or in its place, stays.
#[derive(Clone, Debug)]
pub struct Unmounter {
    directory: PathBuf,
    mount: MountId,
}

impl Mount {
    /// Mounts a volume. Requests wait until [`Self::serve`] runs.
    ///
    /// If root mounts a volume on a block device, the mount has the type `fuseblk`: the kernel keeps other users from the
    /// device, `umount(2)` returns when the volume is closed, and from Linux 6.18 `syncfs(2)` when all is durable. Otherwise,
    /// and where the kernel refuses that, the type is `fuse`.
    ///
    /// # Errors
    /// Those of `mount(2)` for root, what `fusermount3` reports for other users; ENOENT without `/dev/fuse`. EBUSY if the
    /// block device is mounted already, for reading only as it is now.
    pub fn new(
        volume: Volume,
        directory: impl AsRef<Path>,
        options: &MountOptions,
    ) -> io::Result<Mount> {
        let directory = directory.as_ref().canonicalize()?;
        let channel = attach(&Attachment {
            source: &options.source,
            device: volume.device(),
            directory: &directory,
            read_only: options.read_only || volume.is_read_only(),
            allow_other: options.allow_other,
            access_times: options.access_times,
            executable: options.executable,
            set_id: options.set_id,
            devices: options.devices,
        })?;
        let mount = MountId::on(&directory).inspect_err(|_| {
            let _ = detach(&directory, true);
        })?;
        let unmounter = Unmounter { directory, mount };
        let clones = (1..options.threads).map(|_| clone_channel(&channel));
        let clones = clones.collect::<io::Result<Vec<_>>>();
        let clones = clones.inspect_err(|_| unmounter.unmount_unserved())?;
        let channels = iter::once(channel).chain(clones).collect();
        let mut options = options.clone();
        options.read_only |= volume.is_read_only();
        Ok(Mount::with(volume, unmounter, channels, options))
    }

    /// Serves a connection that another program has made and mounted: a descriptor of `/dev/fuse`, or a `SOCK_SEQPACKET`
    /// socket, each of whose messages is a request or a reply. One thread serves it. Of the options, those of the `mount(2)`
    /// call have no effect.
    ///
    /// # Errors
    /// Those of `fcntl(2)`.
    pub fn on_connection(
        connection: OwnedFd,
        volume: Volume,
        options: &MountOptions,
    ) -> io::Result<Mount> {
        set_nonblocking(&connection)?;
        // The program that has mounted it may have chosen otherwise.
        let session = SessionOptions { default_permissions: false, ..options.session };
        let options = MountOptions { session, ..options.clone() };
        let unmounter = Unmounter { directory: PathBuf::new(), mount: MountId::default() };
        Ok(Mount::with(volume, unmounter, vec![connection], options))
    }

    fn with(
        volume: Volume,
        unmounter: Unmounter,
        channels: Vec<OwnedFd>,
        options: MountOptions,
    ) -> Mount {
        let session = Arc::new(Session::new(volume.clone(), options.session, channels.len()));
        let observed = MountObserver::new(&volume);
        Mount { volume, unmounter, channels, options, session, control: None, observed }
    }

    /// Lets clients of a control socket reach the volume, too, until the directory is unmounted.
    ///
    /// # Errors
    /// When there is no descriptor left.
    pub fn control(mut self, volumes: &ControlVolumes) -> io::Result<Mount> {
        let mount = ServedMount {
            kernel: Kernel::new(self.session.clone(), self.channels[0].try_clone()?),
            directory: self.unmounter.directory.clone(),
            options: self.options.words(),
            threads: self.channels.len(),
        };
        let (volume, is_read_only) = (self.volume.clone(), self.options.read_only);
        let served = Served { volume, is_read_only, mount: Some(mount) };
        self.control = Some(volumes.insert_served(served));
        Ok(self)
    }

    /// The directory, as an absolute path. Empty if another program has mounted it.
    pub fn directory(&self) -> &Path {
        &self.unmounter.directory
    }

    /// Something to unmount with while [`Self::serve`] runs.
    pub fn unmounter(&self) -> Unmounter {
        self.unmounter.clone()
    }

    /// Something to look at the volume with while [`Self::serve`] runs.
    pub fn observer(&self) -> MountObserver {
        self.observed.clone()
    }

    /// Serves requests on this thread and its helpers until the directory is unmounted. Then closes the volume, so that
    /// everything is durable.
    ///
    /// # Errors
    /// When a thread or a reactor cannot be made; those of `read(2)` and [`Volume::close`]. If no thread serves any
    /// more, the directory is unmounted.
    pub fn serve(self) -> io::Result<()> {
        let Mount { volume, unmounter, session, channels, control, observed, .. } = self;
        // The session has it, and closes it.
        drop(volume);
        // Its clients see the end before the volume is closed.
        let end = move || {
            drop(control);
            observed.0.lock().take();
        };
        let committing = spawn("uringfs-commit", {
            let session = session.clone();
            move || session.save_and_close(end)
        });
        let committing = committing.inspect_err(|_| unmounter.unmount_unserved())?;
        let served = Helpers::spawn(&session, channels.len())
            .and_then(|helpers| helpers.serve(&session, channels));
        session.commits.stop();
        let closed = committing.join();
        if served.is_err() {
            // Its descriptors are closed by now, so that the kernel waits for no reply.
            unmounter.unmount_unserved();
        }
        served?;
        Ok(closed.map_err(|_| io::Error::other("a server panicked"))??)
    }
}

fn spawn<T: Send + 'static>(
    name: &str,
    run: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    thread::Builder::new().name(name.to_owned()).spawn(run)
}

/// The threads of a mount beside the one that serves it. They wait for their channels, so that none serves before all exist.
struct Helpers(Vec<(mpsc::Sender<OwnedFd>, JoinHandle<io::Result<()>>)>);

impl Helpers {
    fn spawn(session: &Arc<Session>, threads: usize) -> io::Result<Helpers> {
        let helper = |thread| {
            let (sender, channel) = mpsc::channel();
            let session = session.clone();
            let serve = move || match channel.recv() {
                Ok(channel) => serve_channel(&session, channel, (thread, threads)),
                Err(mpsc::RecvError) => Ok(()),
            };
            Ok((sender, spawn("uringfs-fuse", serve)?))
        };
        (1..threads).map(helper).collect::<io::Result<_>>().map(Helpers)
    }

    /// Serves channels, each with a thread, the first one with this thread, until the directory is unmounted.
    fn serve(self, session: &Arc<Session>, channels: Vec<OwnedFd>) -> io::Result<()> {
        let threads = channels.len();
        let mut channels = channels.into_iter();
        let first = channels.next().expect("a mount has a channel");
        let start = |((sender, helper), channel): ((mpsc::Sender<_>, _), _)| {
            sender.send(channel).expect("it waits for its channel");
            helper
        };
        let helpers: Vec<JoinHandle<_>> = self.0.into_iter().zip(channels).map(start).collect();
        let mut served = serve_channel(session, first, (0, threads));
        for helper in helpers {
            let joined =
                helper.join().unwrap_or_else(|_| Err(io::Error::other("a server panicked")));
            served = served.and(joined);
        }
        served
    }
}

impl MountObserver {
    fn new(volume: &Volume) -> MountObserver {
        MountObserver(Arc::new(Mutex::new(Some(volume.clone()))))
    }

    /// The numbers of the volume. `None` when it is being closed.
    pub fn statistics(&self) -> Option<Statistics> {
        self.0.lock().as_ref().map(Volume::statistics)
    }
}

impl fmt::Debug for MountObserver {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("MountObserver")
    }
}

impl fmt::Debug for Mount {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{:?} on {}", self.volume, self.directory().display())
    }
}

impl Unmounter {
    /// Unmounts.
    ///
    /// # Errors
    /// EBUSY while programs use the mount; EINVAL if the directory shows another file system; the others of
    /// `umount2(2)`, or what `fusermount3` reports.
    pub fn unmount(&self) -> io::Result<()> {
        self.detach(false)
    }

    /// Unmounts as soon as no program uses the mount. The directory is free at once.
    ///
    /// # Errors
    /// As [`Self::unmount`], without EBUSY.
    pub fn unmount_lazily(&self) -> io::Result<()> {
        self.detach(true)
    }

    /// Unmounts a directory whose requests are not answered any more.
    fn unmount_unserved(&self) {
        // The error that led here says more.
        let _ = self.detach(true);
    }

    fn detach(&self, lazy: bool) -> io::Result<()> {
        if MountId::on(&self.directory)? != self.mount {
            let what = "the volume is unmounted already, or another file system is mounted over it: unmount that first";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        detach(&self.directory, lazy)
    }
}

/// Unmounts a directory on which any process has mounted a volume. With `lazy` the directory is free at once, and programs
/// that use the mount keep it. The serving process then closes the volume.
///
/// # Errors
/// EBUSY while programs use the mount, unless `lazy`; the others of `umount2(2)`, or what `fusermount3` reports.
pub fn unmount(directory: &Path, lazy: bool) -> io::Result<()> {
    detach(directory, lazy)
}

/// Serves a channel on this thread, and the queues that are its part.
fn serve_channel(
    session: &Arc<Session>,
    channel: OwnedFd,
    (thread, threads): (usize, usize),
) -> io::Result<()> {
    // With commands, requests and the device's reads are waited for in one place, the ring, also without queues.
    let with_commands =
        || Reactor::new(ReactorOptions::new().commands(true).require(Require::Ring));
    let with_queues = || {
        let queues =
            if session.takes_io_uring { RingQueues::of_thread(thread, threads)? } else { None };
        Ok::<_, io::Error>(match queues {
            Some(queues) => Some((with_commands()?, queues)),
            None => None,
        })
    };
    let prepared = with_queues().ok().flatten();
    session.ring.prepared(prepared.is_some());
    let (reactor, queues) = match prepared {
        Some((reactor, queues)) => (reactor, Some(queues)),
        None => {
            let without = |_| Reactor::new(ReactorOptions::default());
            (with_commands().or_else(without)?, None)
        }
    };
    // If it fails, the thread runs elsewhere.
    let before = queues.as_ref().and_then(|queues| queues.stay_near().ok());
    let served = reactor.block_on(session.serve(thread, &reactor, Arc::new(channel), queues));
    if let Some(before) = before {
        let _ = sched_setaffinity(None, &before);
    }
    served
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
    use std::time::Instant;

    use rustix::mount::{MountFlags, mount_remount};
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    use uringfs::FormatOptions;

    use super::*;
    use crate::tables::MIN_ENTRIES;

    /// `PROPTEST_CASES`, as all tests take it.
    fn cases() -> usize {
        std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(256)
    }

    /// A mounted volume, and what its server knows.
    struct TestMount {
        folder: tempfile::TempDir,
        directory: PathBuf,
        session: Arc<Session>,
        unmount: UnmountOnDrop,
        server: JoinHandle<io::Result<()>>,
    }

    impl TestMount {
        fn new(fill: impl FnOnce(&Volume)) -> TestMount {
            TestMount::with(&MountOptions::new().threads(2), fill)
        }

        fn with(options: &MountOptions, fill: impl FnOnce(&Volume)) -> TestMount {
            let folder = tempfile::tempdir().unwrap();
            let (directory, image) = (folder.path().join("mount"), folder.path().join("image"));
            fs::create_dir(&directory).unwrap();
            let volume = Volume::create(image, &FormatOptions::new().size(256 << 20)).unwrap();
            fill(&volume);
            let mount = Mount::new(volume, &directory, options).unwrap();
            let unmount = UnmountOnDrop(mount.unmounter());
            let session = mount.session.clone();
            let server = thread::spawn(|| mount.serve());
            TestMount { folder, directory, session, unmount, server }
        }
    }

    /// A test that fails leaves no mount.
    struct UnmountOnDrop(Unmounter);

    impl Drop for UnmountOnDrop {
        fn drop(&mut self) {
            let _ = self.0.unmount_lazily();
        }
    }

    #[test]
    fn as_root_names_that_the_kernel_has_forgotten_leave_nothing_behind() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let (directories, files) = (20, 2 * cases());
        let TestMount { folder: _folder, directory, session, unmount, server } =
            TestMount::new(|volume| {
                for parent in 0..directories {
                    volume.create_dir(format!("/{parent}")).unwrap();
                    for file in 0..files {
                        volume.write(format!("/{parent}/{file}"), "").unwrap();
                    }
                }
            });
        let known = || (session.nodes.len_and_capacity().0, session.handles.len());
        for parent in fs::read_dir(&directory).unwrap() {
            for entry in fs::read_dir(parent.unwrap().path()).unwrap() {
                assert_eq!(entry.unwrap().metadata().unwrap().len(), 0);
            }
        }
        let all = directories * (1 + files);
        assert!(known().0 > all / 2, "{:?} of {all}: the kernel may have dropped some", known());
        // Drops all names of this mount, and of no other.
        let flags = MountFlags::NOSUID | MountFlags::NODEV;
        mount_remount(&directory, flags, c"").unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        while known() != (0, 0) {
            assert!(Instant::now() < deadline, "{:?} are left", known());
            thread::yield_now();
        }
        let (_, capacity) = session.nodes.len_and_capacity();
        assert!(capacity < 2 * MIN_ENTRIES, "{capacity}");
        unmount.0.unmount().unwrap();
        server.join().unwrap().unwrap();
    }

    #[test]
    fn as_root_the_listing_of_a_small_directory_is_asked_for_once_until_it_changes() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let TestMount { folder: _folder, directory, session, unmount, server } =
            TestMount::new(|volume| {
                for (parent, files) in [("small", 100), ("large", 1000)] {
                    volume.create_dir(format!("/{parent}")).unwrap();
                    for file in 0..files {
                        volume.write(format!("/{parent}/{file}"), "").unwrap();
                    }
                }
            });
        // The number of entries and the inode of `..`, and how many names the server was asked for.
        let list = |path: &str| {
            // The kernel does not wait for the reply to a close.
            while session.handles.len() > 0 {
                thread::yield_now();
            }
            let before = session.handles.newest();
            let mut listing =
                rustix::fs::Dir::new(fs::File::open(directory.join(path)).unwrap()).unwrap();
            let entries: Vec<_> = listing.by_ref().map(Result::unwrap).collect();
            let parent = entries.iter().find(|entry| entry.file_name() == c"..").unwrap().ino();
            let reader = session.handles.directory(before + 1).unwrap();
            let asked = reader.lock().as_ref().unwrap().stream.position();
            (entries.len() - 2, parent, asked)
        };
        let root = directory.metadata().unwrap().ino();
        assert_eq!(list("small"), (100, root, 100));
        assert_eq!(list("small"), (100, root, 0));
        fs::write(directory.join("small/new"), "").unwrap();
        assert_eq!(list("small").0, 101);
        assert_eq!(list("small"), (101, root, 0));
        fs::rename(directory.join("small/7"), directory.join("small/8")).unwrap();
        assert_eq!(list("small").0, 100);
        assert_eq!(list("small"), (100, root, 0));
        // Its `..` is another directory's.
        fs::rename(directory.join("small"), directory.join("large/moved")).unwrap();
        let large = directory.join("large").metadata().unwrap().ino();
        assert_eq!(list("large/moved").1, large);
        assert_eq!(list("large/moved"), (100, large, 0));
        // Of a large one the kernel gets attributes with the names, each time.
        assert_eq!(list("large"), (1001, root, 1001));
        assert_eq!(list("large"), (1001, root, 1001));
        unmount.0.unmount().unwrap();
        server.join().unwrap().unwrap();
    }

    #[test]
    fn o_direct_is_coherent_with_the_cache_on_kernels_that_do_not_care_for_uncached_files() {
        const O_DIRECT: i32 = rustix::fs::OFlags::DIRECT.bits() as i32;
        for writeback in [false, true] {
            let options = MountOptions::new().threads(1).writeback(writeback);
            let TestMount { folder, directory, session, unmount, server } =
                TestMount::with(&options, |volume| volume.write("/file", [1; 12288]).unwrap());
            let path = directory.join("file");
            let mut open = fs::File::options();
            let cached = open.read(true).write(true).open(&path).unwrap();
            // As after INIT from Linux 6.1.
            session.note_uncached_mappings(false);
            let direct = open.custom_flags(O_DIRECT).open(&path).unwrap();
            let content = |file: &fs::File| {
                let mut content = [0; 12288];
                file.read_exact_at(&mut content, 0).unwrap();
                [content[0], content[4096], content[8192]]
            };
            assert_eq!(content(&cached), [1, 1, 1]);
            cached.write_all_at(&[2; 8192], 4096).unwrap();
            assert_eq!(content(&direct), [1, 2, 2]);
            cached.write_all_at(&[3; 8192], 4096).unwrap();
            direct.write_all_at(&[4; 8192], 0).unwrap();
            assert_eq!(content(&cached), [4, 4, 3]);
            drop((cached, direct));
            unmount.0.unmount().unwrap();
            server.join().unwrap().unwrap();
            let written = Volume::open(folder.path().join("image")).unwrap().read("/file").unwrap();
            assert_eq!([written[0], written[4096], written[8192]], [4, 4, 3]);
        }
    }

    #[test]
    fn an_observer_does_not_keep_the_volume_of_a_mount_open() {
        let folder = tempfile::tempdir().unwrap();
        let image = folder.path().join("image");
        let volume = Volume::create(&image, &FormatOptions::new().size(32 << 20)).unwrap();
        let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
        let (kernel, server) = socketpair(family, kind, SocketFlags::CLOEXEC, None).unwrap();
        let mount = Mount::on_connection(server, volume, &MountOptions::new()).unwrap();
        let observer = mount.observer();
        let serving = thread::spawn(move || mount.serve());
        assert_eq!(observer.statistics().unwrap().blocks, (32 << 20) / 4096);
        drop(kernel);
        serving.join().unwrap().unwrap();
        assert!(observer.statistics().is_none());
        Volume::open(&image).unwrap().close().unwrap();
    }
}

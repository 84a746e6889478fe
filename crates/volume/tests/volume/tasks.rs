//! Name operations in tasks: however slow the device is, their thread never blocks, and operations
//! on cached records complete.

use std::pin::{Pin, pin};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex};
use std::task::{Context, Poll, Wake};
use std::thread::ThreadId;

use uringfs_device::backend::memory::Memory;
use uringfs_device::{Backend, Device, Errno, Geometry, KernelTarget, Op, Request};
use uringfs_reactor::{Reactor, ReactorOptions};
use uringfs_volume::{
    AsyncVolume, FileType, Follow, FormatOptions, Inode, OpenOptions, SetXattr, Volume,
    VolumeOptions,
};

/// A memory device whose reads wait at a gate, and which records the threads that it served.
struct Gated {
    memory: Memory,
    gate: Arc<Gate>,
}

#[derive(Default)]
struct Gate {
    state: Mutex<GateState>,
    changed: Condvar,
}

#[derive(Default)]
struct GateState {
    is_shut: bool,
    served: Vec<ThreadId>,
}

impl Gate {
    fn set(&self, is_shut: bool) {
        self.state.lock().unwrap().is_shut = is_shut;
        self.changed.notify_all();
    }

    fn pass(&self, op: Op) {
        let mut state = self.state.lock().unwrap();
        state.served.push(std::thread::current().id());
        while op == Op::Read && state.is_shut {
            state = self.changed.wait(state).unwrap();
        }
    }

    fn has_served_this_thread(&self) -> bool {
        self.state.lock().unwrap().served.contains(&std::thread::current().id())
    }
}

impl Backend for Gated {
    fn geometry(&self) -> &Geometry {
        self.memory.geometry()
    }

    fn description(&self) -> String {
        self.memory.description()
    }

    fn kernel_target(&self) -> KernelTarget<'_> {
        self.memory.kernel_target()
    }

    fn perform(&self, request: &mut Request) -> Result<u32, Errno> {
        self.gate.pass(request.op);
        self.memory.perform(request)
    }
}

/// A volume with names, none of which are in memory, and little memory for them.
fn cold() -> (AsyncVolume, Arc<Gate>) {
    let (volume, _, gate) = cold_on_device();
    (volume, gate)
}

fn cold_on_device() -> (AsyncVolume, Device, Arc<Gate>) {
    let gate = Arc::new(Gate::default());
    let memory = Memory::new(64 << 20).unwrap();
    let device = Device::new(Gated { memory, gate: gate.clone() }).unwrap();
    let smaller = FormatOptions::new().size(48 << 20);
    Volume::format(&device, &smaller).unwrap();
    let volume = Volume::open_on(device.clone()).unwrap();
    volume.create_dir("/d").unwrap();
    for number in 0..3000 {
        volume.mknod(format!("/d/{number}"), &Inode::new(FileType::File, 0o644)).unwrap();
    }
    drop(volume);
    let options = VolumeOptions::new().catalog_cache_bytes(20_000);
    // Another thread opens it, so that this thread was not served.
    let open = || options.open_on(device.clone()).unwrap();
    let volume = std::thread::scope(|scope| scope.spawn(open).join().unwrap());
    gate.state.lock().unwrap().served.clear();
    (volume.as_async(), device, gate)
}

struct ChannelWaker(Sender<()>);

impl Wake for ChannelWaker {
    fn wake(self: Arc<Self>) {
        // Nothing listens after the last poll.
        let _ = self.0.send(());
    }
}

/// Runs a future. Each time it is woken, `first` runs before the next poll.
fn overtaken<T>(future: impl Future<Output = T>, mut first: impl FnMut(usize)) -> T {
    let (sender, receiver) = channel();
    let waker = Arc::new(ChannelWaker(sender)).into();
    let mut future = pin!(future);
    for round in 0..200 {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(outcome) => return outcome,
            Poll::Pending => receiver.recv().unwrap(),
        }
        first(round);
    }
    panic!("the future does not complete");
}

async fn is_pending<T>(mut future: Pin<&mut impl Future<Output = T>>) -> bool {
    std::future::poll_fn(|context| Poll::Ready(future.as_mut().poll(context).is_pending())).await
}

#[test]
fn no_call_does_device_io_in_the_thread_of_its_task() {
    let (volume, gate) = cold();
    let reactor = Reactor::new(ReactorOptions::default()).unwrap();
    let file = || Inode::new(FileType::File, 0o644);
    reactor.block_on(async {
        volume.symlink_metadata("/d/7").await.unwrap();
        volume
            .open_with("/d/8", OpenOptions::new().read(true).write(true).direct(true))
            .await
            .unwrap();
        volume.mknod("/d/new", &file()).await.unwrap();
        assert_eq!(volume.mknod("/d/9", &file()).await.unwrap_err().errno(), Errno::EXIST);
        volume.hard_link("/d/10", "/linked").await.unwrap();
        volume.rename("/d/11", "/d/12").await.unwrap();
        volume.remove_file("/d/13").await.unwrap();
        volume.set_attributes("/d/14", Follow::No, |inode| inode.user = 7).await.unwrap();
        volume.create_dir_with_mode("/made", 0o700).await.unwrap();
        volume.symlink("/d", "/made/link").await.unwrap();
        let (follow, name) = (Follow::Yes, "user.x");
        volume.set_xattr("/made/link/15", follow, name, b"1", SetXattr::Create).await.unwrap();
        volume.set_xattr("/d/16", follow, name, b"2", SetXattr::Either).await.unwrap();
        volume.remove_xattr("/d/16", follow, name).await.unwrap();
        volume.resize(64 << 20).await.unwrap();
        assert_eq!(volume.volume().statistics().blocks, 16_384);
        assert_eq!(volume.remove_dir("/d").await.unwrap_err().errno(), Errno::NOTEMPTY);
        volume.sync().await.unwrap();
        let (mut names, mut entries) = (0, volume.read_dir("/d").await.unwrap());
        while entries.next_entry().await.unwrap().is_some() {
            names += 1;
        }
        assert_eq!(names, 3000 + 1 - 2);
        assert_eq!(volume.symlink_metadata("/d/14").await.unwrap().uid(), 7);
        assert_eq!(volume.get_xattr("/d/15", follow, name).await.unwrap(), b"1");
        assert_eq!(volume.list_xattrs("/d/15", follow).await.unwrap(), [name.as_bytes()]);
        assert_eq!(volume.list_xattrs("/d/16", follow).await.unwrap(), [b""; 0]);
    });
    assert!(!gate.has_served_this_thread());
}

#[test]
fn cached_records_are_served_while_a_lookup_waits_for_the_device() {
    let (volume, gate) = cold();
    let reactor = Reactor::new(ReactorOptions::default()).unwrap();
    reactor.block_on(async {
        volume.symlink_metadata("/").await.unwrap();
        gate.set(true);
        let mut look_up = pin!(volume.symlink_metadata("/d/2999"));
        assert!(is_pending(look_up.as_mut()).await);
        volume.symlink_metadata("/").await.unwrap();
        assert!(is_pending(look_up.as_mut()).await);
        gate.set(false);
        look_up.await.unwrap();
    });
}

#[test]
fn operations_complete_despite_a_commit_during_each_read() {
    let (volume, _) = cold();
    let reactor = Reactor::new(ReactorOptions::default()).unwrap();
    let file = || Inode::new(FileType::File, 0o644);
    // Sorted before the existing names.
    let made = std::cell::Cell::new(0);
    let commit = |_: usize| {
        reactor.block_on(async {
            volume.mknod(format!("/d/!{:03}", made.get()), &file()).await.unwrap();
            volume.sync().await.unwrap();
        });
        made.set(made.get() + 1);
    };
    assert_eq!(
        overtaken(
            volume.open_with("/d/77", OpenOptions::new().read(true).write(true).direct(true)),
            commit
        )
        .unwrap()
        .len(),
        0
    );
    overtaken(volume.rename("/d/78", "/d/79"), commit).unwrap();
    let refused = overtaken(volume.remove_dir("/d"), commit).unwrap_err();
    assert_eq!(refused.errno(), Errno::NOTEMPTY);
    let mut entries = overtaken(volume.read_dir("/d"), commit).unwrap();
    let first = overtaken(entries.next_entry(), commit).unwrap().unwrap();
    assert_eq!(first.file_name(), "!000");
    reactor.block_on(async {
        for number in 1..made.get() {
            let entry = entries.next_entry().await.unwrap().unwrap();
            assert_eq!(entry.file_name().into_string().unwrap(), format!("!{number:03}"));
        }
        assert!(entries.next_entry().await.unwrap().is_some());
    });
}

#[test]
fn opening_a_name_that_is_replaced_opens_the_new_file() {
    let (volume, _) = cold();
    let reactor = Reactor::new(ReactorOptions::default()).unwrap();
    let existing = OpenOptions::new().read(true).write(true).direct(true);
    for (options, first) in [(existing, 0), (existing.create(true), 384)] {
        for when in 0..6 {
            let of = |number: u64| format!("/d/{}", number + when + first);
            let (path, other) = (of(0), of(1500));
            let replace = |round| {
                if round as u64 == when {
                    reactor.block_on(volume.rename(&other, &path)).unwrap();
                }
            };
            let file = overtaken(volume.open_with(&path, options), replace).unwrap();
            reactor.block_on(file.set_len(100)).unwrap();
            let inode = reactor.block_on(volume.symlink_metadata(&path)).unwrap().into_inode();
            assert_eq!(inode.size, 100, "{when}");
        }
    }
}

#[test]
fn opening_with_create_recreates_a_concurrently_removed_name() {
    let (volume, _) = cold();
    let reactor = Reactor::new(ReactorOptions::default()).unwrap();
    let create = OpenOptions::new().read(true).write(true).create(true).mode(0o600).direct(true);
    for when in 0..4 {
        let path = format!("/d/{when}");
        let remove = |round| {
            if round == when {
                reactor.block_on(volume.remove_file(&path)).unwrap();
            }
        };
        let file = overtaken(volume.open_with(&path, create), remove).unwrap();
        reactor.block_on(file.set_len(100)).unwrap();
        let found = reactor.block_on(volume.symlink_metadata(&path));
        assert_eq!(found.unwrap().len(), 100, "{when}");
    }
}

#[test]
fn a_dropped_volume_releases_its_lock_despite_pending_lookups() {
    let (volume, device, gate) = cold_on_device();
    let reactor = Reactor::new(ReactorOptions::default()).unwrap();
    gate.set(true);
    reactor.block_on(async {
        let mut look_ups = ["/d/1", "/d/2"].map(|path| Box::pin(volume.symlink_metadata(path)));
        for look_up in &mut look_ups {
            assert!(is_pending(look_up.as_mut()).await);
        }
    });
    std::thread::scope(|scope| {
        let next = scope.spawn(|| {
            drop(volume);
            Volume::open_on(device).map(drop)
        });
        gate.set(false);
        next.join().unwrap().unwrap();
    });
}

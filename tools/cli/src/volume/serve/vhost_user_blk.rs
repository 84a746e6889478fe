//! `uringfs serve vhost-user-blk`, and the tables `[[vhost-user-blk]]` of a configuration: serve a disk to a virtual machine by
//! the vhost-user protocol.

use super::super::bounded::Bounded;
use super::disks::{Disk, DiskOptions, Disks};
use super::problem::Problem;
use super::service::{Context, Service};
use super::socket::{GroupId, Mode};
use serde::{Deserialize, Deserializer};
use std::path::PathBuf;
use std::str::FromStr;
use uringfs::File;
use uringfs_vhost::{Disk as GuestDisk, PinMemory, ServerHandle, VhostServer};

/// The bytes of a serial number that virtio has room for.
const MAX_SERIAL_BYTES: usize = 20;

/// The options of the command, and the keys of a table.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Options {
    /// The disk: TARGET:/path is a file in a volume; TARGET alone is a whole file, a block device or memory:SIZE
    #[arg(value_name = "TARGET[:/path]")]
    pub(super) target: PathBuf,

    /// Listen on this Unix socket
    #[arg(long, value_name = "SOCK")]
    pub(super) socket: PathBuf,

    /// The permissions of the socket, in octal
    #[arg(long, value_name = "MODE", default_value_t)]
    mode: Mode,

    /// The group of the socket, by its name or its number. --mode 660 lets it in
    #[arg(long, value_name = "GROUP")]
    group: Option<GroupId>,

    /// Queues of the disk, each with a thread: as many as the guest has processors, at most [default: 1]
    #[arg(long, value_name = "NUMBER")]
    queues: Option<Bounded<64>>,

    /// Refuse every change
    #[arg(short, long)]
    pub(super) read_only: bool,

    /// The serial number that the guest sees, of up to 20 bytes
    #[arg(long, value_name = "S")]
    serial: Option<Serial>,

    /// Keep the memory of the guest in RAM, which makes requests cheaper
    #[arg(long, value_name = "WHEN", default_value = "auto")]
    pin_memory: PinChoice,

    /// Offer packed rings. The guest then does not survive a restart of the server
    #[arg(long)]
    packed: bool,

    /// Sleep as soon as there is nothing to do. Otherwise a thread whose guest is busy looks for the next request for up to 50 us
    /// first, which uses processor time and saves a wake
    #[arg(long)]
    #[serde(rename = "polling", deserialize_with = "is_off")]
    no_polling: bool,
}

/// Reads the key of an option that turns something off.
fn is_off<'de, D: Deserializer<'de>>(key: D) -> Result<bool, D::Error> {
    bool::deserialize(key).map(|is_on| !is_on)
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum PinChoice {
    /// If RLIMIT_MEMLOCK has room for the guest's memory, once for each queue.
    #[default]
    Auto,
    /// Wherever the kernel lets it.
    On,
    /// Never: the guest can be swapped, and give memory back.
    Off,
}

impl From<PinChoice> for PinMemory {
    fn from(choice: PinChoice) -> PinMemory {
        match choice {
            PinChoice::Auto => PinMemory::Auto,
            PinChoice::On => PinMemory::On,
            PinChoice::Off => PinMemory::Off,
        }
    }
}

/// A serial number of a disk.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
struct Serial(String);

impl FromStr for Serial {
    type Err = String;

    fn from_str(text: &str) -> Result<Serial, String> {
        match text.len() {
            0..=MAX_SERIAL_BYTES => Ok(Serial(text.to_owned())),
            long => Err(format!("it has {long} bytes, and virtio has room for {MAX_SERIAL_BYTES}")),
        }
    }
}

impl TryFrom<String> for Serial {
    type Error = String;

    fn try_from(text: String) -> Result<Serial, String> {
        text.parse()
    }
}

impl Options {
    /// Refuses options that do not go together.
    pub(super) fn check(&self) -> Result<(), Problem> {
        Problem::first(&[
            ("target", self.target.as_os_str().is_empty(), "name a disk"),
            ("socket", self.socket.as_os_str().is_empty(), "name a socket"),
        ])
    }

    /// The file as the disk of a guest.
    fn guest_disk(&self, file: File) -> GuestDisk {
        GuestDisk::new(file)
            .queues(self.queues.map_or(1, Bounded::get))
            .read_only(self.read_only)
            .serial(self.serial.clone().unwrap_or_default().0)
            .pin_memory(self.pin_memory.into())
            .packed(self.packed)
            .polling(!self.no_polling)
    }
}

/// A disk that has all that it needs. A guest that connects meanwhile waits.
pub(super) struct VhostDisk {
    pub(super) options: Options,
    pub(super) disks: Vec<Disk>,
    handle: ServerHandle,
}

impl VhostDisk {
    /// Opens the disk and the socket, and returns the disk with its service, which has not begun.
    pub(super) fn prepare(
        options: &Options,
        context: &mut Context,
    ) -> Result<(VhostDisk, Service), Problem> {
        options.check()?;
        let disk_options = DiskOptions {
            protocol: "vhost-user-blk",
            address: Some(options.socket.to_string_lossy().into_owned()),
            read_only: options.read_only,
            is_cached: false,
            directory_advice: "a disk is one file in it",
        };
        let mut disks = Disks::new(disk_options, &mut context.targets);
        let target = options.target.as_os_str();
        // The guest sees no name.
        disks.add(target, Some(&target.to_string_lossy())).map_err(Problem::of("target"))?;
        let disks = disks.into_vec();
        let (path, mode, group) = (&options.socket, options.mode, options.group);
        let socket = context.sockets.unix("socket", path, mode, group)?;
        let disk = options.guest_disk(disks[0].file().clone());
        let listener = socket.unix_listener().map_err(Problem::of("socket"))?;
        let server = VhostServer::on_listener(listener.into(), disk);
        let handle = server.handle();
        let shown = handle.clone();
        disks[0].show(move |page, labels| page.add_requests(labels, &shown.counts()));
        let stopped = handle.clone();
        let serve = move || {
            // Removed with its last server, also with one that has failed.
            let _socket = socket;
            server.serve()
        };
        let service = Service::new("uringfs-vhost", serve, move || stopped.stop());
        Ok((VhostDisk { options: options.clone(), disks, handle }, service))
    }

    /// Tells its guest if the disk has grown.
    pub(super) fn update_size(&self) {
        self.handle.update_size();
    }

    /// The line for its socket.
    pub(super) fn lines(&self) -> String {
        let path = std::path::absolute(&self.options.socket);
        format!("{}\n", path.as_deref().unwrap_or(&self.options.socket).display())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{Args, Command, FromArgMatches};
    use uringfs::device::Access;

    #[test]
    fn a_server_that_has_ended_has_no_socket() {
        let folder = tempfile::tempdir().unwrap();
        let (target, socket) = (folder.path().join("image"), folder.path().join("socket"));
        uringfs::create_image(&target, 1 << 20).unwrap();
        let options = Options { target, socket: socket.clone(), ..Options::default() };
        let prepared = VhostDisk::prepare(&options, &mut Context::default());
        let Ok((disk, service)) = prepared else { panic!("it is prepared") };
        assert!(socket.exists());
        (service.stop())();
        service.run().unwrap();
        assert!(!socket.exists());
        drop(disk);
    }

    /// A disk with these options, as it is served.
    fn shown(options: &Options) -> String {
        let folder = tempfile::tempdir().unwrap();
        let image = folder.path().join("image");
        uringfs::create_image(&image, 1 << 20).unwrap();
        let file = File::open(&image, Access::ReadWrite).unwrap();
        format!("{:?}", options.guest_disk(file))
    }

    #[test]
    fn a_disk_polls_unless_the_option_or_the_key_turns_it_off() {
        let given = |more: &[&str]| {
            let command = Options::augment_args(Command::new("vhost-user-blk"));
            let words = [&["vhost-user-blk", "a", "--socket", "s"], more].concat();
            shown(&Options::from_arg_matches(&command.get_matches_from(words)).unwrap())
        };
        let written = |key: &str| {
            shown(&toml::from_str(&format!("target = \"a\"\nsocket = \"s\"\n{key}")).unwrap())
        };
        for polls in [given(&[]), written(""), written("polling = true")] {
            assert!(polls.contains("polling: true"), "{polls}");
        }
        for sleeps in [given(&["--no-polling"]), written("polling = false")] {
            assert!(sleeps.contains("polling: false"), "{sleeps}");
        }
        assert!(toml::from_str::<Options>("no-polling = true").is_err());
    }
}

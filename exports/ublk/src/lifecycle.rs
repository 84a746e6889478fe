//! The life of a device, as commands of the driver: made or taken over, started, stopped, deleted.

use std::io;
use std::process;

use uringfs::Errno;
use zerocopy::{FromZeros, IntoBytes};

use crate::abi::{
    ANY_DEVICE, DeviceInfo, Parameters, SECTOR_BYTES, attribute, control, feature, state,
};
use crate::driver::{ControlRequest, Driver, PAUSE_MS, channel_path, disk_path};
use crate::request::Bounds;

/// How long a device may be in use before that is an error, in pauses: its server may be ending, which takes the kernel
/// up to some seconds after the process is gone.
const MAX_ALIVE_PAUSES: u64 = 2_000 / PAUSE_MS;
const MAX_GONE_PAUSES: u64 = 30_000 / PAUSE_MS;
/// How long udev may take to give a new device to its owner, in pauses.
const MAX_NODE_PAUSES: u64 = 5_000 / PAUSE_MS;

/// The processors that [`queue_processors`] has room for.
const MAX_PROCESSORS: usize = 1024;

/// The properties that a disk wants of its device.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    pub(crate) name: Option<String>,
    pub(crate) queues: u16,
    pub(crate) queue_depth: u16,
    pub(crate) max_io_bytes: u32,
    pub(crate) unprivileged: bool,
    pub(crate) parameters: Parameters,
}

/// A device that this process serves, or will.
#[derive(Debug)]
pub(crate) struct Attached<C> {
    pub(crate) info: DeviceInfo,
    pub(crate) parameters: Parameters,
    pub(crate) channel: C,
    /// It was another server's, which has ended.
    pub(crate) is_recovered: bool,
}

impl<C> Attached<C> {
    /// The bounds of its requests.
    pub(crate) fn bounds(&self) -> Bounds {
        let basic = self.parameters.basic;
        Bounds {
            capacity: basic.device_sectors * SECTOR_BYTES,
            max_io_bytes: self.info.max_io_bytes,
            read_only: basic.attributes & attribute::READ_ONLY != 0,
        }
    }
}

/// Makes a device, or takes over the one of this name whose server has ended. It is not started yet.
///
/// # Errors
/// Unsupported if the kernel's driver is too old; ResourceBusy if a device of this name is being served;
/// PermissionDenied; InvalidInput if the device of this name does not fit the disk.
pub(crate) fn attach<D: Driver>(
    driver: &mut D,
    wanted: &Wanted,
) -> io::Result<Attached<D::Channel>> {
    check_features(driver, wanted)?;
    let mut pauses = 0;
    loop {
        let Some(info) = find(driver, wanted)? else { return add(driver, wanted) };
        match info.state {
            // Its server has ended before it was started, or it cannot be taken over.
            state::DEAD => match driver.open(info.device).map(drop) {
                Ok(()) => {
                    delete(driver, &info)?;
                    continue;
                }
                // Its server is starting.
                Err(Errno::BUSY | Errno::NOENT) => {}
                Err(errno) => return Err(failed(&channel_path(info.device), errno)),
            },
            state::QUIESCED => {
                if let Some(attached) = take_over(driver, info, wanted)? {
                    return Ok(attached);
                }
            }
            _ => {}
        }
        let max_pauses = match driver.is_alive(info.server_pid) {
            true => MAX_ALIVE_PAUSES,
            false => MAX_GONE_PAUSES,
        };
        if pauses >= max_pauses {
            return Err(in_use(wanted, &info));
        }
        driver.pause();
        pauses += 1;
    }
}

/// Gives up a device that is not started: it is deleted, or waits for the next server again if it was taken over.
///
/// # Errors
/// Those of the driver.
pub(crate) fn give_up<D: Driver>(driver: &mut D, attached: Attached<D::Channel>) -> io::Result<()> {
    let Attached { info, channel, is_recovered, .. } = attached;
    drop(channel);
    if is_recovered { Ok(()) } else { delete(driver, &info) }
}

/// The processors whose requests come by a queue, as the kernel shares them out.
///
/// # Errors
/// Those of the driver; EINVAL on a machine with more than 1024 processors.
pub(crate) fn queue_processors<D: Driver>(
    driver: &mut D,
    info: &DeviceInfo,
    queue: u16,
) -> Result<Vec<usize>, Errno> {
    let mut words = [0_u64; MAX_PROCESSORS / 64];
    let command = (control::GET_QUEUE_AFFINITY, queue.into());
    run(driver, info, command, words.as_mut_bytes())?;
    let is_set = |processor: &usize| words[processor / 64] >> (processor % 64) & 1 == 1;
    Ok((0..MAX_PROCESSORS).filter(is_set).collect())
}

/// Lets the device's requests come. All of its queues have their entries.
///
/// # Errors
/// Those of the driver.
pub(crate) fn start<D: Driver>(
    driver: &mut D,
    info: &DeviceInfo,
    is_recovered: bool,
) -> io::Result<()> {
    let operation = if is_recovered { control::END_RECOVERY } else { control::START_DEVICE };
    let started = run(driver, info, (operation, process::id().into()), &mut []);
    started.map_err(|errno| failed(&format!("{}: starting it", disk_path(info.device)), errno))
}

/// Removes the block device. Each entry that the kernel has comes back with ENODEV.
///
/// # Errors
/// Those of the driver.
pub(crate) fn stop<D: Driver>(driver: &mut D, info: &DeviceInfo) -> io::Result<()> {
    match run(driver, info, (control::STOP_DEVICE, 0), &mut []) {
        // It is deleted.
        Ok(()) | Err(Errno::NODEV) => Ok(()),
        Err(errno) => Err(failed(&format!("{}: stopping it", disk_path(info.device)), errno)),
    }
}

/// Deletes a device, whose nodes are gone then. `/dev/ublkcN` is open nowhere. Its number is free when nothing has the
/// block device open, for which an old kernel waits.
///
/// # Errors
/// Those of the driver.
pub(crate) fn delete<D: Driver>(driver: &mut D, info: &DeviceInfo) -> io::Result<()> {
    match run(driver, info, (control::DELETE_DEVICE_LATER, 0), &mut []) {
        Ok(()) | Err(Errno::NODEV) => return Ok(()),
        Err(_) => {}
    }
    match run(driver, info, (control::DELETE_DEVICE, 0), &mut []) {
        Ok(()) | Err(Errno::NODEV) => Ok(()),
        Err(errno) => Err(failed(&format!("{}: deleting it", disk_path(info.device)), errno)),
    }
}

/// Stops and deletes a device without a server.
///
/// # Errors
/// NotFound; ResourceBusy if it is being served; those of the driver.
pub(crate) fn remove<D: Driver>(driver: &mut D, device: u32) -> io::Result<()> {
    let path = disk_path(device);
    let info = info(driver, device).map_err(|errno| match errno {
        Errno::NODEV => io::Error::new(io::ErrorKind::NotFound, format!("{path}: no such device")),
        errno => failed(&path, errno),
    })?;
    if info.state == state::LIVE && driver.is_alive(info.server_pid) {
        let line = format!("{path}: process {} serves it; stop that", info.server_pid);
        return Err(io::Error::new(io::ErrorKind::ResourceBusy, line));
    }
    stop(driver, &info)?;
    delete(driver, &info)
}

fn check_features<D: Driver>(driver: &mut D, wanted: &Wanted) -> io::Result<()> {
    let mut features = 0_u64;
    let request = ControlRequest {
        operation: control::GET_FEATURES,
        device: ANY_DEVICE,
        data: 0,
        has_path: false,
        memory: features.as_mut_bytes(),
    };
    let found = driver.run(request);
    let needed = wanted_flags(wanted);
    match found {
        Ok(()) if features & needed == needed => Ok(()),
        _ => {
            let line = "the kernel's ublk driver is too old: Linux 6.5 or newer is needed";
            Err(io::Error::new(io::ErrorKind::Unsupported, line))
        }
    }
}

fn wanted_flags(wanted: &Wanted) -> u64 {
    feature::IOCTL_NUMBERS
        | match (wanted.unprivileged, &wanted.name) {
            (true, _) => feature::UNPRIVILEGED,
            (false, Some(_)) => feature::USER_COPY | feature::RECOVERY | feature::RECOVERY_REISSUE,
            (false, None) => feature::USER_COPY,
        }
}

/// The device of this name, if there is one that this process may use.
fn find<D: Driver>(driver: &mut D, wanted: &Wanted) -> io::Result<Option<DeviceInfo>> {
    let Some(name) = &wanted.name else { return Ok(None) };
    for device in driver.devices()? {
        match info(driver, device) {
            Ok(info) if info.server_flags == mark(name) => return Ok(Some(info)),
            // It is another disk's, another user's, or gone.
            _ => {}
        }
    }
    Ok(None)
}

/// The mark of the devices of a name. The kernel keeps 64 bits: this is FNV-1a, which no other program has as its
/// flags.
fn mark(name: &str) -> u64 {
    let bytes = "uringfs-ublk:".bytes().chain(name.bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

fn add<D: Driver>(driver: &mut D, wanted: &Wanted) -> io::Result<Attached<D::Channel>> {
    let mut info = DeviceInfo {
        queues: wanted.queues,
        queue_depth: wanted.queue_depth,
        max_io_bytes: wanted.max_io_bytes,
        device: ANY_DEVICE,
        flags: wanted_flags(wanted),
        server_flags: wanted.name.as_deref().map_or(0, mark),
        ..DeviceInfo::default()
    };
    let request = ControlRequest {
        operation: control::ADD_DEVICE,
        device: ANY_DEVICE,
        data: 0,
        has_path: false,
        memory: info.as_mut_bytes(),
    };
    driver.run(request).map_err(|errno| match errno {
        Errno::PERM => {
            let line = "making a ublk device is not permitted: be root (CAP_SYS_ADMIN), or make an unprivileged one";
            io::Error::new(io::ErrorKind::PermissionDenied, line)
        }
        errno => failed("making a ublk device", errno),
    })?;
    let prepared = open_node(driver, info.device).and_then(|channel| {
        let mut parameters = wanted.parameters;
        let memory = parameters.as_mut_bytes();
        let set = run(driver, &info, (control::SET_PARAMETERS, 0), memory);
        // The channel is closed before the device is deleted.
        set.map(|()| channel)
            .map_err(|errno| failed(&format!("{}: its parameters", disk_path(info.device)), errno))
    });
    match prepared {
        Ok(channel) => {
            let parameters = wanted.parameters;
            Ok(Attached { info, parameters, channel, is_recovered: false })
        }
        Err(error) => {
            // The first error counts.
            let _ = delete(driver, &info);
            Err(error)
        }
    }
}

/// Opens the node of a new device, as soon as udev has given it to its owner.
fn open_node<D: Driver>(driver: &mut D, device: u32) -> io::Result<D::Channel> {
    let mut pauses = 0;
    loop {
        match driver.open(device) {
            Ok(channel) => return Ok(channel),
            Err(Errno::NOENT | Errno::ACCESS) if pauses < MAX_NODE_PAUSES => {
                driver.pause();
                pauses += 1;
            }
            Err(errno @ (Errno::NOENT | Errno::ACCESS)) => {
                let path = channel_path(device);
                let advice =
                    "udev has to make it, and for an unprivileged device give it to its owner";
                return Err(io::Error::new(errno.kind(), format!("{path}: {errno}; {advice}")));
            }
            Err(errno) => return Err(failed(&channel_path(device), errno)),
        }
    }
}

/// Takes over a device without a server. `None` while the kernel has not ended the old one.
fn take_over<D: Driver>(
    driver: &mut D,
    info: DeviceInfo,
    wanted: &Wanted,
) -> io::Result<Option<Attached<D::Channel>>> {
    let path = disk_path(info.device);
    let mut parameters = Parameters::new_zeroed();
    parameters.length = size_of::<Parameters>() as u32;
    let got = run(driver, &info, (control::GET_PARAMETERS, 0), parameters.as_mut_bytes());
    got.map_err(|errno| failed(&format!("{path}: its parameters"), errno))?;
    check_fit(&path, &parameters, wanted)?;
    match run(driver, &info, (control::START_RECOVERY, 0), &mut []) {
        Ok(()) => {}
        // Another server has begun to take it over, and ended before it had a queue.
        Err(Errno::INVAL) => {}
        Err(Errno::BUSY) => return Ok(None),
        Err(errno) => return Err(failed(&format!("{path}: taking it over"), errno)),
    }
    let channel = match driver.open(info.device) {
        Ok(channel) => channel,
        Err(errno) => return Err(failed(&channel_path(info.device), errno)),
    };
    Ok(Some(Attached { info, parameters, channel, is_recovered: true }))
}

/// A device keeps its parameters. A file that has grown meanwhile fits.
fn check_fit(path: &str, device: &Parameters, wanted: &Wanted) -> io::Result<()> {
    let (device, disk) = (device.basic, wanted.parameters.basic);
    let refused = |what: String| {
        let line =
            format!("{path} waits for a server, but {what}; remove it, or serve what it was");
        Err(io::Error::new(io::ErrorKind::InvalidInput, line))
    };
    if disk.device_sectors < device.device_sectors {
        let bytes = |sectors| sectors * SECTOR_BYTES;
        let (device, disk) = (bytes(device.device_sectors), bytes(disk.device_sectors));
        return refused(format!("has {device} bytes and the file {disk}"));
    }
    if disk.attributes & attribute::READ_ONLY > device.attributes & attribute::READ_ONLY {
        return refused("can be written and the disk cannot".into());
    }
    Ok(())
}

fn in_use(wanted: &Wanted, info: &DeviceInfo) -> io::Error {
    let (name, path) = (wanted.name.as_deref().unwrap_or_default(), disk_path(info.device));
    let line = match info.state {
        state::LIVE => {
            format!("{name}: process {} serves it as {path}; stop that", info.server_pid)
        }
        _ => format!("{name}: another process is starting to serve it as {path}; stop that"),
    };
    io::Error::new(io::ErrorKind::ResourceBusy, line)
}

fn info<D: Driver>(driver: &mut D, device: u32) -> Result<DeviceInfo, Errno> {
    let mut info = DeviceInfo::default();
    let request = ControlRequest {
        operation: control::GET_INFO,
        device,
        data: 0,
        has_path: true,
        memory: info.as_mut_bytes(),
    };
    driver.run(request)?;
    Ok(info)
}

/// Runs a command on a device.
fn run<D: Driver>(
    driver: &mut D,
    info: &DeviceInfo,
    (operation, data): (u32, u64),
    memory: &mut [u8],
) -> Result<(), Errno> {
    let has_path = info.flags & feature::UNPRIVILEGED != 0;
    driver.run(ControlRequest { operation, device: info.device, data, has_path, memory })
}

fn failed(what: &str, errno: Errno) -> io::Error {
    io::Error::new(errno.kind(), format!("{what}: {errno}"))
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::collections::BTreeMap;
    use std::rc::Rc;

    use zerocopy::FromBytes;

    use super::*;
    use crate::abi::{BasicParameters, parameter};

    const FEATURES: u64 = feature::RECOVERY
        | feature::RECOVERY_REISSUE
        | feature::UNPRIVILEGED
        | feature::IOCTL_NUMBERS
        | feature::USER_COPY;

    /// A driver that keeps to the rules of the kernel's, and panics where that would block for ever.
    struct FakeDriver {
        features: u64,
        is_privileged: bool,
        devices: BTreeMap<u32, FakeDevice>,
        /// Processes that there are.
        alive: Vec<i32>,
        pauses: u64,
        /// Each node is there, with its owner, after so many pauses.
        nodes_after: u64,
        /// A command that fails.
        fails: Option<u32>,
        commands: Vec<u32>,
    }

    struct FakeDevice {
        info: DeviceInfo,
        parameters: Option<Parameters>,
        is_open: Rc<Cell<bool>>,
        /// Its server has ended, which the kernel notices after so many pauses.
        quiesces_after: Option<u64>,
        /// No queue has its entries since a server has begun to take it over.
        is_recovering: bool,
    }

    #[derive(Debug)]
    struct FakeChannel(Rc<Cell<bool>>);

    impl Drop for FakeChannel {
        fn drop(&mut self) {
            self.0.set(false);
        }
    }

    impl FakeDriver {
        fn new() -> FakeDriver {
            FakeDriver {
                features: FEATURES,
                is_privileged: true,
                devices: BTreeMap::new(),
                alive: vec![process::id() as i32],
                pauses: 0,
                nodes_after: 0,
                fails: None,
                commands: Vec::new(),
            }
        }

        /// A device that another server has left in a state.
        fn with_device(state: u16, name: &str) -> FakeDriver {
            let mut driver = FakeDriver::new();
            let info = DeviceInfo {
                queues: 2,
                queue_depth: 64,
                max_io_bytes: 65536,
                device: 3,
                state,
                server_pid: 77,
                flags: FEATURES & !feature::UNPRIVILEGED,
                server_flags: mark(name),
                ..DeviceInfo::default()
            };
            let device = FakeDevice {
                info,
                parameters: Some(parameters(2048)),
                is_open: Rc::default(),
                quiesces_after: None,
                is_recovering: false,
            };
            driver.devices.insert(3, device);
            driver
        }

        fn device(&mut self) -> &mut FakeDevice {
            self.devices.get_mut(&3).unwrap()
        }

        fn add(&mut self, memory: &mut [u8]) -> Result<(), Errno> {
            let mut info = DeviceInfo::read_from_bytes(memory).unwrap();
            let is_unprivileged = info.flags & feature::UNPRIVILEGED != 0;
            match (self.is_privileged, is_unprivileged) {
                (true, _) => info.flags &= !feature::UNPRIVILEGED,
                (false, false) => return Err(Errno::PERM),
                (false, true) if info.flags & feature::USER_COPY != 0 => return Err(Errno::INVAL),
                (false, true) => {}
            }
            info.device = (0..).find(|number| !self.devices.contains_key(number)).unwrap();
            info.queues = info.queues.min(2);
            info.server_pid = -1;
            memory.copy_from_slice(info.as_bytes());
            let device = FakeDevice {
                info,
                parameters: None,
                is_open: Rc::default(),
                quiesces_after: None,
                is_recovering: false,
            };
            self.devices.insert(info.device, device);
            Ok(())
        }
    }

    impl Driver for FakeDriver {
        type Channel = FakeChannel;

        fn run(&mut self, request: ControlRequest<'_>) -> Result<(), Errno> {
            let ControlRequest { operation, device, data, has_path, memory } = request;
            self.commands.push(operation);
            if self.fails == Some(operation) {
                return Err(Errno::INVAL);
            }
            match operation {
                control::GET_FEATURES => {
                    memory.copy_from_slice(self.features.as_bytes());
                    return Ok(());
                }
                control::ADD_DEVICE => return self.add(memory),
                _ => {}
            }
            let found = self.devices.get_mut(&device).ok_or(Errno::NODEV)?;
            let is_unprivileged = found.info.flags & feature::UNPRIVILEGED != 0;
            if has_path != (is_unprivileged || operation == control::GET_INFO) {
                return Err(Errno::INVAL);
            }
            let is_dead = found.info.state == state::DEAD;
            match operation {
                control::GET_INFO => memory.copy_from_slice(found.info.as_bytes()),
                // Of four processors, every other one.
                control::GET_QUEUE_AFFINITY => {
                    memory.fill(0);
                    memory[0] = 0b0101 << data;
                }
                control::SET_PARAMETERS if is_dead => {
                    found.parameters = Some(Parameters::read_from_bytes(memory).unwrap());
                }
                control::GET_PARAMETERS => {
                    memory.copy_from_slice(found.parameters.as_ref().unwrap().as_bytes());
                }
                control::START_DEVICE if is_dead && found.parameters.is_some() => {
                    found.info.state = state::LIVE;
                    found.info.server_pid = data as i32;
                }
                control::START_RECOVERY if found.info.state == state::QUIESCED => {
                    match (found.is_open.get(), found.is_recovering) {
                        (true, _) => return Err(Errno::BUSY),
                        (_, true) => return Err(Errno::INVAL),
                        _ => found.is_recovering = true,
                    }
                }
                control::END_RECOVERY if found.info.state == state::QUIESCED => {
                    assert!(found.is_open.get(), "it waits for the entries for ever");
                    found.info.state = state::LIVE;
                    found.info.server_pid = data as i32;
                }
                control::STOP_DEVICE => found.info.state = state::DEAD,
                control::DELETE_DEVICE | control::DELETE_DEVICE_LATER => {
                    if is_unprivileged && operation == control::DELETE_DEVICE_LATER {
                        return Err(Errno::INVAL);
                    }
                    assert!(!found.is_open.get(), "it waits for the channel for ever");
                    self.devices.remove(&device);
                }
                _ => return Err(Errno::INVAL),
            }
            Ok(())
        }

        fn devices(&mut self) -> io::Result<Vec<u32>> {
            Ok(self.devices.keys().copied().collect())
        }

        fn open(&mut self, device: u32) -> Result<FakeChannel, Errno> {
            let found = self.devices.get(&device).ok_or(Errno::NOENT)?;
            match (self.pauses < self.nodes_after, found.is_open.get()) {
                (true, _) => Err(Errno::ACCESS),
                (_, true) => Err(Errno::BUSY),
                _ => {
                    found.is_open.set(true);
                    Ok(FakeChannel(found.is_open.clone()))
                }
            }
        }

        fn is_alive(&self, process: i32) -> bool {
            self.alive.contains(&process)
        }

        fn pause(&mut self) {
            self.pauses += 1;
            for device in self.devices.values_mut() {
                if device.quiesces_after == Some(self.pauses) {
                    device.info.state = match device.info.flags & feature::RECOVERY {
                        0 => state::DEAD,
                        _ => state::QUIESCED,
                    };
                    device.is_open.set(false);
                }
            }
        }
    }

    fn parameters(device_sectors: u64) -> Parameters {
        Parameters {
            length: size_of::<Parameters>() as u32,
            sets: parameter::BASIC,
            basic: BasicParameters { device_sectors, ..BasicParameters::default() },
            ..Parameters::default()
        }
    }

    fn wanted(name: &str) -> Wanted {
        Wanted {
            name: Some(name.into()),
            queues: 4,
            queue_depth: 128,
            max_io_bytes: 262_144,
            unprivileged: false,
            parameters: parameters(2048),
        }
    }

    fn line_of(result: io::Result<Attached<FakeChannel>>, kind: io::ErrorKind) -> String {
        let error = result.unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        let line = error.to_string();
        assert!(!line.contains('\n'), "{line}");
        line
    }

    #[test]
    fn a_device_is_made_started_stopped_and_deleted() {
        let mut driver = FakeDriver::new();
        let attached = attach(&mut driver, &wanted("one")).unwrap();
        assert!(!attached.is_recovered);
        assert_eq!((attached.info.device, attached.info.queues), (0, 2), "the kernel has its say");
        assert_eq!(driver.devices[&0].parameters, Some(parameters(2048)));
        start(&mut driver, &attached.info, attached.is_recovered).unwrap();
        assert_eq!(driver.devices[&0].info.server_pid, process::id() as i32);
        let bounds = attached.bounds();
        assert_eq!((bounds.capacity, bounds.max_io_bytes), (1 << 20, 262_144));
        stop(&mut driver, &attached.info).unwrap();
        let info = attached.info;
        drop(attached);
        delete(&mut driver, &info).unwrap();
        assert!(driver.devices.is_empty());
        stop(&mut driver, &info).unwrap();
        delete(&mut driver, &info).unwrap();
        let expected = [
            control::GET_FEATURES,
            control::ADD_DEVICE,
            control::SET_PARAMETERS,
            control::START_DEVICE,
            control::STOP_DEVICE,
            control::DELETE_DEVICE_LATER,
            control::STOP_DEVICE,
            control::DELETE_DEVICE_LATER,
        ];
        assert_eq!(driver.commands, expected);
    }

    #[test]
    fn each_queue_has_its_processors() {
        let mut driver = FakeDriver::new();
        let info = attach(&mut driver, &wanted("one")).unwrap().info;
        assert_eq!(queue_processors(&mut driver, &info, 0), Ok(vec![0, 2]));
        assert_eq!(queue_processors(&mut driver, &info, 1), Ok(vec![1, 3]));
    }

    #[test]
    fn a_device_is_recoverable_if_it_has_a_name() {
        let flags_of = |wanted: &Wanted, is_privileged| {
            let mut driver = FakeDriver { is_privileged, ..FakeDriver::new() };
            attach(&mut driver, wanted).unwrap().info.flags & !feature::IOCTL_NUMBERS
        };
        let named = wanted("one");
        let recovery = feature::RECOVERY | feature::RECOVERY_REISSUE;
        assert_eq!(flags_of(&named, true), feature::USER_COPY | recovery);
        let nameless = Wanted { name: None, ..named.clone() };
        assert_eq!(flags_of(&nameless, true), feature::USER_COPY);
        let unprivileged = Wanted { unprivileged: true, ..named };
        assert_eq!(flags_of(&unprivileged, false), feature::UNPRIVILEGED);
        assert_eq!(flags_of(&unprivileged, true), 0, "root's device is an ordinary one");
    }

    #[test]
    fn the_device_of_a_killed_server_is_taken_over_as_soon_as_the_kernel_has_noticed() {
        let mut driver = FakeDriver::with_device(state::LIVE, "one");
        driver.device().quiesces_after = Some(600);
        driver.device().is_open.set(true);
        let attached = attach(&mut driver, &wanted("one")).unwrap();
        assert!(attached.is_recovered);
        assert_eq!((attached.info.device, attached.info.queues), (3, 2));
        assert_eq!(attached.bounds().max_io_bytes, 65536, "it stays as it was made");
        start(&mut driver, &attached.info, attached.is_recovered).unwrap();
        assert_eq!(driver.devices[&3].info.state, state::LIVE);
        assert_eq!(driver.devices[&3].info.server_pid, process::id() as i32);
    }

    #[test]
    fn a_device_whose_second_server_was_killed_at_its_start_is_taken_over() {
        let mut driver = FakeDriver::with_device(state::QUIESCED, "one");
        drop(attach(&mut driver, &wanted("one")).unwrap());
        let attached = attach(&mut driver, &wanted("one")).unwrap();
        start(&mut driver, &attached.info, attached.is_recovered).unwrap();
        assert_eq!(driver.devices[&3].info.state, state::LIVE);
    }

    #[test]
    fn a_device_that_is_given_up_before_its_start_is_deleted() {
        let mut driver = FakeDriver::new();
        let attached = attach(&mut driver, &wanted("one")).unwrap();
        give_up(&mut driver, attached).unwrap();
        assert!(driver.devices.is_empty());
    }

    #[test]
    fn a_device_that_was_taken_over_and_is_given_up_waits_for_the_next_server() {
        let mut driver = FakeDriver::with_device(state::QUIESCED, "one");
        let attached = attach(&mut driver, &wanted("one")).unwrap();
        give_up(&mut driver, attached).unwrap();
        assert_eq!(driver.devices[&3].info.state, state::QUIESCED);
        assert!(attach(&mut driver, &wanted("one")).unwrap().is_recovered);
    }

    #[test]
    fn a_device_with_a_server_is_in_use() {
        let mut driver = FakeDriver::with_device(state::LIVE, "one");
        driver.alive.push(77);
        let line = line_of(attach(&mut driver, &wanted("one")), io::ErrorKind::ResourceBusy);
        assert_eq!(line, "one: process 77 serves it as /dev/ublkb3; stop that");
        assert_eq!(driver.pauses, MAX_ALIVE_PAUSES);
        // Another name, or none, has a device of its own.
        assert_eq!(attach(&mut driver, &wanted("two")).unwrap().info.device, 0);
        let nameless = Wanted { name: None, ..wanted("") };
        assert_eq!(attach(&mut driver, &nameless).unwrap().info.device, 1);
    }

    #[test]
    fn a_server_that_ends_meanwhile_is_waited_for() {
        let mut driver = FakeDriver::with_device(state::LIVE, "one");
        driver.alive.push(77);
        driver.device().quiesces_after = Some(100);
        assert!(attach(&mut driver, &wanted("one")).unwrap().is_recovered);
    }

    #[test]
    fn a_kernel_that_notices_nothing_is_not_waited_for_for_ever() {
        let mut driver = FakeDriver::with_device(state::LIVE, "one");
        line_of(attach(&mut driver, &wanted("one")), io::ErrorKind::ResourceBusy);
        assert_eq!(driver.pauses, MAX_GONE_PAUSES);
    }

    #[test]
    fn a_device_that_was_never_started_is_replaced() {
        let mut driver = FakeDriver::with_device(state::DEAD, "one");
        let attached = attach(&mut driver, &wanted("one")).unwrap();
        assert!(!attached.is_recovered && !driver.devices.contains_key(&3));
    }

    #[test]
    fn a_device_that_is_being_started_is_in_use() {
        let mut driver = FakeDriver::with_device(state::DEAD, "one");
        driver.device().is_open.set(true);
        let line = line_of(attach(&mut driver, &wanted("one")), io::ErrorKind::ResourceBusy);
        assert!(line.contains("/dev/ublkb3"), "{line}");
        assert!(driver.devices.contains_key(&3));
    }

    #[test]
    fn a_device_is_taken_over_only_for_a_disk_that_fits() {
        let mut driver = FakeDriver::with_device(state::QUIESCED, "one");
        let smaller = Wanted { parameters: parameters(2047), ..wanted("one") };
        let line = line_of(attach(&mut driver, &smaller), io::ErrorKind::InvalidInput);
        assert!(line.contains("has 1048576 bytes and the file 1048064"), "{line}");
        let mut read_only = wanted("one");
        read_only.parameters.basic.attributes = attribute::READ_ONLY;
        let line = line_of(attach(&mut driver, &read_only), io::ErrorKind::InvalidInput);
        assert!(line.contains("can be written"), "{line}");
        assert_eq!(driver.devices[&3].info.state, state::QUIESCED);
        let larger = Wanted { parameters: parameters(4096), ..wanted("one") };
        let attached = attach(&mut driver, &larger).unwrap();
        assert_eq!(attached.bounds().capacity, 1 << 20);
    }

    #[test]
    fn an_unprivileged_device_waits_for_its_node() {
        let mut driver = FakeDriver { is_privileged: false, nodes_after: 20, ..FakeDriver::new() };
        let unprivileged = Wanted { unprivileged: true, ..wanted("one") };
        let attached = attach(&mut driver, &unprivileged).unwrap();
        start(&mut driver, &attached.info, false).unwrap();
        assert_eq!(driver.pauses, 20);
        let info = attached.info;
        stop(&mut driver, &info).unwrap();
        drop(attached);
        delete(&mut driver, &info).unwrap();
        driver.nodes_after = u64::MAX;
        let line = line_of(attach(&mut driver, &unprivileged), io::ErrorKind::PermissionDenied);
        assert!(line.contains("udev"), "{line}");
    }

    #[test]
    fn without_privileges_the_error_says_what_to_do() {
        let mut driver = FakeDriver { is_privileged: false, ..FakeDriver::new() };
        let line = line_of(attach(&mut driver, &wanted("one")), io::ErrorKind::PermissionDenied);
        assert!(line.contains("be root") && line.contains("unprivileged"), "{line}");
    }

    #[test]
    fn an_old_driver_is_refused() {
        let mut driver =
            FakeDriver { features: FEATURES & !feature::USER_COPY, ..FakeDriver::new() };
        let line = line_of(attach(&mut driver, &wanted("one")), io::ErrorKind::Unsupported);
        assert!(line.contains("Linux 6.5"), "{line}");
        driver = FakeDriver { fails: Some(control::GET_FEATURES), ..FakeDriver::new() };
        line_of(attach(&mut driver, &wanted("one")), io::ErrorKind::Unsupported);
    }

    #[test]
    fn a_device_whose_parameters_are_refused_is_deleted() {
        let mut driver = FakeDriver { fails: Some(control::SET_PARAMETERS), ..FakeDriver::new() };
        let line = line_of(attach(&mut driver, &wanted("one")), io::ErrorKind::InvalidInput);
        assert!(line.starts_with("/dev/ublkb0: its parameters: "), "{line}");
        assert!(driver.devices.is_empty());
    }

    #[test]
    fn a_device_without_a_server_can_be_removed() {
        let mut driver = FakeDriver::with_device(state::QUIESCED, "one");
        driver.alive.push(77);
        remove(&mut driver, 3).unwrap();
        assert!(driver.devices.is_empty());
        let error = remove(&mut driver, 3).unwrap_err();
        assert_eq!(error.to_string(), "/dev/ublkb3: no such device");
        driver = FakeDriver::with_device(state::LIVE, "one");
        driver.alive.push(77);
        let error = remove(&mut driver, 3).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ResourceBusy);
        driver.alive.pop();
        remove(&mut driver, 3).unwrap();
    }
}

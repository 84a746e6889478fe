//! `uringfs info`: the properties of a target, how this machine can access it, and the volume that
//! it holds. Writes nothing.

use crate::json::document;
use crate::output::print;
use crate::udev;
use crate::volume::volume_info::{VolumeInfo, holds_volume};
use serde_json::{Value, json};
use std::io;
use std::sync::Arc;
use uringfs::device::Target;
use uringfs::device::{Access, Device, Geometry};
use uringfs::file::FileOptions;
use uringfs::reactor::{Calibration, Features, RoundSample};
use uringfs::{Buffer, BufferPool, File, Reactor, ReactorOptions, Token, Tokens};
use uringfs_lab::Error;

/// The arguments of the command.
#[derive(clap::Args)]
pub struct Arguments {
    /// A file, a block device, an NVMe namespace (/dev/ng0n1), a URI of an NBD server's export, an image of Ceph's RBD (rbd:POOL/IMAGE), memory:SIZE, null:SIZE or sim:SIZE,OPTION=VALUE...
    target: String,

    /// Print JSON
    #[arg(long)]
    json: bool,

    /// Print the volume's type, UUID and label as properties for udev; nothing, with exit code 2, if there is no volume
    #[arg(long, conflicts_with = "json")]
    udev: bool,
}

/// Returns the exit code.
pub fn run(arguments: Arguments) -> Result<u8, Error> {
    if arguments.udev {
        return udev::run(&arguments.target);
    }
    let report = TargetReport::probe(&arguments.target)?;
    if arguments.json {
        print(&document(report.json()))?;
    } else {
        print(&report.text())?;
    }
    Ok(0)
}

/// Everything that the command prints.
struct TargetReport {
    description: String,
    geometry: Geometry,
    /// Further properties, which the back end shows.
    properties: Vec<(&'static str, Value, String)>,
    /// Why the target could not be opened for writing. Discard and write_zeroes are then unknown.
    read_only_reason: Option<String>,
    tier: String,
    features: Result<&'static Features, String>,
    queue: String,
    queue_reason: String,
    /// The measurement by which the queue was chosen, if there was one.
    calibration: Option<Arc<Calibration>>,
    registered: RegisteredMemory,
    /// None if the target holds no volume; an error if the volume cannot be read.
    volume: Option<Result<VolumeInfo, String>>,
}

/// Whether requests use the registered memory of pools.
struct RegisteredMemory {
    used: bool,
    reason: String,
}

impl TargetReport {
    fn probe(name: &str) -> Result<TargetReport, Error> {
        let target: Target = name.parse().map_err(input_error)?;
        let (device, read_only_reason) = open(&target)?;
        let reactor = Reactor::new(ReactorOptions::default()).map_err(input_error)?;
        let (queue, queue_reason) = reactor.queue_of(&device).map_err(input_error)?;
        let calibration = reactor.calibration_of(&device);
        let is_stored = matches!(target, Target::Path(_) | Target::Remote(_));
        let has_volume = is_stored && holds_volume(&device);
        let (description, geometry) = (device.description(), device.geometry().clone());
        let properties = device.properties().into_iter();
        let properties = properties.map(|one| (one.name, json!(one.value), one.meaning)).collect();
        let registered = probe_registered_memory(&reactor, device, &queue)?;
        let tier = reactor.tier();
        // An NBD server may have room for one client.
        drop(reactor);
        Ok(TargetReport {
            description,
            geometry,
            properties,
            read_only_reason,
            tier,
            features: Features::probe(),
            registered,
            volume: has_volume.then(|| VolumeInfo::read(name.as_ref())),
            queue,
            queue_reason,
            calibration,
        })
    }

    /// One line per property: name, value, and the meaning or reason.
    fn lines(&self) -> Vec<(&'static str, Value, String)> {
        let geometry = &self.geometry;
        let mut lines = vec![
            ("size", json!(geometry.size), "bytes".into()),
            (
                "block_size",
                json!(geometry.block_size),
                "unit of offsets and lengths of requests".into(),
            ),
            (
                "physical_block_size",
                json!(geometry.physical_block_size),
                "unit that the device writes without reading first".into(),
            ),
            (
                "memory_alignment",
                json!(geometry.memory_alignment),
                "alignment of request buffers, in bytes".into(),
            ),
            (
                "max_transfer",
                json!(geometry.max_transfer),
                "bytes per request to the device".into(),
            ),
            ("direct", json!(geometry.direct), direct(geometry).into()),
            ("volatile_cache", json!(geometry.volatile_cache), volatile_cache(geometry).into()),
            ("fua", json!(geometry.fua), fua(geometry).into()),
        ];
        lines.push(match &self.read_only_reason {
            None => ("writable", json!(true), String::new()),
            Some(why) => ("writable", json!(false), why.clone()),
        });
        lines.extend(self.writable_lines());
        lines.push(("rotational", json!(geometry.rotational), String::new()));
        lines.extend(self.properties.iter().cloned());
        lines
    }

    /// The properties that are known only of a target that is open for writing.
    fn writable_lines(&self) -> Vec<(&'static str, Value, String)> {
        if self.read_only_reason.is_some() {
            let why = "not known: the target is not open for writing";
            let unknown = |name| (name, Value::Null, why.into());
            return vec![unknown("discard"), unknown("write_zeroes")];
        }
        let geometry = &self.geometry;
        let discard = match geometry.discard {
            None => {
                ("discard", Value::Null, "not supported by the device or its file system".into())
            }
            Some(discard) => (
                "discard",
                json!({"granularity": discard.granularity, "max_bytes": discard.max_bytes}),
                format!(
                    "granularity {} bytes, at most {} bytes at once",
                    discard.granularity, discard.max_bytes
                ),
            ),
        };
        let zeroes = match geometry.write_zeroes {
            true => "the device zeroes a range without writing zeros",
            false => "zeroing a range writes zeros",
        };
        vec![discard, ("write_zeroes", json!(geometry.write_zeroes), zeroes.into())]
    }

    fn text(&self) -> String {
        let mut text = format!("{}\n", self.description);
        let mut line = |name: &str, value: &str, reason: &str| {
            let line = format!("  {:<20} {value:<12}  {reason}", name.replace('_', " "));
            text += line.trim_end();
            text.push('\n');
        };
        for (name, value, reason) in self.lines() {
            line(name, &value_text(&value), &reason);
        }
        line("queue", &self.queue, &self.queue_reason);
        line("registered memory", yes_no(self.registered.used), &self.registered.reason);
        text += &format!("tier: {}\n", self.tier);
        if let Ok(features) = &self.features {
            for feature in features.list() {
                let reason = match &feature.state {
                    Ok(()) => feature.purpose.to_owned(),
                    Err(why) => format!("{}: {why}", feature.purpose),
                };
                let line = format!(
                    "  {:<20} {:<12}  {reason}",
                    feature.name,
                    yes_no(feature.is_enabled())
                );
                text += line.trim_end();
                text.push('\n');
            }
        }
        match &self.volume {
            None => {}
            Some(Err(why)) => text += &format!("volume: cannot be read: {why}\n"),
            Some(Ok(info)) => {
                text += "volume\n";
                for (name, value, reason) in info.lines() {
                    text += format!("  {name:<20} {value:<12}  {reason}").trim_end();
                    text.push('\n');
                }
            }
        }
        text
    }

    fn json(&self) -> Value {
        let mut geometry = serde_json::Map::new();
        let mut reasons = serde_json::Map::new();
        for (name, value, reason) in self.lines() {
            geometry.insert(name.into(), value);
            if !reason.is_empty() {
                reasons.insert(name.into(), reason.into());
            }
        }
        let features: Vec<Value> = match &self.features {
            Err(_) => Vec::new(),
            Ok(features) => features
                .list()
                .iter()
                .map(|feature| {
                    json!({
                        "name": feature.name,
                        "purpose": feature.purpose,
                        "used": feature.is_enabled(),
                        "reason": feature.state.as_ref().err(),
                    })
                })
                .collect(),
        };
        json!({
            "target": self.description,
            "geometry": geometry,
            "reasons": reasons,
            "queue": {
                "name": self.queue,
                "reason": self.queue_reason,
                "measured": self.calibration.as_deref().map(measured_queues),
            },
            "registered_memory":
                {"used": self.registered.used, "reason": self.registered.reason},
            "tier": self.tier,
            "features": features,
            "volume": self.volume.as_ref().map(|volume| match volume {
                Ok(info) => info.json(),
                Err(why) => json!({"error": why}),
            }),
        })
    }
}

/// Opens for writing, as some properties are known only then; else for reading, with the reason. So
/// a target that is mounted, read-only or owned by another user can be shown, too.
fn open(target: &Target) -> Result<(Device, Option<String>), Error> {
    match target.open(Access::ReadWrite) {
        Ok(device) => Ok((device, None)),
        Err(why) => {
            let device = target.open(Access::Read).map_err(input_error)?;
            Ok((device, Some(why.to_string())))
        }
    }
}

/// The samples of each queue that was measured, by round: reads per second at each depth.
fn measured_queues(calibration: &Calibration) -> Value {
    let queues = calibration.measured.iter().map(|queue| {
        let rounds = queue.rounds.iter().map(|round| {
            let rates = round.rates.map(|rate| rate.round() as u64);
            json!({"reads_per_second": rates, "disturbed": round.is_disturbed})
        });
        json!({"name": queue.kind.name(), "rounds": rounds.collect::<Vec<_>>()})
    });
    json!({"depths": RoundSample::DEPTHS, "queues": queues.collect::<Vec<_>>()})
}

/// Reads a block into the memory of a pool to find out whether the kernel registers it.
fn probe_registered_memory(
    reactor: &Reactor,
    device: Device,
    queue: &str,
) -> Result<RegisteredMemory, Error> {
    let no = |reason: String| Ok(RegisteredMemory { used: false, reason });
    if !queue.starts_with("ring") && !queue.starts_with("nvme") {
        return no(format!(
            "only the ring registers memory, and this target uses the queue {queue}"
        ));
    }
    let block = device.geometry().block_size.max(4096) as usize;
    let pool = BufferPool::new(block, 1).map_err(input_error)?;
    let buffer = pool.get().unwrap_or_else(|| Buffer::zeroed(block));
    let file = File::from_device(device, FileOptions::default());
    reactor
        .read_at(&file, buffer, 0, Token::new(0))
        .map_err(|refused| read_error(refused.error.into()))?;
    let mut completed = Vec::new();
    reactor.reap(1, None, &mut completed).map_err(|error| read_error(error.into()))?;
    match reactor.registration_refused() {
        Some(why) => no(why),
        None => {
            Ok(RegisteredMemory { used: true, reason: "pinned once, then used by index".into() })
        }
    }
}

fn direct(geometry: &Geometry) -> &'static str {
    match geometry.direct {
        true => "requests bypass the kernel's page cache",
        false => {
            "requests go through the kernel's page cache: the target's file system or length does not allow direct I/O"
        }
    }
}

fn volatile_cache(geometry: &Geometry) -> &'static str {
    match (geometry.volatile_cache, geometry.cached_in_process) {
        (true, true) => {
            "completed writes are in the memory of the program that uses the target until a flush"
        }
        (true, false) => "completed writes may be lost until a flush",
        (false, _) => "completed writes are durable",
    }
}

fn fua(geometry: &Geometry) -> &'static str {
    match (geometry.fua, geometry.volatile_cache) {
        (true, true) => "a durable write needs no flush of the device",
        (true, false) => "every write is durable: there is no volatile cache",
        (false, _) => "a durable write is a write followed by a flush",
    }
}

fn yes_no(value: bool) -> &'static str {
    if value { "yes" } else { "no" }
}

fn value_text(value: &Value) -> String {
    match value {
        Value::Bool(value) => yes_no(*value).into(),
        Value::Null => "-".into(),
        Value::Object(_) => "yes".into(),
        Value::String(value) => value.clone(),
        value => value.to_string(),
    }
}

fn input_error(error: io::Error) -> Error {
    Error::input(error.to_string())
}

fn read_error(error: io::Error) -> Error {
    Error::run("cannot read a block").because(error)
}

//! `uringfs info`: what a target is like, what this machine gives to reach it, and which volume it
//! holds. Writes nothing.

use crate::output::print;
use crate::volume::volume_info::VolumeInfo;
use serde_json::{Value, json};
use std::io;
use uringfs::Target;
use uringfs::{
    Access, Buffer, BufferPool, Device, Features, File, FileOptions, Geometry, Reactor,
    ReactorOptions, Token, Tokens,
};
use uringfs_lab::Error;

/// What the command takes.
#[derive(clap::Args)]
pub struct Arguments {
    /// PATH, memory:SIZE, null:SIZE or sim:...
    target: String,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command; gives its exit code.
pub fn run(arguments: Arguments) -> Result<u8, Error> {
    let info = TargetInfo::probe(&arguments.target)?;
    if arguments.json {
        print(&format!("{:#}\n", info.json()))?;
    } else {
        print(&info.text())?;
    }
    Ok(0)
}

/// Everything the command says.
struct TargetInfo {
    description: String,
    geometry: Geometry,
    /// Why it could not be opened for writing; what only a writer learns is then not known.
    read_only_reason: Option<String>,
    tier: String,
    features: Result<&'static Features, String>,
    queue: String,
    queue_reason: String,
    registered: RegisteredMemory,
    /// If it holds one: what is known of it, or why it cannot be read.
    volume: Option<Result<VolumeInfo, String>>,
}

/// Whether requests name the memory of pools by index.
struct RegisteredMemory {
    used: bool,
    reason: String,
}

impl TargetInfo {
    fn probe(name: &str) -> Result<TargetInfo, Error> {
        let target: Target = name.parse().map_err(input_error)?;
        let (device, read_only_reason) = open(&target)?;
        let reactor = Reactor::new(ReactorOptions::default()).map_err(input_error)?;
        let (queue, queue_reason) = reactor.queue_of(&device).map_err(input_error)?;
        Ok(TargetInfo {
            description: device.description(),
            geometry: device.geometry().clone(),
            read_only_reason,
            tier: reactor.tier(),
            features: Features::probe(),
            registered: probe_registered_memory(&reactor, device, &queue)?,
            volume: match &target {
                Target::Path(path) => VolumeInfo::read(path.as_os_str()),
                _ => None,
            },
            queue,
            queue_reason,
        })
    }

    /// A line a property: its name, its value, and what that means or why it is so.
    fn lines(&self) -> Vec<(&'static str, Value, String)> {
        let geometry = &self.geometry;
        let mut lines = vec![
            ("size", json!(geometry.size), "bytes".into()),
            ("block_size", json!(geometry.block_size), "offsets and lengths of requests".into()),
            (
                "physical_block_size",
                json!(geometry.physical_block_size),
                "written without reading first".into(),
            ),
            ("memory_alignment", json!(geometry.memory_alignment), "of requests' memory".into()),
            ("max_transfer", json!(geometry.max_transfer), "bytes of one step".into()),
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
        lines
    }

    /// What is known only of a target that may be written.
    fn writable_lines(&self) -> Vec<(&'static str, Value, String)> {
        if self.read_only_reason.is_some() {
            let why = "not known: asked only of what is opened for writing";
            let unknown = |name| (name, Value::Null, why.into());
            return vec![unknown("discard"), unknown("write_zeroes")];
        }
        let geometry = &self.geometry;
        let discard = match geometry.discard {
            None => ("discard", Value::Null, "none: the device or its file system has none".into()),
            Some(discard) => (
                "discard",
                json!({"granularity": discard.granularity, "max_bytes": discard.max_bytes}),
                format!(
                    "in pieces of {} bytes, at most {} at once",
                    discard.granularity, discard.max_bytes
                ),
            ),
        };
        let zeroes = match geometry.write_zeroes {
            true => "a range is zeroed without writing zeros",
            false => "zeros are written",
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
                let line =
                    format!("  {:<20} {:<12}  {reason}", feature.name, yes_no(feature.is_kept()));
                text += line.trim_end();
                text.push('\n');
            }
        }
        match &self.volume {
            None => {}
            Some(Err(why)) => text += &format!("volume: cannot be read: {why}\n"),
            Some(Ok(about)) => {
                text += "volume\n";
                for (name, value, reason) in about.lines() {
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
                        "used": feature.is_kept(),
                        "reason": feature.state.as_ref().err(),
                    })
                })
                .collect(),
        };
        json!({
            "target": self.description,
            "geometry": geometry,
            "reasons": reasons,
            "queue": {"name": self.queue, "reason": self.queue_reason},
            "registered_memory":
                {"used": self.registered.used, "reason": self.registered.reason},
            "tier": self.tier,
            "features": features,
            "volume": self.volume.as_ref().map(|found| match found {
                Ok(about) => about.json(),
                Err(why) => json!({"error": why}),
            }),
        })
    }
}

/// Opens for writing to learn all, else for reading and says why: what is mounted, read-only or
/// somebody else's can still be looked at.
fn open(target: &Target) -> Result<(Device, Option<String>), Error> {
    match target.open(Access::ReadWrite) {
        Ok(device) => Ok((device, None)),
        Err(why) => {
            let device = target.open(Access::Read).map_err(input_error)?;
            Ok((device, Some(why.to_string())))
        }
    }
}

/// Finds out by reading a block into memory of a pool.
fn probe_registered_memory(
    reactor: &Reactor,
    device: Device,
    queue: &str,
) -> Result<RegisteredMemory, Error> {
    let no = |reason: String| Ok(RegisteredMemory { used: false, reason });
    if !queue.starts_with("ring") {
        return no(format!("only the ring registers memory; the queue here is {queue}"));
    }
    let block = device.geometry().block_size.max(4096) as usize;
    let pool = BufferPool::new(block, 1).map_err(input_error)?;
    let buffer = pool.get().unwrap_or_else(|| Buffer::zeroed(block));
    let file = File::over(device, FileOptions::default());
    reactor
        .read(&file, buffer, 0, Token::new(0))
        .map_err(|refused| read_error(refused.error.into()))?;
    let mut completed = Vec::new();
    reactor.reap(1, None, &mut completed).map_err(|error| read_error(error.into()))?;
    match reactor.registration_refused() {
        Some(why) => no(why),
        None => {
            Ok(RegisteredMemory { used: true, reason: "pinned once, then named by index".into() })
        }
    }
}

fn direct(geometry: &Geometry) -> &'static str {
    match geometry.direct {
        true => "requests go around the kernel's page cache",
        false => {
            "through the kernel's page cache: its file system or its length forbids direct I/O"
        }
    }
}

fn volatile_cache(geometry: &Geometry) -> &'static str {
    match geometry.volatile_cache {
        true => "completed writes may be lost until a flush",
        false => "completed writes are durable",
    }
}

fn fua(geometry: &Geometry) -> &'static str {
    match (geometry.fua, geometry.volatile_cache) {
        (true, true) => "a durable write costs no flush of the device",
        (true, false) => "a durable write costs nothing more: there is no volatile cache",
        (false, _) => "a durable write is a write and a flush",
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
        value => value.to_string(),
    }
}

fn input_error(error: io::Error) -> Error {
    Error::input(error.to_string())
}

fn read_error(error: io::Error) -> Error {
    Error::run("reading a block").because(error)
}

//! The name of a device in the program's arguments and in job files:
//! `PATH`, `memory:SIZE`, `null:SIZE`, `nbd+unix:///NAME?socket=PATH`, `nbd://HOST[:PORT]/NAME`,
//! `rbd:POOL[/NAMESPACE]/IMAGE[@SNAPSHOT]` or `sim:SIZE[,OPTION=VALUE...]`. [`parse_size`] defines the form of SIZE,
//! [`RemoteTarget`] that of the URIs.
//!
//! Options of `sim`: `latency=80us` or `latency=50us-1ms`, `spread=uniform|exponential`, `units=64`, `object=4m`, `seed=7`,
//! `block=512`, `cache=none|fua|dsync|volatile`, `flush=kept|broken`, `record=on|off`,
//! `errors=N` (one request in N fails with EIO), `short=N` (one transfer in N
//! is short). Write a path that looks like one of these as `./memory:1`.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use uringfs_errno::Errno;

use crate::backend::memory::Memory;
use crate::backend::null::Null;
use crate::backend::remote::RemoteTarget;
use crate::backend::sim::{
    Fault, FlushMode, MAX_LATENCY, MAX_UNITS, Recording, Rule, Sim, SimOptions, Spread, When,
    WriteCache,
};
use crate::backend::size::parse_size;
use crate::device::Device;
use crate::interface::backend::Access;

/// The parsed name of a device, which can be opened.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Target {
    /// A file, a block device, or the character device of an NVMe namespace.
    Path(PathBuf),
    /// Memory of this many bytes.
    Memory(u64),
    /// A device of this many bytes that stores nothing.
    Null(u64),
    /// An export of an NBD server, or an image of Ceph's RBD.
    Remote(RemoteTarget),
    /// A simulated device, with its fault rules.
    Sim(SimOptions, Vec<Rule>),
}

impl Target {
    /// The size in bytes of a target that is its own description.
    pub fn virtual_size(&self) -> Option<u64> {
        match self {
            Target::Path(_) | Target::Remote(_) => None,
            Target::Memory(size) | Target::Null(size) => Some(*size),
            Target::Sim(options, _) => Some(options.bytes()),
        }
    }

    /// Opens the device.
    ///
    /// # Errors
    /// In one line why it cannot be opened, with the name and what to do.
    pub fn open(&self, access: Access) -> io::Result<Device> {
        match self {
            Target::Path(path) => Device::open(path, access),
            Target::Memory(size) => Device::new(Memory::new(*size)?),
            Target::Null(size) => Device::new(Null::new(*size)),
            Target::Remote(target) => Device::from_backend(target.open(access)?),
            Target::Sim(options, rules) => {
                let sim = Sim::new(options.clone());
                for rule in rules {
                    sim.inject(*rule);
                }
                Device::new(sim)
            }
        }
    }
}

impl FromStr for Target {
    type Err = io::Error;

    fn from_str(text: &str) -> io::Result<Target> {
        let with_target = |what: String| invalid(format!("target '{text}': {what}"));
        if let Some(parsed) = RemoteTarget::parse(text) {
            return parsed.map(Target::Remote).map_err(with_target);
        }
        match text.split_once(':') {
            Some(("memory", size)) => {
                Ok(Target::Memory(whole_blocks_of_512(size).map_err(with_target)?))
            }
            Some(("null", size)) => {
                Ok(Target::Null(whole_blocks_of_512(size).map_err(with_target)?))
            }
            Some(("sim", rest)) => sim(rest).map_err(with_target),
            _ if text.is_empty() => Err(invalid("a target is missing; name a file".into())),
            _ => Ok(Target::Path(text.into())),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::Path(path) => write!(out, "{}", path.display()),
            Target::Memory(size) => write!(out, "memory:{size}"),
            Target::Null(size) => write!(out, "null:{size}"),
            Target::Remote(target) => write!(out, "{target}"),
            Target::Sim(options, _) => write!(out, "{options}"),
        }
    }
}

fn invalid(text: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, text)
}

/// The options of `sim`, for the suggestion in an error message.
const OPTIONS: [&str; 11] = [
    "latency", "spread", "units", "object", "seed", "block", "cache", "flush", "record", "errors",
    "short",
];

fn sim(rest: &str) -> Result<Target, String> {
    let mut options_text = rest.split(',');
    let size = whole_blocks_of_512(options_text.next().unwrap_or_default())?;
    // Recording costs a copy of each write. Only tests need it.
    let mut options = SimOptions::new(size).recording(Recording::Off);
    let mut rules = Vec::new();
    for option in options_text {
        let (name, value) =
            option.split_once('=').ok_or_else(|| format!("'{option}' is not OPTION=VALUE"))?;
        let bad_value = || format!("'{value}' is not a value for {name}");
        options = match name {
            "latency" => {
                let (min, max) = value.split_once('-').unwrap_or((value, value));
                let (min, max) = (duration(min)?, duration(max)?);
                if min > max || max > MAX_LATENCY {
                    return Err(format!("latency {value} is not within 0 to 60s"));
                }
                options.latency(min..=max)
            }
            "spread" => options.spread(match value {
                "uniform" => Spread::Uniform,
                "exponential" => Spread::Exponential,
                _ => return Err(format!("spread is uniform or exponential, not '{value}'")),
            }),
            "object" => match whole_blocks_of_512(value)? {
                0 => return Err("objects have at least 512 bytes".into()),
                bytes => options.object(bytes),
            },
            "units" => match value.parse() {
                Ok(units @ 1..=MAX_UNITS) => options.units(units),
                _ => return Err(format!("units {value} is not within 1 to {MAX_UNITS}")),
            },
            "seed" => options.seed(value.parse().map_err(|_| bad_value())?),
            "block" => match parse_size(value)? {
                block if block.is_power_of_two() && (512..=65536).contains(&block) => {
                    if !size.is_multiple_of(block) {
                        return Err(format!("{size} bytes are not whole blocks of {block}"));
                    }
                    options.block_size(block as u32)
                }
                _ => return Err(format!("block {value} is not a power of two from 512 to 64K")),
            },
            "cache" => options.cache(match value {
                "none" => WriteCache::None,
                "fua" => WriteCache::VolatileWithFua,
                "dsync" => WriteCache::VolatileWithDsync,
                "volatile" => WriteCache::Volatile,
                _ => return Err(format!("cache is none, fua, dsync or volatile, not '{value}'")),
            }),
            "flush" => options.flush_mode(match value {
                "kept" => FlushMode::Kept,
                "broken" => FlushMode::Broken,
                _ => return Err(format!("flush is kept or broken, not '{value}'")),
            }),
            "record" => options.recording(match value {
                "on" => Recording::On,
                "off" => Recording::Off,
                _ => return Err(format!("record is on or off, not '{value}'")),
            }),
            "errors" | "short" => {
                let one_in = value.parse().ok().filter(|n| *n > 0).ok_or_else(bad_value)?;
                let fault = match name {
                    "errors" => Fault::Error(Errno::IO),
                    _ => Fault::Short,
                };
                rules.push(Rule::new(None, When::OneIn(one_in), fault));
                options
            }
            _ => {
                let nearest = nearest(name, &OPTIONS);
                return Err(format!("sim has no option '{name}'; did you mean '{nearest}'?"));
            }
        };
    }
    Ok(Target::Sim(options, rules))
}

fn whole_blocks_of_512(text: &str) -> Result<u64, String> {
    match parse_size(text)? {
        size if size.is_multiple_of(512) => Ok(size),
        size => Err(format!("{size} bytes are not whole blocks of 512")),
    }
}

fn duration(text: &str) -> Result<Duration, String> {
    let bad_value = || format!("'{text}' is not a time; write one like 80us, 1ms or 2s");
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let number: u64 = digits.parse().map_err(|_| bad_value())?;
    Ok(match &text[digits.len()..] {
        "ns" => Duration::from_nanos(number),
        "us" => Duration::from_micros(number),
        "ms" => Duration::from_millis(number),
        "s" => Duration::from_secs(number),
        _ => return Err(bad_value()),
    })
}

/// The known name with the smallest edit distance.
fn nearest<'a>(name: &str, names: &[&'a str]) -> &'a str {
    names.iter().min_by_key(|known| distance(name, known)).expect("the list is not empty")
}

/// The Levenshtein distance, computed row by row.
fn distance(one: &str, other: &str) -> usize {
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (line, from) in one.bytes().enumerate() {
        let mut diagonal = row[0];
        row[0] = line + 1;
        for (column, to) in other.bytes().enumerate() {
            let change = diagonal + usize::from(from != to);
            diagonal = row[column + 1];
            row[column + 1] = change.min(diagonal + 1).min(row[column] + 1);
        }
    }
    row[other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str) -> String {
        let error = text.parse::<Target>().expect_err("refused").to_string();
        assert!(!error.contains('\n'));
        error
    }

    #[test]
    fn targets_are_parsed() {
        let path = |text: &str| matches!(text.parse(), Ok(Target::Path(path)) if path.to_str() == Some(text));
        assert!(path("/dev/vda") && path("./memory:1") && path("a:b"));
        assert!(matches!("memory:1g".parse(), Ok(Target::Memory(size)) if size == 1 << 30));
        assert!(matches!("null:4KiB".parse(), Ok(Target::Null(4096))));
        assert!(matches!("null:512kB".parse(), Ok(Target::Null(512_000))));
        let uri = "nbd://[::1]/n%20m?timeout=5";
        assert!(matches!(uri.parse(), Ok(Target::Remote(target)) if target.to_string() == uri));
        let sim: Target = "sim:1m,latency=80us,units=64,seed=7".parse().unwrap();
        assert_eq!(sim.to_string(), "sim, 1048576 bytes, seed 7, 64 units, latency 80µs");
        let sim: Target = "sim:1m,latency=1ms-5ms,spread=exponential,object=64k".parse().unwrap();
        assert!(
            sim.to_string().ends_with("latency 1ms to 5ms, exponential, objects of 65536 bytes")
        );
        let sim = "sim:1m,latency=10us-2ms,cache=none,block=4k,errors=100,short=9,flush=broken";
        let device = sim.parse::<Target>().unwrap().open(Access::ReadWrite).unwrap();
        assert_eq!(device.geometry().block_size, 4096);
        assert!(!device.geometry().volatile_cache);
    }

    #[test]
    fn a_bad_target_is_explained() {
        assert!(error("sim:1m,latencey=1us").contains("did you mean 'latency'"));
        assert!(error("sim:1m,unit=1").contains("did you mean 'units'"));
        assert!(error("sim:1m,latency=61s").contains("60s"));
        assert!(error("sim:1m,spread=even").contains("uniform or exponential"));
        assert!(error("sim:1m,object=100").contains("whole blocks"));
        assert!(error("sim:1m,object=0").contains("at least 512"));
        assert!(error("sim:1m,latency=5").contains("not a time"));
        assert!(error("sim:1m,units=0").contains("units"));
        assert!(error("sim:1m,block=1000").contains("power of two"));
        assert!(error("sim:5k,block=4k").contains("whole blocks"));
        assert!(error("sim:1m,errors=0").contains("errors"));
        assert!(error("sim:1m,seed").contains("OPTION=VALUE"));
        assert!(error("sim:").contains("invalid size"));
        assert!(error("memory:much").contains("invalid size"));
        assert!(error("memory:1000").contains("512"));
        assert!(error("memory:99999999999t").contains("invalid size"));
        assert!(
            error("nbd+unix:///n").starts_with("target 'nbd+unix:///n': the socket is missing")
        );
        assert!(error("nbds://host/n").contains("TLS"));
        assert!(error("").contains("missing"));
    }
}

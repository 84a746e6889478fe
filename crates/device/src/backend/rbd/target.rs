//! The name of an image: `rbd:POOL[/NAMESPACE]/IMAGE[@SNAPSHOT][?conf=FILE&id=NAME]`.

use std::ffi::OsStr;
use std::fmt;
use std::io;
use std::ops::RangeInclusive;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use uringfs_rbd::ImageName;

use super::super::percent::{decode, decode_text, encode};

/// The beginning of the names of images.
const SCHEME: &str = "rbd:";

/// The time within which a cluster must answer when an image is opened.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30);

/// Timeouts, in seconds: at most a day.
const TIMEOUTS_S: RangeInclusive<u64> = 1..=24 * 60 * 60;

/// Leases, in seconds.
const LEASES_S: RangeInclusive<u64> = 5..=60 * 60;

/// How long a client from which an image is taken is shut out.
pub(super) const DEFAULT_LIFE: Duration = Duration::from_secs(10 * YEAR_S);
const MIN_LIFE: Duration = Duration::from_secs(20);
/// The times of the cluster end in 2106.
const MAX_LIFE: Duration = Duration::from_secs(50 * YEAR_S);
const YEAR_S: u64 = 365 * 24 * 60 * 60;

/// Where the client's cache of an image is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ImageCache {
    /// There is none: each completed write is durable.
    #[default]
    Off,
    /// In librbd, with write-back: a flush makes completed writes durable.
    On,
}

/// The name of an image of Ceph's RBD: `rbd:POOL[/NAMESPACE]/IMAGE[@SNAPSHOT]`, and after a `?` any of these, joined by `&`:
///
/// | option | meaning |
/// |---|---|
/// | `conf=FILE` | the configuration; otherwise that of `$CEPH_CONF`, or the first in Ceph's usual places |
/// | `id=NAME` | the client's name without `client.`; otherwise `admin` |
/// | `cache=off` or `cache=on` | librbd's own cache; off if it is not given, as volumes have a cache of their own |
/// | `timeout=SECONDS` | within which the cluster must answer when the image is opened: 1 to 86400, otherwise 30 |
/// | `request-timeout=SECONDS` | after which a new client of the cluster executes a writer's request again: 1 to 86400, otherwise never |
/// | `lease=SECONDS` | the kernel kills a writer's process that was stopped for so long: 5 to 3600, otherwise never |
/// | `take-over` or `take-over=LIFE` | a writer takes the image from the client that has its exclusive lock: see [`Rbd`](super::Rbd) |
///
/// LIFE is a number with `s`, `m`, `h`, `d` or `y` after it, from `20s` to `50y`; ten years if it is not given.
///
/// A request that the cluster does not answer may still be executed later. So one that has timed out is executed again only once
/// the client that has sent it is on the cluster's blocklist, and has not ended until then.
///
/// ```
/// # mod uringfs { pub use uringfs_device as device; }
/// use uringfs::device::backend::rbd::RbdTarget;
///
/// let target = RbdTarget::parse("rbd:rbd/disk@monday?id=backup").unwrap().unwrap();
/// assert_eq!((target.pool(), target.image(), target.snapshot()), ("rbd", "disk", Some("monday")));
/// assert_eq!(target.to_string(), "rbd:rbd/disk@monday?id=backup");
/// assert!(RbdTarget::parse("/dev/rbd0").is_none());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RbdTarget {
    pub(super) name: ImageName,
    pub(super) config: Option<PathBuf>,
    pub(super) client: Option<String>,
    pub(super) cache: ImageCache,
    pub(super) timeout: Duration,
    /// After which a request is executed again by a new client.
    pub(super) request_timeout: Option<Duration>,
    /// For how long a writer's process may be stopped.
    pub(super) lease: Option<Duration>,
    /// For how long the client that has the exclusive lock is shut out, if a writer takes the image from it.
    pub(super) take_over: Option<Duration>,
}

impl RbdTarget {
    fn new(name: ImageName) -> RbdTarget {
        RbdTarget {
            name,
            config: None,
            client: None,
            cache: ImageCache::Off,
            timeout: DEFAULT_TIMEOUT,
            request_timeout: None,
            lease: None,
            take_over: None,
        }
    }

    /// Parses the name of an image. `None` if the text does not begin with `rbd:`.
    ///
    /// # Errors
    /// One line that says what is wrong and what to write.
    pub fn parse(text: &str) -> Option<Result<RbdTarget, String>> {
        text.strip_prefix(SCHEME).map(parse_rest)
    }

    /// As [`Self::parse`], of a path. `None` if it is not UTF-8, as every name is.
    ///
    /// # Errors
    /// As [`Self::parse`], with the path.
    pub fn from_path(path: &Path) -> Option<io::Result<RbdTarget>> {
        let text = path.to_str()?;
        let explain = |what| io::Error::new(io::ErrorKind::InvalidInput, format!("{text}: {what}"));
        Some(RbdTarget::parse(text)?.map_err(explain))
    }

    /// The bytes of the name at the beginning of `NAME:/path`, which names a path in the volume on an image: that path follows
    /// the first `:/`. A `:/` of the name itself is written `%3A/`. `None` if the text does not begin with `rbd:`.
    pub(crate) fn uri_length(argument: &[u8]) -> Option<usize> {
        let rest = argument.strip_prefix(SCHEME.as_bytes())?;
        let path = rest.windows(2).position(|pair| pair == b":/");
        Some(path.map_or(argument.len(), |length| SCHEME.len() + length))
    }

    /// The form that all names of the same image have: without options, except for the configuration, which says the cluster. It
    /// is the one that is used if none is given.
    pub fn canonical(&self) -> RbdTarget {
        let config = self.config.clone().or_else(usual_config);
        let config = config.map(|path| path.canonicalize().unwrap_or(path));
        RbdTarget { config, ..RbdTarget::new(self.name.clone()) }
    }

    /// The same, by which a writer takes the image from the client that has its exclusive lock. That client is shut out of the
    /// cluster for `life`, which is at least 20 seconds.
    pub fn with_take_over(self, life: Duration) -> RbdTarget {
        RbdTarget { take_over: Some(life.clamp(MIN_LIFE, MAX_LIFE)), ..self }
    }

    /// Whether a writer takes the image from others.
    pub(crate) fn takes_over(&self) -> bool {
        self.take_over.is_some()
    }

    /// The pool.
    pub fn pool(&self) -> &str {
        &self.name.pool
    }

    /// The namespace in the pool; empty for the default one.
    pub fn namespace(&self) -> &str {
        &self.name.namespace
    }

    /// The image.
    pub fn image(&self) -> &str {
        &self.name.image
    }

    /// The snapshot.
    pub fn snapshot(&self) -> Option<&str> {
        self.name.snapshot.as_deref()
    }
}

impl fmt::Display for RbdTarget {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let part = |text: &str| encode(text.as_bytes()).replace('/', "%2F");
        write!(out, "{SCHEME}{}/", part(self.pool()))?;
        if !self.namespace().is_empty() {
            write!(out, "{}/", part(self.namespace()))?;
        }
        write!(out, "{}", part(self.image()))?;
        if let Some(snapshot) = self.snapshot() {
            write!(out, "@{}", part(snapshot))?;
        }
        let mut options = Vec::new();
        if let Some(config) = &self.config {
            options.push(format!("conf={}", encode(config.as_os_str().as_bytes())));
        }
        if let Some(client) = &self.client {
            options.push(format!("id={}", encode(client.as_bytes())));
        }
        if self.cache == ImageCache::On {
            options.push("cache=on".into());
        }
        if self.timeout != DEFAULT_TIMEOUT {
            options.push(format!("timeout={}", self.timeout.as_secs()));
        }
        if let Some(timeout) = self.request_timeout {
            options.push(format!("request-timeout={}", timeout.as_secs()));
        }
        if let Some(lease) = self.lease {
            options.push(format!("lease={}", lease.as_secs()));
        }
        match self.take_over {
            Some(DEFAULT_LIFE) => options.push("take-over".into()),
            Some(life) => options.push(format!("take-over={}", shown_life(life))),
            None => {}
        }
        match options.is_empty() {
            true => Ok(()),
            false => write!(out, "?{}", options.join("&")),
        }
    }
}

/// Parses what follows the scheme.
fn parse_rest(rest: &str) -> Result<RbdTarget, String> {
    let (location, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (location, snapshot) = match location.split_once('@') {
        Some((location, snapshot)) => (location, Some(part(snapshot, "snapshot")?)),
        None => (location, None),
    };
    let parts: Vec<&str> = location.split('/').collect();
    let (pool, namespace, image) = match parts[..] {
        [pool, image] => (pool, String::new(), image),
        [pool, namespace, image] => (pool, part(namespace, "namespace")?, image),
        _ => return Err("write rbd:POOL/IMAGE or rbd:POOL/NAMESPACE/IMAGE".into()),
    };
    let (pool, image) = (part(pool, "pool")?, part(image, "image")?);
    let name = ImageName { pool, namespace, image, snapshot };
    let mut target = RbdTarget::new(name);
    let mut seen = Vec::new();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        match key {
            "conf" => {
                let path = decode(value)?;
                if path.is_empty() || path.iter().any(u8::is_ascii_control) {
                    return Err("'conf' is not the path of a configuration file".into());
                }
                target.config = Some(OsStr::from_bytes(&path).into());
            }
            "id" => {
                let client = part(value, "client's name")?;
                if let Some(name) = client.strip_prefix("client.") {
                    return Err(format!("write the client's name without 'client.': id={name}"));
                }
                target.client = Some(client);
            }
            "cache" => {
                target.cache = match value {
                    "off" => ImageCache::Off,
                    "on" => ImageCache::On,
                    _ => return Err(format!("cache is off or on, not '{value}'")),
                }
            }
            "timeout" => target.timeout = seconds(key, value, TIMEOUTS_S)?,
            "request-timeout" => target.request_timeout = Some(seconds(key, value, TIMEOUTS_S)?),
            "lease" => target.lease = Some(seconds(key, value, LEASES_S)?),
            "take-over" => target.take_over = Some(life(value)?),
            _ => {
                return Err(format!(
                    "an image has no option '{key}'; it has 'conf', 'id', 'cache', 'timeout', 'request-timeout', 'lease' and 'take-over'"
                ));
            }
        }
        if seen.contains(&key) {
            return Err(format!("'{key}' is given twice"));
        }
        seen.push(key);
    }
    if target.cache == ImageCache::On && target.request_timeout.is_some() {
        return Err("cache=on and request-timeout exclude each other: what is in the cache of a client is lost with it".into());
    }
    Ok(target)
}

/// A number of seconds.
fn seconds(key: &str, value: &str, allowed: RangeInclusive<u64>) -> Result<Duration, String> {
    let seconds = value.parse().ok().filter(|seconds| allowed.contains(seconds));
    seconds.map(Duration::from_secs).ok_or_else(|| {
        let (first, last) = (allowed.start(), allowed.end());
        format!("{key} {value} is not within {first} to {last} (seconds)")
    })
}

/// The configuration that librados takes if none is named.
fn usual_config() -> Option<PathBuf> {
    if let Some(path) = std::env::var_os("CEPH_CONF") {
        return Some(path.into());
    }
    let home = std::env::home_dir().map(|home| home.join(".ceph/ceph.conf"));
    let usual = [Some("/etc/ceph/ceph.conf".into()), home, Some("ceph.conf".into())];
    usual.into_iter().flatten().find(|path| path.exists())
}

const UNITS: [(&str, u64); 5] =
    [("y", YEAR_S), ("d", 24 * 60 * 60), ("h", 60 * 60), ("m", 60), ("s", 1)];

/// A time as it is written in an option, in the largest unit that shows all of it.
pub(super) fn shown_life(life: Duration) -> String {
    let seconds = life.as_secs();
    let (unit, size) =
        UNITS.iter().find(|(_, size)| seconds.is_multiple_of(*size)).unwrap_or(&("s", 1));
    format!("{}{unit}", seconds / size)
}

/// A time for which a client is shut out.
fn life(text: &str) -> Result<Duration, String> {
    if text.is_empty() {
        return Ok(DEFAULT_LIFE);
    }
    let refused = || {
        format!(
            "take-over={text} is no time from 20s to 50y; write one like 90s, 5m, 2h, 30d or 10y"
        )
    };
    let digits = text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let (_, seconds) = UNITS.into_iter().find(|(name, _)| *name == unit).ok_or_else(refused)?;
    let life = number.parse::<u64>().ok().and_then(|number| number.checked_mul(seconds));
    let life = life.map(Duration::from_secs).ok_or_else(refused)?;
    if life < MIN_LIFE || life > MAX_LIFE { Err(refused()) } else { Ok(life) }
}

/// A part of the name.
fn part(text: &str, what: &str) -> Result<String, String> {
    let decoded = decode_text(text)?;
    match decoded.is_empty() || decoded.contains(char::is_control) {
        true => Err(format!(
            "the {what} is missing, or contains a control character; write rbd:POOL/IMAGE"
        )),
        false => Ok(decoded),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<RbdTarget, String> {
        RbdTarget::parse(text).unwrap()
    }

    #[test]
    fn names_of_images_are_parsed_and_shown_the_same() {
        for text in [
            "rbd:rbd/disk",
            "rbd:pool/space/disk@snap",
            "rbd:a%2Fb/c%40d%3Fe",
            "rbd:rbd/disk?conf=/etc/ceph/other.conf&id=backup&cache=on&timeout=5",
            "rbd:rbd/disk?request-timeout=30&lease=15&take-over",
            "rbd:rbd/disk?take-over=20s",
            "rbd:rbd/disk?take-over=90m",
            "rbd:rbd/disk?take-over=50y",
        ] {
            assert_eq!(parse(text).unwrap().to_string(), text);
        }
        let target = parse("rbd:pool/space/disk@snap").unwrap();
        assert_eq!((target.pool(), target.namespace(), target.image()), ("pool", "space", "disk"));
        let decoded = parse("rbd:a%2Fb/c%40d%3Fe").unwrap();
        assert_eq!((decoded.pool(), decoded.image(), decoded.snapshot()), ("a/b", "c@d?e", None));
    }

    #[test]
    fn one_image_of_a_cluster_has_one_canonical_name() {
        let canonical = |text: &str| parse(text).unwrap().canonical().to_string();
        let name = "rbd:rbd/disk?conf=/no/such";
        assert_eq!(canonical(&format!("{name}&id=a&cache=on&timeout=1&take-over")), name);
        let folder = tempfile::tempdir().unwrap();
        let [real, link] = ["real", "link"].map(|name| folder.path().join(name));
        std::fs::write(&real, "").unwrap();
        std::os::unix::fs::symlink(&real, &link).unwrap();
        let [real, link] =
            [real, link].map(|path| canonical(&format!("rbd:rbd/disk?conf={}", path.display())));
        assert_eq!(real, link);
    }

    #[test]
    fn a_path_in_the_volume_on_an_image_follows_the_name() {
        let split = |text: &'static str| {
            RbdTarget::uri_length(text.as_bytes()).map(|length| text.split_at(length))
        };
        assert_eq!(split("rbd:rbd/disk:/var/log"), Some(("rbd:rbd/disk", ":/var/log")));
        assert_eq!(split("rbd:rbd/disk?conf=/etc/c:/x"), Some(("rbd:rbd/disk?conf=/etc/c", ":/x")));
        assert_eq!(split("rbd:rbd/disk"), Some(("rbd:rbd/disk", "")));
        assert_eq!(split("/rbd:x/y:/z"), None);
    }

    #[test]
    fn bad_names_are_explained() {
        for (text, expected) in [
            ("rbd:", "POOL/IMAGE"),
            ("rbd:disk", "POOL/IMAGE"),
            ("rbd:a/b/c/d", "POOL/NAMESPACE/IMAGE"),
            ("rbd:/disk", "pool is missing"),
            ("rbd:rbd/", "image is missing"),
            ("rbd:rbd//disk", "namespace is missing"),
            ("rbd:rbd/disk@", "snapshot is missing"),
            ("rbd:rbd/d%0", "%25"),
            ("rbd:rbd/disk?conf", "'conf'"),
            ("rbd:rbd/disk?id=client.admin", "id=admin"),
            ("rbd:rbd/disk?cache=some", "off or on"),
            ("rbd:rbd/disk?timeout=0", "within 1 to"),
            ("rbd:rbd/disk?lease=4", "within 5 to 3600"),
            ("rbd:rbd/disk?request-timeout=0", "within 1 to"),
            ("rbd:rbd/disk?cache=on&request-timeout=9", "exclude each other"),
            ("rbd:rbd/disk?take-over=10", "20s to 50y"),
            ("rbd:rbd/disk?take-over=19s", "20s to 50y"),
            ("rbd:rbd/disk?take-over=51y", "20s to 50y"),
            ("rbd:rbd/disk?take-over=99999999999999999999y", "20s to 50y"),
            ("rbd:rbd/disk?key=x", "no option 'key'"),
            ("rbd:rbd/disk?id=a&id=b", "twice"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}

//! [`Cluster`]: a client instance.

use std::error::Error;
use std::ffi::{CStr, CString, c_char, c_int};
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::ptr;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use uringfs_errno::Errno;

use crate::exit;
use crate::library::{Functions, Library, Rados};

/// How to connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectOptions {
    /// The configuration file. `None`: that of `$CEPH_CONF`, or the first in Ceph's usual places.
    pub config: Option<PathBuf>,
    /// The client's name without `client.`. `None`: `admin`, or that of `$CEPH_ARGS`.
    pub name: Option<String>,
    /// Settings that the configuration has otherwise, as `rbd_cache`.
    pub settings: Vec<(String, String)>,
    /// The longest wait for a monitor, in whole seconds.
    pub timeout: Duration,
}

/// Why there is no connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConnectError {
    /// The configuration file cannot be read.
    Configuration(Errno),
    /// A setting, by its name, has no such value, or does not exist.
    Setting(String, Errno),
    /// No monitor lets the client in: ETIMEDOUT if none answers, EACCES for a wrong key, ENOENT for a missing one.
    Connect(Errno),
}

impl fmt::Display for ConnectError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConnectError::Configuration(errno) => write!(out, "reading the configuration: {errno}"),
            ConnectError::Setting(name, errno) => write!(out, "the setting {name}: {errno}"),
            ConnectError::Connect(errno) => write!(out, "connecting: {errno}"),
        }
    }
}

impl Error for ConnectError {}

/// A client that is shut out of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlocklistEntry {
    /// Its address with its nonce, as `10.0.0.1:0/4711`.
    pub address: String,
    /// When the entry ends, as the cluster writes it: `2036-11-28T19:05:31.123456+0000`.
    pub until: String,
}

impl BlocklistEntry {
    /// When the entry ends, in whole seconds. `None` if the cluster writes times in another way.
    pub fn ends(&self) -> Option<SystemTime> {
        let number = |from: usize, to: usize| self.until.get(from..to)?.parse::<i64>().ok();
        let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
        let (hour, minute, second) = (number(11, 13)?, number(14, 16)?, number(17, 19)?);
        let zone = self.until.get(self.until.len().checked_sub(5)?..)?;
        let (zone_hours, zone_minutes) = (zone.get(1..3)?, zone.get(3..5)?);
        let zone_minutes =
            zone_hours.parse::<i64>().ok()? * 60 + zone_minutes.parse::<i64>().ok()?;
        let east = match zone.get(..1)? {
            "+" => zone_minutes,
            "-" => -zone_minutes,
            _ => return None,
        };
        // Days since 1970, of years that begin in March.
        let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
        let days =
            365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day - 1;
        let seconds = (((days - 719_468) * 24 + hour) * 60 + minute - east) * 60 + second;
        Some(UNIX_EPOCH + Duration::from_secs(seconds.try_into().ok()?))
    }
}

/// A client instance of a cluster. Any thread may use it.
pub struct Cluster {
    raw: Rados,
    functions: &'static Functions,
    process: u32,
}

// SAFETY: librados' functions on a client instance may be called from any thread.
unsafe impl Send for Cluster {}
// SAFETY: as above, also at once.
unsafe impl Sync for Cluster {}

impl fmt::Debug for Cluster {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "client.{}", self.instance())
    }
}

/// The result of a call of Ceph: 0 or more, or a negative errno.
pub(crate) fn check(result: c_int) -> Result<u32, Errno> {
    match result {
        0.. => Ok(result as u32),
        error => Err(errno_of(error.into())),
    }
}

/// The errno that a negative result means. ESHUTDOWN is that of a client that was blocklisted.
pub(crate) fn errno_of(result: i64) -> Errno {
    match result.checked_neg() {
        Some(raw @ 1..=4095) => Errno::from_raw_os_error(raw as i32),
        _ => Errno::IO,
    }
}

/// A string for C. EINVAL for one with a NUL.
pub(crate) fn c_string(text: impl Into<Vec<u8>>) -> Result<CString, Errno> {
    CString::new(text).map_err(|_| Errno::INVAL)
}

impl Cluster {
    /// Connects to the monitors of a cluster.
    ///
    /// # Errors
    /// As [`ConnectError`].
    pub fn connect(
        library: Library,
        options: &ConnectOptions,
    ) -> Result<Arc<Cluster>, ConnectError> {
        let functions = library.0;
        let configuration = ConnectError::Configuration;
        let name = options.name.as_deref().map(c_string).transpose().map_err(configuration)?;
        let mut raw = ptr::null_mut();
        // SAFETY: both pointers are valid during the call; a null name is the default one.
        let created = unsafe {
            (functions.rados_create)(&mut raw, name.as_ref().map_or(ptr::null(), |it| it.as_ptr()))
        };
        check(created).map_err(configuration)?;
        exit::note_open();
        // From now on its drop ends the instance.
        let cluster = Cluster { raw, functions, process: std::process::id() };
        cluster.configure(options)?;
        // SAFETY: the instance is not connected yet.
        check(unsafe { (functions.rados_connect)(raw) }).map_err(ConnectError::Connect)?;
        exit::guard();
        Ok(Arc::new(cluster))
    }

    fn configure(&self, options: &ConnectOptions) -> Result<(), ConnectError> {
        let configuration = ConnectError::Configuration;
        let file = options.config.as_ref().map(|path| c_string(path.as_os_str().as_bytes()));
        let file = file.transpose().map_err(configuration)?;
        let file = file.as_ref().map_or(ptr::null(), |file| file.as_ptr());
        // SAFETY: the path is valid during the call; null means the usual places.
        check(unsafe { (self.functions.rados_conf_read_file)(self.raw, file) })
            .map_err(configuration)?;
        // SAFETY: null means `CEPH_ARGS`.
        check(unsafe { (self.functions.rados_conf_parse_env)(self.raw, ptr::null()) })
            .map_err(configuration)?;
        // The callers get errors as results; without this the library also writes them to standard error.
        let quiet =
            ["log_to_stderr", "err_to_stderr"].map(|name| (name.to_owned(), "false".to_owned()));
        let seconds = options.timeout.as_secs().max(1);
        let timeout = ("client_mount_timeout".to_owned(), seconds.to_string());
        for (name, value) in quiet.iter().chain([&timeout]).chain(&options.settings) {
            self.set(name, value).map_err(|errno| ConnectError::Setting(name.clone(), errno))?;
        }
        Ok(())
    }

    fn set(&self, name: &str, value: &str) -> Result<(), Errno> {
        let (name, value) = (c_string(name)?, c_string(value)?);
        // SAFETY: both strings are valid during the call.
        check(unsafe { (self.functions.rados_conf_set)(self.raw, name.as_ptr(), value.as_ptr()) })
            .map(drop)
    }

    /// The number of this instance, as in `client.4711`.
    pub fn instance(&self) -> u64 {
        // SAFETY: the instance exists.
        unsafe { (self.functions.rados_get_instance_id)(self.raw) }
    }

    /// The address of this instance with its nonce, as [`Image::lock_owner`](crate::Image::lock_owner) has it.
    ///
    /// # Errors
    /// The library's.
    pub fn address(&self) -> Result<String, Errno> {
        let mut address = ptr::null_mut();
        // SAFETY: the instance is connected; the library stores the address of a string of its own.
        check(unsafe { (self.functions.rados_getaddrs)(self.raw, &mut address) })?;
        // SAFETY: the string ends with a NUL.
        let length = unsafe { CStr::from_ptr(address) }.count_bytes();
        let text = String::from_utf8_lossy(&self.take_bytes(address, length)).into_owned();
        Ok(first_address(&text).to_owned())
    }

    /// Puts a client's address with its nonce on the blocklist of the cluster for this long, in whole seconds. An entry that is
    /// there keeps its time. Each request of this instance from then on tells its storage daemon of the entry.
    ///
    /// # Errors
    /// EINVAL for what is no address; EACCES without the capability.
    pub fn blocklist(&self, address: &str, life: Duration) -> Result<(), Errno> {
        let address = c_string(address)?;
        let seconds = u32::try_from(life.as_secs()).unwrap_or(u32::MAX).max(1);
        // SAFETY: the library does not change the string.
        check(unsafe {
            (self.functions.rados_blocklist_add)(self.raw, address.as_ptr().cast_mut(), seconds)
        })?;
        self.wait_for_latest_map()
    }

    /// Waits for the newest map of the storage daemons, with which each request is sent: a daemon that has an older one gets
    /// it first.
    ///
    /// # Errors
    /// The library's.
    pub fn wait_for_latest_map(&self) -> Result<(), Errno> {
        // SAFETY: the instance is connected.
        check(unsafe { (self.functions.rados_wait_for_latest_osdmap)(self.raw) }).map(drop)
    }

    /// The entries of the cluster's blocklist.
    ///
    /// # Errors
    /// EACCES without the capability.
    pub fn blocklisted(&self) -> Result<Vec<BlocklistEntry>, Errno> {
        let listed = self.command(r#"{"prefix": "osd blocklist ls"}"#)?;
        // Lines of an address and a time.
        let lines = String::from_utf8_lossy(&listed);
        let entry = |line: &str| {
            let (address, until) = line.trim().split_once(' ')?;
            Some(BlocklistEntry { address: address.into(), until: until.trim().into() })
        };
        Ok(lines.lines().filter_map(entry).collect())
    }

    /// Removes an address from the blocklist.
    ///
    /// # Errors
    /// EACCES without the capability.
    pub fn remove_from_blocklist(&self, address: &str) -> Result<(), Errno> {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b".:/[]-".contains(&byte);
        if !address.bytes().all(is_plain) {
            return Err(Errno::INVAL);
        }
        let command = r#"{"prefix": "osd blocklist", "blocklistop": "rm", "addr": ""#;
        self.command(&format!("{command}{address}\"}}")).map(drop)
    }

    /// Sends a command, in JSON, to the monitors. Returns what they answer.
    fn command(&self, json: &str) -> Result<Vec<u8>, Errno> {
        let json = c_string(json)?;
        let mut commands = [json.as_ptr()];
        let (mut answer, mut answer_length) = (ptr::null_mut(), 0);
        // SAFETY: all pointers are valid during the call; the library stores the address of memory of its own. Null means
        // that the monitors' text is not wanted.
        let result = unsafe {
            (self.functions.rados_mon_command)(
                self.raw,
                commands.as_mut_ptr(),
                commands.len(),
                ptr::null(),
                0,
                &mut answer,
                &mut answer_length,
                ptr::null_mut(),
                ptr::null_mut(),
            )
        };
        let answer = self.take_bytes(answer, answer_length);
        check(result).map(|_| answer)
    }

    /// Copies and frees memory of the library.
    fn take_bytes(&self, bytes: *mut c_char, length: usize) -> Vec<u8> {
        if bytes.is_null() {
            return Vec::new();
        }
        // SAFETY: the library has allocated this many bytes.
        let copy = unsafe { std::slice::from_raw_parts(bytes.cast::<u8>(), length) }.to_vec();
        // SAFETY: as above, and they are not used any more.
        unsafe { (self.functions.rados_buffer_free)(bytes) };
        copy
    }

    pub(crate) fn raw(&self) -> Rados {
        self.raw
    }

    pub(crate) fn functions(&self) -> &'static Functions {
        self.functions
    }

    /// True in the child of a fork, which has none of the library's threads.
    pub(crate) fn is_forked(&self) -> bool {
        self.process != std::process::id()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if !self.is_forked() {
            exit::close(|| {
                // SAFETY: nothing uses the instance any more: images keep it.
                unsafe { (self.functions.rados_shutdown)(self.raw) };
                exit::note_closed();
            });
        }
    }
}

/// The first address of a list, without its kind: `127.0.0.1:0/4711` of `v1:127.0.0.1:0/4711`, which is in brackets if there
/// are several. An IPv6 address has brackets of its own.
fn first_address(list: &str) -> &str {
    let is_kind =
        |text: &str| ["v1:", "v2:", "any:"].into_iter().find(|kind| text.starts_with(kind));
    let inner = list.strip_prefix('[').filter(|inner| is_kind(inner).is_some());
    let inner = inner.map(|inner| inner.strip_suffix(']').unwrap_or(inner));
    let first = inner.unwrap_or(list).split(',').next().unwrap_or_default();
    &first[is_kind(first).unwrap_or_default().len()..]
}

/// The text in a buffer, before its first NUL.
pub(crate) fn text_in(buffer: &[u8]) -> Result<String, Errno> {
    let text = CStr::from_bytes_until_nul(buffer).map_err(|_| Errno::OVERFLOW)?;
    text.to_str().map(str::to_owned).map_err(|_| Errno::ILSEQ)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_the_first_of_a_list() {
        for (list, first) in [
            ("v1:127.0.0.1:0/4711", "127.0.0.1:0/4711"),
            ("127.0.0.1:0/4711", "127.0.0.1:0/4711"),
            ("[v2:10.0.0.1:0/1,v1:10.0.0.1:0/2]", "10.0.0.1:0/1"),
            ("v1:[2001:db8::5]:0/47", "[2001:db8::5]:0/47"),
            ("[2001:db8::5]:0/47", "[2001:db8::5]:0/47"),
            ("[v2:[::1]:0/1,v1:[::1]:0/2]", "[::1]:0/1"),
            ("any:[::1]:0/1", "[::1]:0/1"),
        ] {
            assert_eq!(first_address(list), first, "{list}");
        }
    }

    #[test]
    fn the_end_of_an_entry_is_a_time() {
        let ends = |until: &str| {
            let entry = BlocklistEntry { address: String::new(), until: until.into() };
            entry.ends().map(|time| time.duration_since(UNIX_EPOCH).unwrap().as_secs())
        };
        assert_eq!(ends("1970-01-01T00:00:00.000000+0000"), Some(0));
        assert_eq!(ends("2000-02-29T23:59:59.123456+0000"), Some(951_868_799));
        assert_eq!(ends("2000-03-01T01:59:59.123456+0200"), Some(951_868_799));
        assert_eq!(ends("2036-11-28T14:35:31.5-0430"), Some(2_111_511_931));
        for text in ["", "never", "2036-11-28", "2036-11-28T19:05:31Z", "20é6-11-28T19:05:31+0000"]
        {
            assert_eq!(ends(text), None, "{text}");
        }
    }
}

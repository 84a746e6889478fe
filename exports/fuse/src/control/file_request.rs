//! [`FileRequest`]: what a client asks for in a session about files, and the attributes and errors in replies, as JSON.

use std::io;

use serde_json::{Map, Value, json};
use uringfs::volume::{FileType, Follow, Inode, InodeNumber, Metadata, Rename, SetXattr, Time};
use uringfs::{Errno, Error, ErrorKind};

use super::protocol::{failure, number, object, require_empty};

/// The most bytes of data in one request or reply.
pub(crate) const MAX_DATA_BYTES: usize = 1 << 20;
/// The longest line of a request in bytes: two paths of non-UTF-8 bytes fit.
pub(crate) const MAX_FILE_REQUEST_BYTES: usize = 64 << 10;

/// A request in a session about files. Paths are absolute paths in the volume.
#[doc(hidden)]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FileRequest {
    /// The attributes of a file.
    Stat(Vec<u8>, Follow),
    /// The entries of a directory.
    List(Vec<u8>),
    /// A file's number and size, for requests about its bytes.
    Open(Vec<u8>, Opening),
    /// Bytes of a file, which follow the reply.
    Read(FileRange),
    /// The first range of a file at or behind an offset that is no hole.
    Data { file: InodeNumber, offset: u64 },
    /// Writes the bytes that follow the request.
    Write(FileRange),
    /// Truncates or extends a file.
    SetSize { file: InodeNumber, size: u64 },
    /// Creates a file of any kind.
    Make(Vec<u8>, Box<Inode>),
    /// Changes attributes.
    SetAttributes(Vec<u8>, Follow, AttributeChanges),
    /// Renames a file.
    Rename { from: Vec<u8>, to: Vec<u8>, how: Rename },
    /// Adds a name to a file.
    Link { from: Vec<u8>, to: Vec<u8> },
    /// Removes a name that is no directory's.
    RemoveFile(Vec<u8>),
    /// Removes an empty directory.
    RemoveDirectory(Vec<u8>),
    /// The names of the extended attributes.
    ListXattrs(Vec<u8>, Follow),
    /// The value of an extended attribute, which follows the reply.
    GetXattr { path: Vec<u8>, follow: Follow, name: Vec<u8> },
    /// Sets an extended attribute to the bytes that follow the request.
    SetXattr { path: Vec<u8>, follow: Follow, name: Vec<u8>, how: SetXattr, length: usize },
    /// Removes an extended attribute.
    RemoveXattr { path: Vec<u8>, follow: Follow, name: Vec<u8> },
    /// Makes all changes durable.
    Sync,
    /// Why there is no space.
    Shortage,
}

/// How a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opening {
    /// An existing file, to read it.
    Read,
    /// An existing file, to write it.
    Write,
    /// The same; a file that does not exist is created with these permissions.
    Create(u32),
}

/// A range of a file, at most [`MAX_DATA_BYTES`] long.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileRange {
    /// The file.
    pub file: InodeNumber,
    /// Its first byte.
    pub offset: u64,
    /// The number of bytes.
    pub length: usize,
}

/// New values of attributes. `None` leaves one as it is.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AttributeChanges {
    permissions: Option<u16>,
    user: Option<u32>,
    group: Option<u32>,
    accessed: Option<Time>,
    modified: Option<Time>,
}

impl AttributeChanges {
    /// The attributes that are different in `new`.
    pub(crate) fn between(old: &Inode, new: &Inode) -> AttributeChanges {
        fn changed<T: PartialEq>(old: T, new: T) -> Option<T> {
            (old != new).then_some(new)
        }
        AttributeChanges {
            permissions: changed(old.permissions, new.permissions),
            user: changed(old.user, new.user),
            group: changed(old.group, new.group),
            accessed: changed(old.accessed, new.accessed),
            modified: changed(old.modified, new.modified),
        }
    }

    pub(crate) fn apply(&self, inode: &mut Inode) {
        inode.permissions = self.permissions.unwrap_or(inode.permissions);
        inode.user = self.user.unwrap_or(inode.user);
        inode.group = self.group.unwrap_or(inode.group);
        inode.accessed = self.accessed.unwrap_or(inode.accessed);
        inode.modified = self.modified.unwrap_or(inode.modified);
    }
}

impl FileRequest {
    /// The number of bytes that follow the request.
    pub fn data_bytes(&self) -> usize {
        match self {
            FileRequest::Write(range) => range.length,
            FileRequest::SetXattr { length, .. } => *length,
            _ => 0,
        }
    }

    /// True if it changes the volume.
    pub(crate) fn is_change(&self) -> bool {
        use FileRequest::*;
        match self {
            Stat(..) | List(_) | Read(_) | Data { .. } | ListXattrs(..) | GetXattr { .. } => false,
            Open(_, opening) => *opening != Opening::Read,
            Sync | Shortage => false,
            Write(_) | SetSize { .. } | Make(..) | SetAttributes(..) | Rename { .. } => true,
            Link { .. } | RemoveFile(_) | RemoveDirectory(_) => true,
            SetXattr { .. } | RemoveXattr { .. } => true,
        }
    }

    /// Its line, without the line feed.
    pub fn to_json(&self) -> Value {
        use FileRequest::*;
        let about = |request: &str, path: &[u8]| json!({"request": request, "path": text(path)});
        let link = |request: &str, path: &[u8], follow: &Follow| json!({"request": request, "path": text(path), "follow": *follow == Follow::Yes});
        let range = |request: &str, FileRange { file, offset, length }: &FileRange| json!({"request": request, "file": file.0, "offset": offset, "bytes": length});
        let with = |mut request: Value, fields: &[(&str, Value)]| {
            for (name, value) in fields {
                request[*name] = value.clone();
            }
            request
        };
        match self {
            Stat(path, follow) => link("stat", path, follow),
            List(path) => about("list", path),
            Open(path, Opening::Read) => about("open", path),
            Open(path, Opening::Write) => with(about("open", path), &[("write", true.into())]),
            Open(path, Opening::Create(mode)) => {
                with(about("open", path), &[("write", true.into()), ("create", (*mode).into())])
            }
            Read(of) => range("read", of),
            Data { file, offset } => json!({"request": "data", "file": file.0, "offset": offset}),
            Write(of) => range("write", of),
            SetSize { file, size } => json!({"request": "set-size", "file": file.0, "size": size}),
            Make(path, inode) => {
                with(about("make", path), &[("attributes", attributes(None, inode))])
            }
            SetAttributes(path, follow, changes) => {
                with(link("set-attributes", path, follow), &[("attributes", changes.to_json())])
            }
            Rename { from, to, how } => {
                let fields = [("to", text(to)), ("existing", rename_word(*how).into())];
                with(about("rename", from), &fields)
            }
            Link { from, to } => with(about("link", from), &[("to", text(to))]),
            RemoveFile(path) => about("remove-file", path),
            RemoveDirectory(path) => about("remove-directory", path),
            ListXattrs(path, follow) => link("list-xattrs", path, follow),
            GetXattr { path, follow, name } => {
                with(link("get-xattr", path, follow), &[("name", text(name))])
            }
            SetXattr { path, follow, name, how, length } => {
                let how = xattr_word(*how).into();
                let fields = [("name", text(name)), ("existing", how), ("bytes", (*length).into())];
                with(link("set-xattr", path, follow), &fields)
            }
            RemoveXattr { path, follow, name } => {
                with(link("remove-xattr", path, follow), &[("name", text(name))])
            }
            Sync => json!({"request": "sync"}),
            Shortage => json!({"request": "shortage"}),
        }
    }

    /// The request in a line.
    ///
    /// # Errors
    /// The reason, in one line, why it is none.
    pub fn from_json(line: &[u8]) -> Result<FileRequest, String> {
        use FileRequest::*;
        let mut fields = object(line)?;
        let of = &mut fields;
        let name = of.remove("request");
        let request = match name.as_ref().and_then(Value::as_str) {
            Some("stat") => Stat(path(of)?, follow(of)?),
            Some("list") => List(path(of)?),
            Some("open") => Open(path(of)?, opening(of)?),
            Some("read") => Read(range(of)?),
            Some("data") => Data { file: file(of)?, offset: number(of, "offset")? },
            Some("write") => Write(range(of)?),
            Some("set-size") => SetSize { file: file(of)?, size: number(of, "size")? },
            Some("make") => Make(path(of)?, Box::new(new_inode(of)?)),
            Some("set-attributes") => {
                SetAttributes(path(of)?, follow(of)?, AttributeChanges::from_json(of)?)
            }
            Some("rename") => {
                Rename { from: path(of)?, to: bytes(of, "to")?, how: rename_from(of)? }
            }
            Some("link") => Link { from: path(of)?, to: bytes(of, "to")? },
            Some("remove-file") => RemoveFile(path(of)?),
            Some("remove-directory") => RemoveDirectory(path(of)?),
            Some("list-xattrs") => ListXattrs(path(of)?, follow(of)?),
            Some("get-xattr") => {
                GetXattr { path: path(of)?, follow: follow(of)?, name: bytes(of, "name")? }
            }
            Some("set-xattr") => SetXattr {
                path: path(of)?,
                follow: follow(of)?,
                name: bytes(of, "name")?,
                how: xattr_from(of)?,
                length: length(of)?,
            },
            Some("remove-xattr") => {
                RemoveXattr { path: path(of)?, follow: follow(of)?, name: bytes(of, "name")? }
            }
            Some("sync") => Sync,
            Some("shortage") => Shortage,
            Some(_) => return Err("there is no such request about files".into()),
            None => return Err("a request has its name as the field `request`".into()),
        };
        require_empty(&fields)?;
        Ok(request)
    }
}

impl AttributeChanges {
    fn to_json(self) -> Value {
        let mut fields = Map::new();
        let mut add = |name: &str, value: Option<Value>| {
            fields.extend(value.map(|value| (name.to_owned(), value)));
        };
        add("permissions", self.permissions.map(Value::from));
        add("user", self.user.map(Value::from));
        add("group", self.group.map(Value::from));
        add("accessed", self.accessed.map(time));
        add("modified", self.modified.map(time));
        fields.into()
    }

    fn from_json(request: &mut Map<String, Value>) -> Result<AttributeChanges, String> {
        let mut fields = section(request, "attributes")?;
        let of = &mut fields;
        let changes = AttributeChanges {
            permissions: optional(of, "permissions", permissions)?,
            user: optional(of, "user", small)?,
            group: optional(of, "group", small)?,
            accessed: optional(of, "accessed", time_from)?,
            modified: optional(of, "modified", time_from)?,
        };
        require_empty(&fields)?;
        Ok(changes)
    }
}

/// The attributes of a file as JSON.
pub(crate) fn attributes(number: Option<InodeNumber>, inode: &Inode) -> Value {
    let (kind, device) = inode.kind.mode_bits();
    let mut fields = json!({
        "kind": kind,
        "device": device,
        "permissions": inode.permissions,
        "user": inode.user,
        "group": inode.group,
        "links": inode.links,
        "size": inode.size,
        "blocks": inode.blocks,
        "accessed": time(inode.accessed),
        "modified": time(inode.modified),
        "changed": time(inode.changed),
        "created": time(inode.created),
        "parent": inode.parent.0,
        "staging": inode.is_staging,
        "target": text(&inode.target),
    });
    if let Some(number) = number {
        fields["file"] = number.0.into();
    }
    fields
}

/// The reverse of [`attributes`], of a reply.
pub(crate) fn metadata(reply: Value) -> Option<Metadata> {
    let Value::Object(mut fields) = reply else { return None };
    let number = file(&mut fields).ok()?;
    Some(Metadata::new(number, inode(&mut fields).ok()?))
}

/// The inode of a new file: what a client does not decide is as the volume makes it.
fn new_inode(request: &mut Map<String, Value>) -> Result<Inode, String> {
    let mut fields = section(request, "attributes")?;
    let asked = inode(&mut fields)?;
    require_empty(&fields)?;
    let mut new = match asked.kind {
        FileType::Symlink => Inode::symlink(&asked.target).map_err(|error| error.message())?,
        _ if !asked.target.is_empty() => return Err("only a symbolic link has a target".into()),
        kind => Inode::new(kind, 0),
    };
    (new.permissions, new.user, new.group) = (asked.permissions, asked.user, asked.group);
    (new.accessed, new.modified) = (asked.accessed, asked.modified);
    (new.changed, new.created) = (asked.changed, asked.created);
    new.is_staging = asked.is_staging && asked.kind == FileType::Directory;
    Ok(new)
}

fn inode(fields: &mut Map<String, Value>) -> Result<Inode, String> {
    let of = fields;
    let kind = required(of, "kind", |value| u16::try_from(value.as_u64()?).ok())?;
    let device = number(of, "device")?;
    let kind = FileType::from_mode(kind, device).ok_or("there is no such kind of file")?;
    let mut inode = Inode::new(kind, required(of, "permissions", permissions)?);
    inode.user = required(of, "user", small)?;
    inode.group = required(of, "group", small)?;
    inode.links = required(of, "links", small)?;
    inode.size = number(of, "size")?;
    inode.blocks = number(of, "blocks")?;
    inode.accessed = required(of, "accessed", time_from)?;
    inode.modified = required(of, "modified", time_from)?;
    inode.changed = required(of, "changed", time_from)?;
    inode.created = required(of, "created", time_from)?;
    inode.parent = InodeNumber(number(of, "parent")?);
    inode.is_staging = required(of, "staging", |value| value.as_bool())?;
    inode.target = bytes(of, "target")?.into();
    Ok(inode)
}

/// A name or a path: as text, or if it is not UTF-8 as the numbers of its bytes.
pub(crate) fn text(bytes: &[u8]) -> Value {
    match str::from_utf8(bytes) {
        Ok(text) => text.into(),
        Err(_) => bytes.into(),
    }
}

/// The reverse of [`text`].
pub(crate) fn bytes_of(value: Value) -> Option<Vec<u8>> {
    match value {
        Value::String(text) => Some(text.into_bytes()),
        Value::Array(bytes) => bytes.iter().map(|byte| u8::try_from(byte.as_u64()?).ok()).collect(),
        _ => None,
    }
}

/// The error of a request about files.
pub(crate) fn refusal(error: &Error) -> Value {
    let mut reply = failure(&error.message(), error.raw_os_error());
    reply["kind"] = kind_word(error.kind()).into();
    if let Some(name) = error.damaged_name() {
        reply["name"] = text(name);
    }
    reply
}

/// The error in a reply, if it is one.
pub(crate) fn error_of(reply: &Map<String, Value>) -> Option<Error> {
    let message = reply.get("error")?.as_str().unwrap_or("the server gives no reason").to_owned();
    let errno = reply.get("errno").and_then(Value::as_i64).and_then(|raw| raw.try_into().ok());
    let errno = errno.map_or(Errno::IO, Errno::from_raw_os_error);
    let kind = match reply.get("kind").and_then(Value::as_str) {
        Some("damaged") => ErrorKind::Damaged,
        Some("input") => ErrorKind::Input,
        Some("no space") => ErrorKind::NoSpace,
        Some("device") => ErrorKind::Io(errno),
        _ => ErrorKind::Refused(errno),
    };
    let name = reply.get("name").cloned().and_then(bytes_of);
    Some(Error::reported(kind, message, name.as_deref()))
}

/// The error of a conversation that cannot go on.
pub(crate) fn broken(error: io::Error) -> Error {
    let errno = Errno::from_io_error(&error).unwrap_or(Errno::PROTO);
    let message = format!("the server of the mount: {error}");
    Error::reported(ErrorKind::Refused(errno), message, None)
}

fn kind_word(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::Damaged => "damaged",
        ErrorKind::Input => "input",
        ErrorKind::NoSpace => "no space",
        ErrorKind::Io(_) => "device",
        _ => "refused",
    }
}

/// The words for renames, which differ in what happens to an existing file of the new name.
const RENAMES: [(&str, Rename); 5] = [
    ("replace", Rename::Replace),
    ("refuse", Rename::NoReplace),
    ("exchange", Rename::Exchange),
    ("whiteout", Rename::Whiteout),
    ("whiteout-refuse", Rename::WhiteoutNoReplace),
];

fn rename_word(how: Rename) -> &'static str {
    RENAMES.iter().find(|(_, it)| *it == how).map_or("replace", |(word, _)| *word)
}

fn rename_from(of: &mut Map<String, Value>) -> Result<Rename, String> {
    let how = |value: Value| RENAMES.iter().find(|(word, _)| value == *word).map(|(_, how)| *how);
    required(of, "existing", how)
}

const XATTRS: [(&str, SetXattr); 3] =
    [("replace", SetXattr::Either), ("refuse", SetXattr::Create), ("require", SetXattr::Replace)];

fn xattr_word(how: SetXattr) -> &'static str {
    XATTRS.iter().find(|(_, it)| *it == how).map_or("replace", |(word, _)| *word)
}

fn xattr_from(of: &mut Map<String, Value>) -> Result<SetXattr, String> {
    let how = |value: Value| XATTRS.iter().find(|(word, _)| value == *word).map(|(_, how)| *how);
    required(of, "existing", how)
}

fn opening(of: &mut Map<String, Value>) -> Result<Opening, String> {
    let writes = optional(of, "write", |value| value.as_bool())?.unwrap_or(false);
    match optional(of, "create", small)? {
        Some(mode) if writes => Ok(Opening::Create(mode)),
        Some(_) => Err("only a file that is written is created".into()),
        None if writes => Ok(Opening::Write),
        None => Ok(Opening::Read),
    }
}

fn path(of: &mut Map<String, Value>) -> Result<Vec<u8>, String> {
    bytes(of, "path")
}

fn file(of: &mut Map<String, Value>) -> Result<InodeNumber, String> {
    number(of, "file").map(InodeNumber)
}

fn follow(of: &mut Map<String, Value>) -> Result<Follow, String> {
    let follows = required(of, "follow", |value| value.as_bool())?;
    Ok(if follows { Follow::Yes } else { Follow::No })
}

fn range(of: &mut Map<String, Value>) -> Result<FileRange, String> {
    Ok(FileRange { file: file(of)?, offset: number(of, "offset")?, length: length(of)? })
}

fn length(of: &mut Map<String, Value>) -> Result<usize, String> {
    match usize::try_from(number(of, "bytes")?) {
        Ok(length) if length <= MAX_DATA_BYTES => Ok(length),
        _ => Err(format!("a request has at most {MAX_DATA_BYTES} bytes of data")),
    }
}

fn bytes(of: &mut Map<String, Value>, name: &str) -> Result<Vec<u8>, String> {
    required(of, name, bytes_of)
}

fn section(of: &mut Map<String, Value>, name: &str) -> Result<Map<String, Value>, String> {
    required(of, name, |value| match value {
        Value::Object(fields) => Some(fields),
        _ => None,
    })
}

fn required<T>(
    of: &mut Map<String, Value>,
    name: &str,
    parse: impl FnOnce(Value) -> Option<T>,
) -> Result<T, String> {
    optional(of, name, parse)?.ok_or_else(|| format!("the request has no field `{name}`"))
}

fn optional<T>(
    of: &mut Map<String, Value>,
    name: &str,
    parse: impl FnOnce(Value) -> Option<T>,
) -> Result<Option<T>, String> {
    let parse = |value| parse(value).ok_or_else(|| format!("the field `{name}` is wrong"));
    of.remove(name).map(parse).transpose()
}

fn small(value: Value) -> Option<u32> {
    value.as_u64()?.try_into().ok()
}

fn permissions(value: Value) -> Option<u16> {
    value.as_u64()?.try_into().ok().filter(|bits| bits & !0o7777 == 0)
}

/// Seconds since 1970, and nanoseconds.
fn time(time: Time) -> Value {
    json!([time.seconds(), time.nanoseconds()])
}

fn time_from(value: Value) -> Option<Time> {
    let [seconds, nanoseconds] = value.as_array()?.first_chunk()?;
    Time::new(seconds.as_i64()?, nanoseconds.as_u64()?.try_into().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> Vec<FileRequest> {
        use FileRequest::*;
        let (path, name) = (|| b"/a/\xff".to_vec(), || b"user.a".to_vec());
        let mut link = Inode::symlink(b"/b").unwrap();
        link.user = u32::MAX;
        let mut staging = Inode::new(FileType::Directory, 0o700);
        staging.is_staging = true;
        let file = InodeNumber(7);
        let range = FileRange { file, offset: u64::MAX, length: MAX_DATA_BYTES };
        let device = Inode::new(FileType::BlockDevice(u64::MAX), 0o7777);
        let changes = AttributeChanges {
            permissions: Some(0o640),
            accessed: Time::new(-1, 999_999_999),
            ..AttributeChanges::default()
        };
        let mut all = vec![
            Stat(b"/".to_vec(), Follow::Yes),
            List(path()),
            Open(path(), Opening::Read),
            Open(path(), Opening::Write),
            Open(path(), Opening::Create(0o644)),
            Read(range),
            Data { file, offset: 0 },
            Write(range),
            SetSize { file, size: 1 },
            Make(path(), Box::new(link)),
            Make(path(), Box::new(staging)),
            Make(path(), Box::new(device)),
            SetAttributes(path(), Follow::No, changes),
            Link { from: path(), to: path() },
            RemoveFile(path()),
            RemoveDirectory(path()),
            ListXattrs(path(), Follow::No),
            GetXattr { path: path(), follow: Follow::No, name: name() },
            RemoveXattr { path: path(), follow: Follow::No, name: name() },
            Sync,
            Shortage,
        ];
        all.extend(RENAMES.map(|(_, how)| Rename { from: path(), to: path(), how }));
        all.extend(XATTRS.map(|(_, how)| SetXattr {
            path: path(),
            follow: Follow::Yes,
            name: name(),
            how,
            length: 3,
        }));
        all
    }

    #[test]
    fn each_request_comes_as_it_was_sent() {
        for request in all() {
            let line = request.to_json().to_string();
            assert_eq!(FileRequest::from_json(line.as_bytes()), Ok(request), "{line}");
        }
    }

    #[test]
    fn a_new_file_has_no_attributes_that_only_the_volume_sets() {
        let mut asked = Inode::new(FileType::File, 0o640);
        let new = asked.clone();
        (asked.size, asked.blocks, asked.links) = (1, 2, 3);
        (asked.parent, asked.is_staging) = (InodeNumber(4), true);
        let made = |inode: &Inode| {
            let line = FileRequest::Make(b"/f".to_vec(), Box::new(inode.clone())).to_json();
            FileRequest::from_json(line.to_string().as_bytes())
        };
        assert_eq!(made(&asked), Ok(FileRequest::Make(b"/f".to_vec(), Box::new(new))));
        asked.target = (*b"/b").into();
        assert!(made(&asked).is_err());
        (asked.kind, asked.target) = (FileType::Symlink, Box::default());
        assert!(made(&asked).is_err());
    }

    #[test]
    fn requests_with_wrong_fields_are_refused() {
        for line in [
            r#"{"request":"stat","path":"/"}"#,
            r#"{"request":"stat","path":"/","follow":1}"#,
            r#"{"request":"stat","path":[256],"follow":true}"#,
            r#"{"request":"list","path":"/","more":1}"#,
            r#"{"request":"open","path":"/","create":1}"#,
            r#"{"request":"read","file":1,"offset":0,"bytes":1048577}"#,
            r#"{"request":"read","file":1,"offset":-1,"bytes":1}"#,
            r#"{"request":"rename","path":"/","to":"/","existing":"no"}"#,
            r#"{"request":"make","path":"/","attributes":{}}"#,
            r#"{"request":"set-attributes","path":"/","follow":true,"attributes":{"size":1}}"#,
            r#"{"request":"set-attributes","path":"/","follow":true,"attributes":{"permissions":4096}}"#,
            r#"{"request":"info"}"#,
            "{}",
            "",
        ] {
            assert!(FileRequest::from_json(line.as_bytes()).is_err(), "{line}");
        }
    }

    #[test]
    fn attributes_of_a_reply_are_those_of_the_file() {
        let mut inode = Inode::new(FileType::File, 0o600);
        (inode.size, inode.blocks, inode.links) = (u64::MAX, 3, 4);
        let reply = attributes(Some(InodeNumber(9)), &inode);
        assert_eq!(metadata(reply), Some(Metadata::new(InodeNumber(9), inode)));
        assert_eq!(metadata(json!({"file": 9})), None);
    }

    #[test]
    fn an_error_keeps_its_kind_and_its_message() {
        for (kind, name) in [
            (ErrorKind::Damaged, Some(&b"\xff"[..])),
            (ErrorKind::NoSpace, None),
            (ErrorKind::Io(Errno::IO), None),
            (ErrorKind::Refused(Errno::NOENT), None),
            (ErrorKind::Input, None),
        ] {
            let error = Error::reported(kind, "it is so".into(), name);
            let reply = refusal(&error);
            let back = error_of(reply.as_object().unwrap()).unwrap();
            assert_eq!((back.kind(), back.message()), (kind, "it is so".to_owned()));
            assert_eq!(back.damaged_name(), name);
        }
    }
}

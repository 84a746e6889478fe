//! [`RemoteFiles`]: the files of a mounted volume, for another program than the server of the mount.

use std::cell::Cell;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::ops::Range;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::{Map, Value};
use uringfs::volume::{FileType, Follow, Inode, InodeNumber, Metadata, Rename, SetXattr};
use uringfs::{Errno, Error};

use super::file_request::{
    AttributeChanges, FileRange, FileRequest, MAX_DATA_BYTES, Opening, broken, bytes_of, error_of,
    metadata,
};
use super::protocol::{MAX_REPLY_BYTES, object};

/// A session with the server of a mount. Its calls are those of [`Volume`](uringfs::Volume), and so are their errors. They block
/// the thread, also while the volume is frozen. A path is an absolute path in the volume.
///
/// ```no_run
/// use uringfs_fuse::control::Client;
/// use uringfs::volume::Follow;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// if let Some(client) = Client::connect("disk.img")? {
///     let files = client.files()?;
///     files.rename(b"/new", b"/old", Default::default())?;
///     println!("{} bytes", files.metadata(b"/old", Follow::Yes)?.len());
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct RemoteFiles {
    stream: Arc<Mutex<BufReader<UnixStream>>>,
}

/// An open file of a session.
#[derive(Debug)]
pub struct RemoteFile {
    files: RemoteFiles,
    number: InodeNumber,
    length: Cell<u64>,
}

/// An entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteEntry {
    /// The name.
    pub name: Vec<u8>,
    /// The inode's number.
    pub number: InodeNumber,
    /// The kind of the file; a device's number is 0 here.
    pub kind: FileType,
}

impl RemoteFiles {
    pub(super) fn new(stream: BufReader<UnixStream>) -> RemoteFiles {
        RemoteFiles { stream: Arc::new(Mutex::new(stream)) }
    }

    /// The attributes of a file.
    ///
    /// # Errors
    /// As [`Volume::metadata`](uringfs::Volume::metadata); EPROTO if the server is gone.
    pub fn metadata(&self, path: &[u8], follow: Follow) -> Result<Metadata, Error> {
        let reply = self.call(FileRequest::Stat(path.into(), follow))?;
        metadata(reply.into()).ok_or_else(not_understood)
    }

    /// The entries of a directory, sorted by the bytes of their names. Damaged ones are errors among them.
    ///
    /// # Errors
    /// As [`Self::metadata`].
    pub fn read_dir(&self, path: &[u8]) -> Result<Vec<Result<RemoteEntry, Error>>, Error> {
        let mut stream = self.stream.lock();
        send(&mut stream, &FileRequest::List(path.into()), &[])?;
        let mut entries = Vec::new();
        loop {
            match receive(&mut stream)? {
                Reply::Result(_) => return Ok(entries),
                Reply::Line(mut line) => {
                    let Some(Value::Array(some)) = line.remove("entries") else { continue };
                    for one in some {
                        entries.push(entry(one).ok_or_else(not_understood)?);
                    }
                }
            }
        }
    }

    /// Opens a regular file.
    ///
    /// # Errors
    /// As [`Volume::open_with`](uringfs::Volume::open_with).
    pub fn open(&self, path: &[u8], opening: Opening) -> Result<RemoteFile, Error> {
        let reply = self.call(FileRequest::Open(path.into(), opening))?;
        let (number, length) = (number(&reply, "file")?, number(&reply, "size")?);
        let (files, length) = (self.clone(), Cell::new(length));
        Ok(RemoteFile { files, number: InodeNumber(number), length })
    }

    /// Creates a file of any kind.
    ///
    /// # Errors
    /// As [`Volume::mknod`](uringfs::Volume::mknod).
    pub fn make(&self, path: &[u8], inode: &Inode) -> Result<InodeNumber, Error> {
        let reply = self.call(FileRequest::Make(path.into(), Box::new(inode.clone())))?;
        number(&reply, "file").map(InodeNumber)
    }

    /// Changes permissions, owner, and times of access and modification as a function of what they are.
    ///
    /// # Errors
    /// As [`Volume::set_attributes`](uringfs::Volume::set_attributes).
    pub fn set_attributes(
        &self,
        path: &[u8],
        follow: Follow,
        set: impl Fn(&mut Inode),
    ) -> Result<(), Error> {
        let old = self.metadata(path, follow)?.into_inode();
        let mut new = old.clone();
        set(&mut new);
        let changes = AttributeChanges::between(&old, &new);
        self.call(FileRequest::SetAttributes(path.into(), follow, changes)).map(drop)
    }

    /// Renames a file.
    ///
    /// # Errors
    /// As [`Volume::rename_with`](uringfs::Volume::rename_with).
    pub fn rename(&self, from: &[u8], to: &[u8], how: Rename) -> Result<(), Error> {
        self.call(FileRequest::Rename { from: from.into(), to: to.into(), how }).map(drop)
    }

    /// Adds a name for a file.
    ///
    /// # Errors
    /// As [`Volume::hard_link`](uringfs::Volume::hard_link).
    pub fn hard_link(&self, from: &[u8], to: &[u8]) -> Result<(), Error> {
        self.call(FileRequest::Link { from: from.into(), to: to.into() }).map(drop)
    }

    /// Removes a name that is no directory's.
    ///
    /// # Errors
    /// As [`Volume::remove_file`](uringfs::Volume::remove_file).
    pub fn remove_file(&self, path: &[u8]) -> Result<(), Error> {
        self.call(FileRequest::RemoveFile(path.into())).map(drop)
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// As [`Volume::remove_dir`](uringfs::Volume::remove_dir).
    pub fn remove_dir(&self, path: &[u8]) -> Result<(), Error> {
        self.call(FileRequest::RemoveDirectory(path.into())).map(drop)
    }

    /// The names of a file's extended attributes.
    ///
    /// # Errors
    /// As [`Volume::list_xattrs`](uringfs::Volume::list_xattrs).
    pub fn list_xattrs(&self, path: &[u8], follow: Follow) -> Result<Vec<Vec<u8>>, Error> {
        let mut reply = self.call(FileRequest::ListXattrs(path.into(), follow))?;
        let names = match reply.remove("names") {
            Some(Value::Array(names)) => names.into_iter().map(bytes_of).collect(),
            _ => None,
        };
        names.ok_or_else(not_understood)
    }

    /// The value of an extended attribute.
    ///
    /// # Errors
    /// As [`Volume::get_xattr`](uringfs::Volume::get_xattr).
    pub fn get_xattr(&self, path: &[u8], follow: Follow, name: &[u8]) -> Result<Vec<u8>, Error> {
        let request = FileRequest::GetXattr { path: path.into(), follow, name: name.into() };
        let mut value = vec![0; MAX_DATA_BYTES];
        let length = self.call_for_data(request, &mut value)?;
        value.truncate(length);
        Ok(value)
    }

    /// Sets an extended attribute.
    ///
    /// # Errors
    /// As [`Volume::set_xattr`](uringfs::Volume::set_xattr); E2BIG for a value that no request can have.
    pub fn set_xattr(
        &self,
        path: &[u8],
        follow: Follow,
        name: &[u8],
        value: &[u8],
        how: SetXattr,
    ) -> Result<(), Error> {
        if value.len() > MAX_DATA_BYTES {
            return Err(Errno::TOOBIG.into());
        }
        let (path, name, length) = (path.into(), name.into(), value.len());
        let request = FileRequest::SetXattr { path, follow, name, how, length };
        self.call_with_data(request, value).map(drop)
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// As [`Volume::remove_xattr`](uringfs::Volume::remove_xattr).
    pub fn remove_xattr(&self, path: &[u8], follow: Follow, name: &[u8]) -> Result<(), Error> {
        let request = FileRequest::RemoveXattr { path: path.into(), follow, name: name.into() };
        self.call(request).map(drop)
    }

    /// Makes all changes of the volume durable.
    ///
    /// # Errors
    /// As [`Volume::sync`](uringfs::Volume::sync).
    pub fn sync(&self) -> Result<(), Error> {
        self.call(FileRequest::Sync).map(drop)
    }

    /// Why a write has found no space.
    pub fn shortage(&self) -> Error {
        self.call(FileRequest::Shortage).err().unwrap_or_else(not_understood)
    }

    fn call(&self, request: FileRequest) -> Result<Map<String, Value>, Error> {
        self.call_with_data(request, &[])
    }

    fn call_with_data(
        &self,
        request: FileRequest,
        data: &[u8],
    ) -> Result<Map<String, Value>, Error> {
        let mut stream = self.stream.lock();
        send(&mut stream, &request, data)?;
        receive_result(&mut stream)
    }

    /// Returns the number of bytes.
    fn call_for_data(&self, request: FileRequest, data: &mut [u8]) -> Result<usize, Error> {
        let mut stream = self.stream.lock();
        send(&mut stream, &request, &[])?;
        let length = number(&receive_result(&mut stream)?, "bytes")?;
        let length = usize::try_from(length).ok().filter(|length| *length <= data.len());
        let length = length.ok_or_else(not_understood)?;
        stream.read_exact(&mut data[..length]).map_err(broken)?;
        Ok(length)
    }
}

impl RemoteFile {
    /// The size in bytes, as of the opening or the last change of this handle.
    #[expect(clippy::len_without_is_empty, reason = "as of std's Metadata")]
    pub fn len(&self) -> u64 {
        self.length.get()
    }

    /// The first range at or behind an offset that is no hole.
    ///
    /// # Errors
    /// Those of reading the volume.
    pub fn next_data(&self, offset: u64) -> Result<Option<Range<u64>>, Errno> {
        let request = FileRequest::Data { file: self.number, offset };
        let reply = self.files.call(request).map_err(|error| error.errno())?;
        match reply.get("range").map(|range| (range[0].as_u64(), range[1].as_u64())) {
            None => Ok(None),
            Some((Some(start), Some(end))) if (offset..end).contains(&start) => {
                Ok(Some(start..end))
            }
            Some(_) => Err(Errno::PROTO),
        }
    }

    /// Reads up to a MiB into a buffer. Fewer bytes than it has, or than that, are the end of the file.
    ///
    /// # Errors
    /// Those of reading the volume.
    pub fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<u64, Errno> {
        let length = buffer.len().min(MAX_DATA_BYTES);
        let request = FileRequest::Read(FileRange { file: self.number, offset, length });
        let read = self.files.call_for_data(request, buffer);
        read.map(|bytes| bytes as u64).map_err(|error| error.errno())
    }

    /// Writes up to a MiB. Returns how many bytes were written.
    ///
    /// # Errors
    /// Those of writing to the volume.
    pub fn write_at(&self, data: &[u8], offset: u64) -> Result<u64, Errno> {
        let length = data.len().min(MAX_DATA_BYTES);
        let request = FileRequest::Write(FileRange { file: self.number, offset, length });
        let reply = self.files.call_with_data(request, &data[..length]);
        let written = reply.and_then(|reply| number(&reply, "written"));
        let written = written.map_err(|error| error.errno())?;
        self.length.set(self.length.get().max(offset.saturating_add(written)));
        Ok(written)
    }

    /// Truncates or extends the file.
    ///
    /// # Errors
    /// Those of writing to the volume.
    pub fn set_len(&self, size: u64) -> Result<(), Errno> {
        let request = FileRequest::SetSize { file: self.number, size };
        self.files.call(request).map_err(|error| error.errno())?;
        self.length.set(size);
        Ok(())
    }
}

enum Reply {
    Result(Map<String, Value>),
    /// Others follow.
    Line(Map<String, Value>),
}

fn send(
    stream: &mut BufReader<UnixStream>,
    request: &FileRequest,
    data: &[u8],
) -> Result<(), Error> {
    let line = format!("{}\n", request.to_json());
    let stream = stream.get_mut();
    stream.write_all(line.as_bytes()).and_then(|()| stream.write_all(data)).map_err(broken)
}

fn receive_result(stream: &mut BufReader<UnixStream>) -> Result<Map<String, Value>, Error> {
    loop {
        if let Reply::Result(result) = receive(stream)? {
            return Ok(result);
        }
    }
}

fn receive(stream: &mut BufReader<UnixStream>) -> Result<Reply, Error> {
    let mut line = Vec::new();
    let read = stream.by_ref().take(MAX_REPLY_BYTES as u64).read_until(b'\n', &mut line);
    read.map_err(broken)?;
    if line.pop() != Some(b'\n') {
        return Err(broken(io::Error::other("it ended the conversation")));
    }
    let mut reply = object(&line).map_err(|reason| broken(io::Error::other(reason)))?;
    if let Some(error) = error_of(&reply) {
        return Err(error);
    }
    match reply.remove("result") {
        Some(Value::Object(result)) => Ok(Reply::Result(result)),
        Some(_) => Err(not_understood()),
        None => Ok(Reply::Line(reply)),
    }
}

fn entry(value: Value) -> Option<Result<RemoteEntry, Error>> {
    let Value::Object(mut fields) = value else { return None };
    if let Some(error) = error_of(&fields) {
        return Some(Err(error));
    }
    let name = bytes_of(fields.remove("name")?)?;
    let kind = u16::try_from(fields.get("kind")?.as_u64()?).ok()?;
    let number = InodeNumber(fields.get("file")?.as_u64()?);
    Some(Ok(RemoteEntry { name, number, kind: FileType::from_mode(kind, 0)? }))
}

fn number(reply: &Map<String, Value>, name: &str) -> Result<u64, Error> {
    reply.get(name).and_then(Value::as_u64).ok_or_else(not_understood)
}

fn not_understood() -> Error {
    broken(io::Error::other("a reply has not what it should"))
}

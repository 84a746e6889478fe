//! [`FileSession`]: one client's requests about files, one after the other, in a thread of its own. A session has the rights
//! of a program that has opened the volume. After each change the kernel drops what it has cached of it.

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::{Value, json};
use uringfs::volume::{AtimePolicy, DirEntry, FileType, Follow, InodeNumber};
use uringfs::{Buffer, Errno, Error, File, OpenOptions, Reactor, ReactorOptions, Volume};

use super::file_request::{
    FileRange, FileRequest, MAX_FILE_REQUEST_BYTES, Opening, attributes, refusal, text,
};
use super::protocol::{failure, result};
use super::requests::Served;
use crate::files::CAPABILITY;
use crate::notify::Kernel;

/// How long a client may be silent.
const IDLE_TIMEOUT: Duration = Duration::from_secs(600);
/// How long a client may leave a reply unread.
const SEND_TIMEOUT: Duration = Duration::from_secs(30);
/// The most entries of a directory in one line.
const MAX_ENTRIES: usize = 256;
/// The most symbolic links in a row.
const MAX_LINKS: usize = 40;
/// The most files that a session keeps open. It opens others again.
const MAX_OPEN_FILES: usize = 8;

/// The state of a session.
pub(super) struct FileSession<'s> {
    volume: &'s Volume,
    /// `None`: the volume is not mounted.
    kernel: Option<&'s Kernel>,
    is_read_only: bool,
    reactor: Reactor,
    stream: BufReader<&'s UnixStream>,
    /// The files used last.
    open: VecDeque<(InodeNumber, File)>,
    /// Directories of unfinished files that the client has made. Those that it leaves are removed.
    staging: Vec<(Vec<u8>, InodeNumber)>,
}

/// Bytes that follow a reply.
type Data = Option<Buffer>;

impl<'s> FileSession<'s> {
    /// Serves a client until it goes, breaks the rules or is silent for [`IDLE_TIMEOUT`].
    ///
    /// # Errors
    /// The client has gone, or no reactor can be made.
    pub(super) fn serve(served: &'s Served, stream: &'s UnixStream) -> io::Result<()> {
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(IDLE_TIMEOUT))?;
        stream.set_write_timeout(Some(SEND_TIMEOUT))?;
        let mut session = FileSession {
            volume: &served.volume,
            kernel: served.mount.as_ref().map(|mount| &mount.kernel),
            is_read_only: served.is_read_only,
            reactor: Reactor::new(ReactorOptions::default())?,
            stream: BufReader::new(stream),
            open: VecDeque::new(),
            staging: Vec::new(),
        };
        session.send(&result(json!({})), None)?;
        while session.serve_next()? {}
        Ok(())
    }

    /// Serves one request. Returns false at the end of the conversation.
    fn serve_next(&mut self) -> io::Result<bool> {
        let mut line = Vec::new();
        let most = MAX_FILE_REQUEST_BYTES as u64;
        self.stream.by_ref().take(most).read_until(b'\n', &mut line)?;
        if line.is_empty() {
            return Ok(false);
        }
        let request = match line.pop() {
            Some(b'\n') => FileRequest::from_json(&line),
            _ => Err(format!("a line has at most {MAX_FILE_REQUEST_BYTES} bytes")),
        };
        let request = match request {
            Ok(request) => request,
            // A request that follows cannot be told from data.
            Err(reason) => {
                self.send(&failure(&reason, Errno::PROTO.raw_os_error()), None)?;
                return Ok(false);
            }
        };
        let mut data = Buffer::zeroed(request.data_bytes());
        self.stream.read_exact(&mut data)?;
        if let FileRequest::List(path) = &request {
            self.list(path)?;
            return Ok(true);
        }
        let is_change = request.is_change();
        let answered = match is_change && self.is_read_only {
            true => Err(Errno::ROFS.into()),
            false => self.answer(request, data),
        };
        if is_change {
            self.note_change();
        }
        match answered {
            Ok((value, data)) => self.send(&result(value), data)?,
            Err(error) => self.send(&refusal(&error), None)?,
        }
        Ok(true)
    }

    fn send(&mut self, line: &Value, data: Data) -> io::Result<()> {
        let stream = self.stream.get_mut();
        stream.write_all(format!("{line}\n").as_bytes())?;
        data.map_or(Ok(()), |data| stream.write_all(&data))
    }

    fn answer(&mut self, request: FileRequest, data: Buffer) -> Result<(Value, Data), Error> {
        let volume = self.volume;
        let value = match request {
            FileRequest::Stat(path, follow) => {
                let found = match follow {
                    Follow::Yes => volume.metadata(as_path(&path)),
                    Follow::No => volume.symlink_metadata(as_path(&path)),
                }?;
                attributes(Some(InodeNumber(found.ino())), found.inode())
            }
            FileRequest::Open(path, opening) => self.open(&path, opening)?,
            FileRequest::Read(range) => return self.read(range),
            FileRequest::Data { file, offset } => self.data_range(file, offset)?,
            FileRequest::Write(range) => self.write(range, data)?,
            FileRequest::SetSize { file, size } => {
                let opened = self.file(file)?;
                self.reactor.block_on(opened.set_len(size))?;
                self.notify(|kernel| kernel.content_changed(file.0));
                json!({})
            }
            FileRequest::ListXattrs(path, follow) => {
                let names = volume.list_xattrs(as_path(&path), follow)?;
                json!({"names": names.iter().map(|name| text(name)).collect::<Vec<_>>()})
            }
            FileRequest::GetXattr { path, follow, name } => {
                let value = volume.get_xattr(as_path(&path), follow, &name)?;
                return Ok((json!({"bytes": value.len()}), Some(Buffer::copy_of(&value))));
            }
            FileRequest::Sync => {
                volume.sync()?;
                json!({})
            }
            FileRequest::Shortage => return Err(volume.shortage()),
            request => self.change_name(request, &data)?,
        };
        Ok((value, None))
    }

    /// Changes names or attributes.
    fn change_name(&mut self, request: FileRequest, data: &[u8]) -> Result<Value, Error> {
        let volume = self.volume;
        match request {
            FileRequest::Make(path, inode) => {
                let number = volume.mknod(as_path(&path), &inode)?;
                self.name_changed(&path);
                if inode.is_staging && inode.kind == FileType::Directory {
                    self.staging.push((path, number));
                }
                return Ok(json!({"file": number.0}));
            }
            FileRequest::SetAttributes(path, follow, changes) => {
                let file = self.number(&path, follow);
                volume.set_attributes(as_path(&path), follow, |inode| changes.apply(inode))?;
                self.notify(|kernel| kernel.attributes_changed(file));
            }
            FileRequest::Rename { from, to, how } => {
                let [moved, replaced] = [&from, &to].map(|path| self.number(path, Follow::No));
                volume.rename_with(as_path(&from), as_path(&to), how)?;
                self.name_changed(&from);
                self.name_changed(&to);
                for file in [moved, replaced] {
                    self.notify(|kernel| {
                        kernel.attributes_changed(file);
                        // The `..` of a directory.
                        kernel.listing_changed(file);
                    });
                }
            }
            FileRequest::Link { from, to } => {
                volume.hard_link(as_path(&from), as_path(&to))?;
                self.name_changed(&to);
                let file = self.number(&to, Follow::No);
                self.notify(|kernel| kernel.attributes_changed(file));
            }
            FileRequest::RemoveFile(path) => {
                let removed = self.number(&path, Follow::No);
                volume.remove_file(as_path(&path))?;
                self.name_changed(&path);
                self.notify(|kernel| kernel.attributes_changed(removed));
            }
            FileRequest::RemoveDirectory(path) => {
                volume.remove_dir(as_path(&path))?;
                self.name_changed(&path);
                self.staging.retain(|(staging, _)| *staging != path);
            }
            FileRequest::SetXattr { path, follow, name, how, .. } => {
                volume.set_xattr(as_path(&path), follow, &name, data, how)?;
                let file = self.number(&path, follow);
                self.notify(|kernel| {
                    if name == CAPABILITY {
                        kernel.session().capabilities_set.fetch_add(1, Ordering::Relaxed);
                    }
                    kernel.attributes_changed(file);
                });
            }
            FileRequest::RemoveXattr { path, follow, name } => {
                volume.remove_xattr(as_path(&path), follow, &name)?;
                let file = self.number(&path, follow);
                self.notify(|kernel| kernel.attributes_changed(file));
            }
            _ => unreachable!("the other requests change no name"),
        }
        Ok(json!({}))
    }

    /// Sends the entries of a directory, some in each line. A damaged one is an error among them.
    fn list(&mut self, path: &[u8]) -> io::Result<()> {
        let mut entries = match self.volume.read_dir(as_path(path)) {
            Ok(entries) => entries.peekable(),
            Err(error) => return self.send(&refusal(&error), None),
        };
        while entries.peek().is_some() {
            let some = entries.by_ref().take(MAX_ENTRIES).map(entry).collect::<Vec<_>>();
            self.send(&json!({"entries": some}), None)?;
        }
        self.send(&result(json!({})), None)
    }

    fn open(&mut self, path: &[u8], opening: Opening) -> Result<Value, Error> {
        let options = match opening {
            Opening::Read => options(),
            Opening::Write => options().write(true),
            Opening::Create(mode) => options().write(true).create(true).mode(mode),
        };
        let file = self.volume.open_with(as_path(path), options)?;
        let number = InodeNumber(self.volume.metadata_of(&file)?.ino());
        if let Opening::Create(_) = opening {
            self.name_changed(&self.end_of_links(path));
        }
        self.notify(|kernel| kernel.write_back(number.0));
        let size = file.len();
        self.keep_open(number, file);
        Ok(json!({"file": number.0, "size": size}))
    }

    /// A file that was opened before, also if it has lost its names since.
    fn file(&mut self, number: InodeNumber) -> Result<File, Error> {
        if let Some((_, file)) = self.open.iter().find(|(open, _)| *open == number) {
            return Ok(file.clone());
        }
        let options = options().write(!self.is_read_only);
        let file = self.reactor.block_on(async {
            let (inode, _) = self.volume.inode(number).await?;
            inode.open(options).await
        })?;
        self.keep_open(number, file.clone());
        Ok(file)
    }

    fn keep_open(&mut self, number: InodeNumber, file: File) {
        self.open.retain(|(open, _)| *open != number);
        self.open.truncate(MAX_OPEN_FILES - 1);
        self.open.push_front((number, file));
    }

    fn read(&mut self, range: FileRange) -> Result<(Value, Data), Error> {
        let file = self.file(range.file)?;
        let mut buffer = Buffer::zeroed(range.length);
        let mut done = 0;
        while done < range.length {
            let rest = buffer.split_off(done);
            let (read, rest) =
                self.reactor.block_on(file.read_at(rest, range.offset + done as u64));
            buffer.join(rest).expect("the rest is of this buffer");
            match read? {
                0 => break,
                read => done += read,
            }
        }
        buffer.truncate(done);
        Ok((json!({"bytes": done}), Some(buffer)))
    }

    fn write(&mut self, range: FileRange, data: Buffer) -> Result<Value, Error> {
        let file = self.file(range.file)?;
        let (written, _) = self.reactor.block_on(file.write_at(data, range.offset));
        let written = written?;
        self.notify(|kernel| kernel.content_changed(range.file.0));
        Ok(json!({"written": written}))
    }

    fn data_range(&mut self, number: InodeNumber, offset: u64) -> Result<Value, Error> {
        let file = self.file(number)?;
        let range = file.seek_data(offset).and_then(|start| Ok([start, file.seek_hole(start)?]));
        match range {
            Ok(range) => Ok(json!({"range": range})),
            Err(Errno::NXIO) => Ok(json!({})),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Notes a change that was made and is not replied to yet. A program's next sync does not skip it.
    fn note_change(&self) {
        self.notify(|kernel| {
            kernel.session().note_change();
        });
    }

    /// Lets the kernel of a mount drop what it has cached.
    fn notify(&self, notify: impl FnOnce(&Kernel)) {
        if let Some(kernel) = self.kernel {
            notify(kernel);
        }
    }

    /// Tells the kernel that a name is another file's.
    fn name_changed(&self, path: &[u8]) {
        let path = as_path(path);
        let (Some(directory), Some(name)) = (path.parent(), path.file_name()) else { return };
        if let Ok(directory) = self.volume.metadata(directory) {
            self.notify(|kernel| kernel.name_changed(directory.ino(), name.as_bytes()));
        }
    }

    /// The path that a path with a link at its end leads to.
    fn end_of_links(&self, path: &[u8]) -> Vec<u8> {
        let mut path = as_path(path).to_path_buf();
        for _ in 0..MAX_LINKS {
            let Ok(target) = self.volume.read_link(&path) else { break };
            path = path.parent().map_or(target.clone(), |directory| directory.join(target));
        }
        path.into_os_string().into_encoded_bytes()
    }

    /// The number of a file; 0, which the kernel does not know, if it has none.
    fn number(&self, path: &[u8], follow: Follow) -> u64 {
        let found = match follow {
            Follow::Yes => self.volume.metadata(as_path(path)),
            Follow::No => self.volume.symlink_metadata(as_path(path)),
        };
        found.map_or(0, |found| found.ino())
    }

    /// Removes a directory of unfinished files.
    fn remove_staging(&mut self, staging: &[u8], number: InodeNumber) -> Result<(), Error> {
        let path = as_path(staging);
        // A program may have renamed it, and another session taken its name.
        if self.volume.symlink_metadata(path)?.ino() != number.0 {
            return Ok(());
        }
        self.volume.remove_dir_all(path)?;
        self.name_changed(staging);
        Ok(())
    }
}

impl Drop for FileSession<'_> {
    fn drop(&mut self) {
        for (staging, number) in std::mem::take(&mut self.staging) {
            // A later opening of the volume removes what is left.
            let _ = self.remove_staging(&staging, number);
            self.note_change();
        }
    }
}

/// As those of a command that has a closed volume open for reading, these reads leave access times alone.
fn options() -> OpenOptions {
    OpenOptions::new().read(true).direct(true).access_time(AtimePolicy::Never)
}

fn entry(entry: Result<DirEntry, Error>) -> Value {
    match entry {
        Ok(entry) => {
            let kind = entry.file_type().mode_bits().0;
            json!({"name": text(entry.name().as_bytes()), "file": entry.ino(), "kind": kind})
        }
        Err(error) => refusal(&error),
    }
}

fn as_path(bytes: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(bytes))
}

//! Sequences of requests that a kernel could send, compared with a plain model of names and bytes. The answers of the
//! server, and the content of the volume at the end, are those of the model.

#![no_main]

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::sync::LazyLock;
use std::thread;

use libfuzzer_sys::fuzz_target;
use rustix::io::retry_on_intr;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, Shutdown, SocketFlags, SocketType, recv, send, shutdown,
    socketpair,
};
use uringfs::device::Device;
use uringfs::device::backend::sim::{Crash, Sim, SimOptions};
use uringfs::volume::CheckOptions;
use uringfs::{FormatOptions, Volume};
use uringfs_fuse::{Mount, MountCache, MountOptions};

const SIZE: u64 = 32 << 20;
const ROOT: u64 = 1;
const NAMES: [&str; 4] = ["a", "b", "c", "d"];

mod opcode {
    pub const LOOKUP: u32 = 1;
    pub const FORGET: u32 = 2;
    pub const GETATTR: u32 = 3;
    pub const SETATTR: u32 = 4;
    pub const READLINK: u32 = 5;
    pub const SYMLINK: u32 = 6;
    pub const MKDIR: u32 = 9;
    pub const UNLINK: u32 = 10;
    pub const RMDIR: u32 = 11;
    pub const LINK: u32 = 13;
    pub const OPEN: u32 = 14;
    pub const READ: u32 = 15;
    pub const WRITE: u32 = 16;
    pub const RELEASE: u32 = 18;
    pub const FSYNC: u32 = 20;
    pub const SETXATTR: u32 = 21;
    pub const GETXATTR: u32 = 22;
    pub const INIT: u32 = 26;
    pub const OPENDIR: u32 = 27;
    pub const READDIR: u32 = 28;
    pub const RELEASEDIR: u32 = 29;
    pub const CREATE: u32 = 35;
    pub const RENAME2: u32 = 45;
    pub const COPY_FILE_RANGE: u32 = 47;
}

mod errno {
    pub const EPERM: i32 = 1;
    pub const ENOENT: i32 = 2;
    pub const EEXIST: i32 = 17;
    pub const ENOTDIR: i32 = 20;
    pub const EISDIR: i32 = 21;
    pub const EINVAL: i32 = 22;
    pub const ENOTEMPTY: i32 = 39;
    pub const ENODATA: i32 = 61;
    pub const ESTALE: i32 = 116;
}
use errno::{EEXIST, EINVAL, EISDIR, ENODATA, ENOENT, ENOTDIR, ENOTEMPTY, EPERM, ESTALE};

const READ_WRITE: u32 = 2;
const EXCLUSIVE: u32 = 0o200;
const SETATTR_SIZE: u32 = 8;
const RENAME_NOREPLACE: u32 = 1;
const RENAME_EXCHANGE: u32 = 2;
const XATTR: &str = "user.a";

/// The volume that every input begins with.
static EMPTY: LazyLock<Sim> = LazyLock::new(|| {
    let sim = Sim::new(SimOptions::new(SIZE));
    let device = Device::new(sim.clone()).unwrap();
    Volume::format(&device, &FormatOptions::default()).unwrap();
    sim.restart_record();
    sim
});

/// The bytes of a request, after its header.
#[derive(Default)]
struct Body(Vec<u8>);

impl Body {
    fn u32(mut self, value: u32) -> Body {
        self.0.extend(value.to_ne_bytes());
        self
    }

    fn u64(mut self, value: u64) -> Body {
        self.0.extend(value.to_ne_bytes());
        self
    }

    fn name(mut self, name: &str) -> Body {
        self.0.extend(name.as_bytes());
        self.0.push(0);
        self
    }

    fn bytes(mut self, bytes: &[u8]) -> Body {
        self.0.extend(bytes);
        self
    }

    fn zeros(mut self, count: usize) -> Body {
        self.0.resize(self.0.len() + count, 0);
        self
    }
}

fn body() -> Body {
    Body::default()
}

/// The kernel's end of a connection, with one request in flight.
struct Kernel {
    socket: OwnedFd,
    unique: u64,
}

impl Kernel {
    fn send(&mut self, opcode: u32, node: u64, body: Body) {
        self.send_with(opcode, node, body, Body::default());
    }

    /// Sends a request with extensions, whose length is a multiple of 8.
    fn send_with(&mut self, opcode: u32, node: u64, body: Body, extensions: Body) {
        self.unique += 2;
        let length = (40 + body.0.len() + extensions.0.len()) as u32;
        let header = Body::default().u32(length).u32(opcode).u64(self.unique).u64(node);
        let request = header.zeros(12).u32(extensions.0.len() as u32 / 8).bytes(&body.0);
        let request = request.bytes(&extensions.0).0;
        retry_on_intr(|| send(&self.socket, &request, SendFlags::empty())).unwrap();
    }

    /// The reply to a request: its bytes, or an errno.
    fn ask(&mut self, opcode: u32, node: u64, body: Body) -> Result<Vec<u8>, i32> {
        self.ask_with(opcode, node, body, Body::default())
    }

    fn ask_with(
        &mut self,
        opcode: u32,
        node: u64,
        body: Body,
        extensions: Body,
    ) -> Result<Vec<u8>, i32> {
        self.send_with(opcode, node, body, extensions);
        let mut reply = vec![0; (1 << 20) + 4096];
        let receive = || recv(&self.socket, &mut reply[..], RecvFlags::empty());
        let (length, _) = retry_on_intr(receive).unwrap();
        assert_eq!(u64_at(&reply, 8), self.unique);
        match i32::from_ne_bytes(reply[4..8].try_into().unwrap()) {
            0 => Ok(reply[16..length].to_vec()),
            error => Err(-error),
        }
    }

    /// Does something with an open file.
    fn with_open<T>(&mut self, node: u64, call: impl FnOnce(&mut Kernel, u64) -> T) -> T {
        let opened = self.ask(opcode::OPEN, node, body().u32(READ_WRITE).u32(0)).unwrap();
        let handle = u64_at(&opened, 0);
        let done = call(self, handle);
        self.ask(opcode::RELEASE, node, body().u64(handle).zeros(16)).unwrap();
        done
    }

    /// The names in a directory, with the kinds of their files.
    fn list(&mut self, node: u64) -> BTreeSet<(Vec<u8>, u32)> {
        let opened = self.ask(opcode::OPENDIR, node, body().u64(0)).unwrap();
        let (handle, mut offset, mut found) = (u64_at(&opened, 0), 0, BTreeSet::new());
        loop {
            // Room for few entries, so that a listing has several parts.
            let read = body().u64(handle).u64(offset).u32(100).u32(0).u64(0).u64(0);
            let part = self.ask(opcode::READDIR, node, read).unwrap();
            if part.is_empty() {
                break;
            }
            let mut rest = &part[..];
            while !rest.is_empty() {
                let (length, kind) = (u32_at(rest, 16) as usize, u32_at(rest, 20));
                offset = u64_at(rest, 8);
                assert!(found.insert((rest[24..24 + length].to_vec(), kind)), "a name twice");
                rest = &rest[(24 + length).next_multiple_of(8)..];
            }
        }
        self.ask(opcode::RELEASEDIR, node, body().u64(handle).zeros(16)).unwrap();
        found.retain(|(name, _)| name != b"." && name != b"..");
        found
    }
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap())
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap())
}

enum Content {
    File(Vec<u8>),
    Directory(BTreeMap<&'static str, usize>),
    Link(Vec<u8>),
}

struct Node {
    content: Content,
    /// Names, or for a directory whether it has one.
    names: u32,
    /// The server's number, while the kernel knows the node.
    id: Option<u64>,
    lookups: u64,
    xattr: Option<Vec<u8>>,
}

/// The expected content of the volume. The root is the first node.
struct Model(Vec<Node>);

impl Model {
    fn new() -> Model {
        let content = Content::Directory(BTreeMap::new());
        Model(vec![Node { content, names: 1, id: Some(ROOT), lookups: 0, xattr: None }])
    }

    fn entries(&mut self, directory: usize) -> &mut BTreeMap<&'static str, usize> {
        match &mut self.0[directory].content {
            Content::Directory(entries) => entries,
            _ => unreachable!("it is a directory"),
        }
    }

    fn is_directory(&self, node: usize) -> bool {
        matches!(self.0[node].content, Content::Directory(_))
    }

    fn is_empty(&self, directory: usize) -> bool {
        matches!(&self.0[directory].content, Content::Directory(entries) if entries.is_empty())
    }

    /// Whether a directory is another one, or above it.
    fn contains(&self, above: usize, below: usize) -> bool {
        above == below
            || match &self.0[above].content {
                Content::Directory(entries) => {
                    entries.values().any(|inner| self.contains(*inner, below))
                }
                _ => false,
            }
    }

    /// One of the nodes that the kernel knows and `is_meant` selects.
    fn pick(&self, byte: u8, is_meant: impl Fn(&Node) -> bool) -> Option<usize> {
        let known: Vec<usize> = (0..self.0.len())
            .filter(|at| self.0[*at].id.is_some() && is_meant(&self.0[*at]))
            .collect();
        known.get(usize::from(byte) % known.len().max(1)).copied()
    }

    fn directory(&self, byte: u8) -> Option<usize> {
        self.pick(byte, |node| matches!(node.content, Content::Directory(_)))
    }

    fn file(&self, byte: u8) -> Option<usize> {
        self.pick(byte, |node| matches!(node.content, Content::File(_)))
    }

    fn entry(&self, directory: usize, name: &str) -> Option<usize> {
        match &self.0[directory].content {
            Content::Directory(entries) => entries.get(name).copied(),
            _ => unreachable!("it is a directory"),
        }
    }

    /// Notes an entry that the server gave the kernel.
    fn learn(&mut self, node: usize, entry: &[u8]) {
        let (id, it) = (u64_at(entry, 0), &mut self.0[node]);
        assert!(it.id.is_none_or(|known| known == id), "a node has two numbers");
        it.id = Some(id);
        it.lookups += 1;
        self.assert_attributes(node, &entry[40..]);
    }

    fn assert_attributes(&self, node: usize, attributes: &[u8]) {
        let it = &self.0[node];
        let (size, mode, links) =
            (u64_at(attributes, 8), u32_at(attributes, 60), u32_at(attributes, 64));
        let (kind, length) = match &it.content {
            Content::File(bytes) => (0o100_000, bytes.len()),
            Content::Link(target) => (0o120_000, target.len()),
            Content::Directory(_) => {
                assert_eq!(mode & 0o170_000, 0o040_000);
                return;
            }
        };
        assert_eq!((mode & 0o170_000, size), (kind, length as u64));
        assert_eq!(links, it.names);
    }

    fn add(&mut self, directory: usize, name: &'static str, content: Content, entry: &[u8]) {
        let node = self.0.len();
        self.0.push(Node { content, names: 1, id: None, lookups: 0, xattr: None });
        self.entries(directory).insert(name, node);
        self.learn(node, entry);
    }

    /// The node that was added last.
    fn last_node(&mut self) -> &mut Node {
        self.0.last_mut().expect("a node was added")
    }

    fn rename_errors(
        &self,
        (from, name): (usize, &'static str),
        (to, new): (usize, &'static str),
        flags: u32,
    ) -> Vec<i32> {
        let (source, target) = (self.entry(from, name), self.entry(to, new));
        let mut errors = Vec::new();
        let mut add = |is_wrong: bool, error| {
            if is_wrong {
                errors.push(error);
            }
        };
        let exchanges = flags == RENAME_EXCHANGE;
        add(source.is_none() || self.0[to].names == 0, ENOENT);
        add(exchanges && target.is_none(), ENOENT);
        add(flags == RENAME_NOREPLACE && target.is_some(), EEXIST);
        if let Some(source) = source {
            add(self.is_directory(source) && self.contains(source, to), EINVAL);
        }
        if let Some(target) = target {
            add(exchanges && self.is_directory(target) && self.contains(target, from), EINVAL);
        }
        if let (Some(source), Some(target), false) = (source, target, exchanges)
            && source != target
        {
            add(self.is_directory(source) && !self.is_directory(target), ENOTDIR);
            add(!self.is_directory(source) && self.is_directory(target), EISDIR);
            add(self.is_directory(target) && !self.is_empty(target), ENOTEMPTY);
        }
        errors
    }

    fn rename(
        &mut self,
        (from, name): (usize, &'static str),
        (to, new): (usize, &'static str),
        flags: u32,
    ) {
        let source = self.entries(from)[name];
        let target = self.entry(to, new);
        // Two names of one file: nothing happens.
        if target == Some(source) {
            return;
        }
        self.entries(to).insert(new, source);
        match target {
            Some(target) if flags == RENAME_EXCHANGE => _ = self.entries(from).insert(name, target),
            _ => {
                self.entries(from).remove(name);
                if let Some(target) = target {
                    self.0[target].names -= 1;
                }
            }
        }
    }

    /// The volume has exactly this tree.
    fn assert_in(&self, volume: &Volume, directory: usize, path: &str) {
        let Content::Directory(entries) = &self.0[directory].content else {
            unreachable!("it is a directory")
        };
        let found = volume.read_dir(if path.is_empty() { "/" } else { path }).unwrap();
        let found = found.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        assert_eq!(found.collect::<Vec<_>>(), entries.keys().copied().collect::<Vec<_>>());
        for (name, node) in entries {
            let path = format!("{path}/{name}");
            match &self.0[*node].content {
                Content::File(bytes) => {
                    let found = volume.read(&path).unwrap();
                    let differs = found.iter().zip(bytes).position(|(one, other)| one != other);
                    let lengths = (found.len(), bytes.len());
                    assert!(found == *bytes, "{path}: lengths {lengths:?}, differs at {differs:?}");
                }
                Content::Link(target) => {
                    assert_eq!(
                        volume.read_link(&path).unwrap().as_os_str().as_encoded_bytes(),
                        target
                    );
                }
                Content::Directory(_) => self.assert_in(volume, *node, &path),
            }
        }
    }
}

/// The result is the expected one: success, or one of these errors.
fn expect<T>(result: Result<T, i32>, errors: &[i32]) -> Option<T> {
    match result {
        Ok(value) => {
            assert!(errors.is_empty(), "expected {errors:?}");
            Some(value)
        }
        Err(error) => {
            assert!(errors.contains(&error), "{error} instead of {errors:?}");
            None
        }
    }
}

fn if_any<const N: usize>(errors: [(bool, i32); N]) -> Vec<i32> {
    errors.into_iter().filter_map(|(is_wrong, error)| is_wrong.then_some(error)).collect()
}

/// The attribute of a new file, if it gets one, and the extension of the request that gives it.
fn label(byte: u8) -> (Option<Vec<u8>>, Body) {
    if byte % 3 == 0 {
        return (None, body());
    }
    let value = vec![byte; usize::from(byte / 3)];
    let label = body().u32(value.len() as u32).u32(0).name(XATTR).bytes(&value);
    let size = (8 + label.0.len()).next_multiple_of(8);
    let filled = size - 8 - label.0.len();
    (Some(value), body().u32(size as u32).u32(1).bytes(&label.0).zeros(filled))
}

/// Does one operation: its kind, and what it is done to.
fn step(kernel: &mut Kernel, model: &mut Model, [kind, one, two, three]: [u8; 4]) {
    let Some(parent) = model.directory(one) else { return };
    let name = NAMES[usize::from(two) % NAMES.len()];
    let id = |model: &Model, node: usize| model.0[node].id.expect("the kernel knows it");
    let parent_id = id(model, parent);
    let there = model.entry(parent, name);
    let is_gone = model.0[parent].names == 0;
    let creation = || if_any([(is_gone, ENOENT), (there.is_some(), EEXIST)]);
    match kind % 17 {
        0 => {
            let found = kernel.ask(opcode::LOOKUP, parent_id, body().name(name)).unwrap();
            match there {
                Some(node) => model.learn(node, &found),
                None => assert_eq!(u64_at(&found, 0), 0),
            }
        }
        1 | 2 => {
            // Without O_EXCL the kernel looks an existing name up again, and opens it.
            let (flags, exists) = match kind % 17 {
                1 => (READ_WRITE, ESTALE),
                _ => (READ_WRITE | EXCLUSIVE, EEXIST),
            };
            let creation = if_any([(is_gone, ENOENT), (there.is_some(), exists)]);
            let create = body().u32(flags).u32(0o100_600).u64(0).name(name);
            let (label, extensions) = label(three);
            let made = kernel.ask_with(opcode::CREATE, parent_id, create, extensions);
            if let Some(made) = expect(made, &creation) {
                model.add(parent, name, Content::File(Vec::new()), &made);
                model.last_node().xattr = label;
                let release = body().u64(u64_at(&made, 128)).zeros(16);
                kernel.ask(opcode::RELEASE, u64_at(&made, 0), release).unwrap();
            }
        }
        3 => {
            let (label, extensions) = label(three);
            let mkdir = body().u64(0o700).name(name);
            let made = kernel.ask_with(opcode::MKDIR, parent_id, mkdir, extensions);
            if let Some(made) = expect(made, &creation()) {
                model.add(parent, name, Content::Directory(BTreeMap::new()), &made);
                model.last_node().xattr = label;
            }
        }
        4 => {
            let target = "t".repeat(1 + usize::from(three));
            let link = body().name(name).name(&target);
            if let Some(made) = expect(kernel.ask(opcode::SYMLINK, parent_id, link), &creation()) {
                model.add(parent, name, Content::Link(target.into_bytes()), &made);
            }
        }
        5 => {
            let Some(node) = model.pick(three, |_| true) else { return };
            let (is_directory, is_unlinked) = (model.is_directory(node), model.0[node].names == 0);
            let errors = if_any([
                (is_directory, EPERM),
                (is_unlinked || is_gone, ENOENT),
                (there.is_some(), EEXIST),
            ]);
            let link = body().u64(id(model, node)).name(name);
            if let Some(entry) = expect(kernel.ask(opcode::LINK, parent_id, link), &errors) {
                model.0[node].names += 1;
                model.entries(parent).insert(name, node);
                model.learn(node, &entry);
            }
        }
        6 => {
            let is_directory = there.is_some_and(|node| model.is_directory(node));
            let errors = if_any([(there.is_none(), ENOENT), (is_directory, EISDIR)]);
            let removed = kernel.ask(opcode::UNLINK, parent_id, body().name(name));
            if expect(removed, &errors).is_some() {
                let node = model.entries(parent).remove(name).unwrap();
                model.0[node].names -= 1;
            }
        }
        7 => {
            let is_directory = there.is_some_and(|node| model.is_directory(node));
            let is_full = there.is_some_and(|node| is_directory && !model.is_empty(node));
            let errors = if_any([
                (there.is_none(), ENOENT),
                (there.is_some() && !is_directory, ENOTDIR),
                (is_full, ENOTEMPTY),
            ]);
            let removed = kernel.ask(opcode::RMDIR, parent_id, body().name(name));
            if expect(removed, &errors).is_some() {
                let node = model.entries(parent).remove(name).unwrap();
                model.0[node].names -= 1;
            }
        }
        8 | 9 => {
            let Some(to) = model.directory(three) else { return };
            let new = NAMES[usize::from(three / 16) % NAMES.len()];
            let flags = [0, RENAME_NOREPLACE, RENAME_EXCHANGE][usize::from(two / 16) % 3];
            let errors = model.rename_errors((parent, name), (to, new), flags);
            let rename = body().u64(id(model, to)).u32(flags).u32(0).name(name).name(new);
            if expect(kernel.ask(opcode::RENAME2, parent_id, rename), &errors).is_some() {
                model.rename((parent, name), (to, new), flags);
            }
        }
        10 => {
            let Some(node) = model.file(one) else { return };
            let (offset, data) =
                (u64::from(two) * 40, vec![three; 1 + usize::from(two ^ three) * 8]);
            let written = kernel.with_open(id(model, node), |kernel, handle| {
                let write = body().u64(handle).u64(offset).u32(data.len() as u32).u32(0).zeros(16);
                kernel.ask(opcode::WRITE, parent_id, write.bytes(&data))
            });
            assert_eq!(u32_at(&written.unwrap(), 0) as usize, data.len());
            let Content::File(bytes) = &mut model.0[node].content else { unreachable!() };
            let end = offset as usize + data.len();
            bytes.resize(bytes.len().max(end), 0);
            bytes[offset as usize..end].copy_from_slice(&data);
        }
        11 => {
            let Some(node) = model.file(one) else { return };
            let (offset, size) = (usize::from(two) * 40, usize::from(three) * 16);
            let read = kernel.with_open(id(model, node), |kernel, handle| {
                let read = body().u64(handle).u64(offset as u64).u32(size as u32).zeros(20);
                kernel.ask(opcode::READ, parent_id, read)
            });
            let Content::File(bytes) = &model.0[node].content else { unreachable!() };
            let begin = offset.min(bytes.len());
            assert!(read.unwrap() == bytes[begin..(begin + size).min(bytes.len())]);
        }
        12 => {
            let Some(node) = model.file(one) else { return };
            let size = u64::from(two) * 64 + u64::from(three);
            let set = body().u32(SETATTR_SIZE).u32(0).u64(0).u64(size).zeros(64);
            let set = kernel.ask(opcode::SETATTR, id(model, node), set).unwrap();
            let Content::File(bytes) = &mut model.0[node].content else { unreachable!() };
            bytes.resize(size as usize, 0);
            model.assert_attributes(node, &set[16..]);
        }
        13 => {
            let Some(node) = model.pick(one, |_| true) else { return };
            let got = kernel.ask(opcode::GETATTR, id(model, node), body().zeros(16)).unwrap();
            model.assert_attributes(node, &got[16..]);
            match &model.0[node].content {
                Content::Directory(entries) if model.0[node].names > 0 => {
                    let kind = |node: &usize| match model.0[*node].content {
                        Content::File(_) => 8,
                        Content::Directory(_) => 4,
                        Content::Link(_) => 10,
                    };
                    let expected =
                        entries.iter().map(|(name, node)| (name.as_bytes().to_vec(), kind(node)));
                    assert_eq!(kernel.list(id(model, node)), expected.collect());
                }
                Content::Link(target) => {
                    let read = kernel.ask(opcode::READLINK, id(model, node), body());
                    assert_eq!(read.as_ref(), Ok(target));
                }
                _ => {}
            }
        }
        14 => {
            let Some(node) = model.pick(one, |node| !matches!(node.content, Content::Link(_)))
            else {
                return;
            };
            let value = vec![two; usize::from(three)];
            let set = body().u32(value.len() as u32).u32(0).u64(0).name(XATTR).bytes(&value);
            kernel.ask(opcode::SETXATTR, id(model, node), set).unwrap();
            model.0[node].xattr = Some(value);
            let Some(other) = model.pick(two, |_| true) else { return };
            let get = body().u32(4096).u32(0).name(XATTR);
            let got = kernel.ask(opcode::GETXATTR, id(model, other), get);
            assert_eq!(got, model.0[other].xattr.clone().ok_or(ENODATA));
        }
        15 => {
            let (Some(from), Some(to)) = (model.file(one), model.file(two)) else { return };
            let (offset, length) = (u64::from(two) * 16, u64::from(three) * 8);
            if from == to {
                return;
            }
            let copied = kernel.with_open(id(model, from), |kernel, source| {
                let target_id = id(model, to);
                kernel.with_open(target_id, |kernel, target| {
                    let copy = body().u64(source).u64(offset).u64(target_id).u64(target);
                    let copy = copy.u64(offset / 2).u64(length).u64(0);
                    kernel.ask(opcode::COPY_FILE_RANGE, id(model, from), copy)
                })
            });
            let Content::File(bytes) = &model.0[from].content else { unreachable!() };
            let begin = (offset as usize).min(bytes.len());
            let bytes = bytes[begin..(begin + length as usize).min(bytes.len())].to_vec();
            assert_eq!(u32_at(&copied.unwrap(), 0) as usize, bytes.len());
            let Content::File(target) = &mut model.0[to].content else { unreachable!() };
            if !bytes.is_empty() {
                let (at, end) = (offset as usize / 2, offset as usize / 2 + bytes.len());
                target.resize(target.len().max(end), 0);
                target[at..end].copy_from_slice(&bytes);
            }
        }
        _ => {
            let Some(node) = model.pick(one, |node| node.lookups > 0) else { return };
            if two % 2 == 0
                && let Content::File(_) = model.0[node].content
            {
                let synced = kernel.with_open(id(model, node), |kernel, handle| {
                    kernel.ask(opcode::FSYNC, parent_id, body().u64(handle).u64(0))
                });
                synced.unwrap();
            }
            let it = &mut model.0[node];
            kernel.send(opcode::FORGET, it.id.take().unwrap(), body().u64(it.lookups));
            it.lookups = 0;
        }
    }
}

// Input: operations of four bytes.
fuzz_target!(|bytes: &[u8]| {
    let sim = EMPTY.crash_image(Crash::KeepAll);
    let volume = Volume::open_on(Device::new(sim.clone()).unwrap()).unwrap();
    let (ours, theirs) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    let (first, steps) = bytes.split_first().unwrap_or((&0, &[]));
    let cache = [MountCache::Kernel, MountCache::Volume, MountCache::None][usize::from(*first) % 3];
    let server = thread::spawn(move || {
        let options = MountOptions::new().cache(cache);
        Mount::on_connection(theirs, volume, &options).unwrap().serve().unwrap();
    });
    let mut kernel = Kernel { socket: ours, unique: 0 };
    // Version 7.45, readahead, and every capability but requests over io_uring.
    let init = body().u32(7).u32(45).u32(1 << 17).u32(u32::MAX).u32(0xff).zeros(44);
    kernel.ask(opcode::INIT, 0, init).unwrap();
    let mut model = Model::new();
    let (steps, _) = steps.as_chunks::<4>();
    for bytes in steps.iter().take(500) {
        step(&mut kernel, &mut model, *bytes);
    }
    shutdown(&kernel.socket, Shutdown::Both).unwrap();
    server.join().unwrap();
    let device = Device::new(sim).unwrap();
    let report = Volume::check(&device, CheckOptions::default(), &mut |_, _| {}).unwrap();
    assert!(report.is_sound(), "{report:?}");
    let volume = Volume::open_on(device).unwrap();
    model.assert_in(&volume, 0, "");
    volume.close().unwrap();
});

//! Arbitrary operations on a volume, compared with a plain model of names and bytes. The volume is reopened in between,
//! and must be sound at the end.

#![no_main]

use std::cell::LazyCell;
use std::collections::BTreeMap;
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use uringfs::device::Device;
use uringfs::device::backend::sim::{Crash, Sim, SimOptions};
use uringfs::volume::CheckOptions;
use uringfs::{Buffer, FormatOptions, OpenOptions, Reactor, ReactorOptions, Volume};

const SIZE: u64 = 16 << 20;
/// Directories, and names in each of them.
const DIRECTORIES: [&str; 3] = ["", "/d", "/d/e"];
const NAMES: [&str; 4] = ["a", "b", "d", "e"];

/// The node at a path: a file's identity, or a directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Node {
    File(usize),
    Directory,
}

#[derive(Default)]
struct Model {
    names: BTreeMap<String, Node>,
    files: Vec<Vec<u8>>,
}

impl Model {
    fn has_directory(&self, path: &str) -> bool {
        let parent = &path[..path.rfind('/').unwrap_or(0)];
        parent.is_empty() || self.names.get(parent) == Some(&Node::Directory)
    }

    fn has_entries(&self, path: &str) -> bool {
        self.names.keys().any(|name| name.strip_prefix(path).is_some_and(|r| r.starts_with('/')))
    }
}

/// The volume that every input begins with.
static EMPTY: LazyLock<Sim> = LazyLock::new(|| {
    let sim = Sim::new(SimOptions::new(SIZE));
    let device = Device::new(sim.clone()).unwrap();
    Volume::format(&device, &FormatOptions::default()).unwrap();
    sim.restart_record();
    sim
});

thread_local! {
    // Never dropped: at the end of a thread, the drop would use thread-locals that are already destroyed.
    static REACTOR: LazyCell<&'static Reactor> =
        LazyCell::new(|| Box::leak(Box::new(Reactor::new(ReactorOptions::default()).unwrap())));
}

fn path_of(byte: u8) -> String {
    let (directory, name) = (usize::from(byte) % 3, usize::from(byte) / 3 % 4);
    format!("{}/{}", DIRECTORIES[directory], NAMES[name])
}

/// Applies one operation to both. They must agree on whether it succeeds.
fn perform(volume: &Volume, model: &mut Model, operation: &[u8]) {
    let (path, other) = (path_of(operation[1]), path_of(operation[2]));
    let node = model.names.get(&path).copied();
    let create = OpenOptions::new().read(true).write(true).create(true).direct(true);
    match operation[0] % 6 {
        0 => {
            let offset = u64::from(operation[2]) * 700;
            let bytes = vec![operation[3]; usize::from(operation[3]) * 50 + 1];
            let is_possible = model.has_directory(&path) && node != Some(Node::Directory);
            let opened = volume.open_with(&path, create);
            assert_eq!(opened.is_ok(), is_possible, "open {path}");
            let Ok(file) = opened else { return };
            let (written, _) = REACTOR
                .with(|reactor| reactor.block_on(file.write_at(Buffer::copy_of(&bytes), offset)));
            assert_eq!(written, Ok(bytes.len()));
            let index = match node {
                Some(Node::File(index)) => index,
                _ => {
                    model.files.push(Vec::new());
                    model.names.insert(path, Node::File(model.files.len() - 1));
                    model.files.len() - 1
                }
            };
            let (content, offset) = (&mut model.files[index], offset as usize);
            content.resize(content.len().max(offset + bytes.len()), 0);
            content[offset..offset + bytes.len()].copy_from_slice(&bytes);
        }
        1 => {
            let is_possible = model.has_directory(&path) && node.is_none();
            assert_eq!(volume.create_dir(&path).is_ok(), is_possible, "mkdir {path}");
            if is_possible {
                model.names.insert(path, Node::Directory);
            }
        }
        2 => {
            let is_possible = matches!(node, Some(Node::File(_)));
            assert_eq!(volume.remove_file(&path).is_ok(), is_possible, "rm {path}");
            if is_possible {
                model.names.remove(&path);
            }
        }
        3 => {
            let is_possible = node == Some(Node::Directory) && !model.has_entries(&path);
            assert_eq!(volume.remove_dir(&path).is_ok(), is_possible, "rmdir {path}");
            if is_possible {
                model.names.remove(&path);
            }
        }
        4 => {
            let is_possible = matches!(node, Some(Node::File(_)))
                && model.has_directory(&other)
                && !model.names.contains_key(&other);
            assert_eq!(volume.hard_link(&path, &other).is_ok(), is_possible, "ln {path} {other}");
            if let (true, Some(node)) = (is_possible, node) {
                model.names.insert(other, node);
            }
        }
        _ => {
            let is_possible = matches!(node, Some(Node::File(_)))
                && model.has_directory(&other)
                && model.names.get(&other) != Some(&Node::Directory);
            let moved = node != Some(Node::Directory) && volume.rename(&path, &other).is_ok();
            assert_eq!(moved, is_possible, "mv {path} {other}");
            // A rename between two names of one file does nothing.
            if let (true, Some(node)) = (is_possible, node)
                && model.names.get(&other) != Some(&node)
            {
                model.names.remove(&path);
                model.names.insert(other, node);
            }
        }
    }
}

/// Asserts that the volume equals the model.
fn compare(volume: &Volume, model: &Model) {
    for directory in DIRECTORIES {
        for name in NAMES {
            let path = format!("{directory}/{name}");
            let found = volume.symlink_metadata(&path).ok();
            match model.names.get(&path) {
                None => assert!(found.is_none(), "{path} exists"),
                Some(Node::Directory) => {
                    assert!(found.is_some_and(|found| found.is_dir()), "{path}");
                }
                Some(Node::File(index)) => {
                    let found = found.unwrap_or_else(|| panic!("{path} does not exist"));
                    let links = model.names.values().filter(|node| **node == Node::File(*index));
                    assert_eq!(found.nlink() as usize, links.count(), "{path}");
                    let file = volume
                        .open_with(&path, OpenOptions::new().read(true).direct(true))
                        .unwrap();
                    let buffer = Buffer::zeroed(found.len() as usize);
                    let (read, bytes) =
                        REACTOR.with(|reactor| reactor.block_on(file.read_at(buffer, 0)));
                    assert_eq!(read, Ok(model.files[*index].len()), "{path}");
                    assert!(bytes[..] == model.files[*index], "{path}");
                }
            }
        }
    }
}

// Input: operations of four bytes.
fuzz_target!(|bytes: &[u8]| {
    let sim = EMPTY.crash_image(Crash::KeepAll);
    let device = Device::new(sim).unwrap();
    let mut volume = Volume::open_on(device.clone()).unwrap();
    let mut model = Model::default();
    for operation in bytes.chunks_exact(4).take(200) {
        match operation[0] {
            0xf0..=0xf7 => volume.sync().unwrap(),
            0xf8..=0xff => {
                drop(volume);
                volume = Volume::open_on(device.clone()).unwrap();
                compare(&volume, &model);
            }
            _ => perform(&volume, &mut model, operation),
        }
    }
    compare(&volume, &model);
    drop(volume);
    let check = CheckOptions::new().deep(true);
    let report = Volume::check(&device, check, &mut |_, _| {}).unwrap();
    assert!(report.is_sound(), "{:?}", report.findings);
});

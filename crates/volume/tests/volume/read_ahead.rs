//! Names, inodes and extended attributes that are read from the catalog before they are asked for, while they change
//! and are committed.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use uringfs_device::backend::sim::{Sim, SimOptions};
use uringfs_device::{Device, Errno};
use uringfs_volume::{
    DirectoryStream, Error, FileType, Inode, InodeRef, Rename, SetXattr, Volume, VolumeOptions,
};

use crate::fixture::{formatted, reactor};
use crate::random::{Random, scaled};

const FILES: u64 = 1500;
const STEPS: u64 = 400;
const NOTE: &str = "user.note";

/// The content of the tree: directory and name of each file, and the file.
type Tree = BTreeMap<(usize, String), Known>;

#[derive(Clone, Debug, PartialEq, Eq)]
struct Known {
    number: u64,
    permissions: u16,
    note: Option<Vec<u8>>,
}

#[test]
fn what_was_read_ahead_is_as_new_as_the_last_change() {
    for seed in 0..scaled(16) as u64 {
        println!("seed {seed}");
        let sim = Sim::new(SimOptions::new(64 << 20));
        let mut tree = Tree::new();
        let volume = formatted(&sim);
        reactor().block_on(fill(&volume, &mut tree));
        volume.close().unwrap();
        // A cache from which some records are evicted before they are used.
        let options = VolumeOptions::new().catalog_cache_bytes(2 << 20);
        let volume = options.open_on(Device::new(sim).unwrap()).unwrap();
        let is_done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_done.load(Ordering::Relaxed) {
                    volume.sync().unwrap();
                }
            });
            let _done = SetOnDrop(&is_done);
            reactor().block_on(change_and_look(&volume, &mut tree, &mut Random(seed)));
        });
    }
}

struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

async fn fill(volume: &Volume, tree: &mut Tree) {
    for directory in 0..2 {
        let made = Inode::new(FileType::Directory, 0o755);
        let (directory_ref, _) = volume.root().create(directory.to_string(), &made).await.unwrap();
        for number in 0..FILES / 2 {
            create(tree, &directory_ref, (directory, format!("{number:04}"))).await;
        }
    }
}

async fn create(tree: &mut Tree, directory: &InodeRef, name: (usize, String)) {
    match directory.create(&name.1, &Inode::new(FileType::File, 0o600)).await {
        Ok((_, metadata)) => {
            let known = Known { number: metadata.ino(), permissions: 0o600, note: None };
            assert_eq!(tree.insert(name, known), None);
        }
        Err(error) => {
            assert_eq!(error.errno(), Errno::EXIST);
            assert!(tree.contains_key(&name));
        }
    }
}

async fn change_and_look(volume: &Volume, tree: &mut Tree, random: &mut Random) {
    let root = volume.root();
    let directories = [root.lookup("0").await.unwrap().0, root.lookup("1").await.unwrap().0];
    let mut streams = Vec::new();
    for directory in &directories {
        streams.push(directory.read_dir().await.unwrap());
    }
    for _ in 0..STEPS {
        let (name, other) = (random_name(random), random_name(random));
        let (directory, other_directory) = (&directories[name.0], &directories[other.0]);
        match random.below(10) {
            0 => create(tree, directory, name).await,
            1 => {
                let removed = directory.remove_file(&name.1).await;
                assert_eq!(errno(removed), tree.remove(&name).ok_or(Errno::NOENT).map(drop));
            }
            2 => {
                let renamed = directory.rename(&name.1, other_directory, &other.1, Rename::Replace);
                let moved = tree.remove(&name);
                assert_eq!(errno(renamed.await), moved.as_ref().ok_or(Errno::NOENT).map(drop));
                tree.extend(moved.map(|moved| (other, moved)));
            }
            3 => {
                let how = Rename::Exchange;
                let exchanged = directory.rename(&name.1, other_directory, &other.1, how).await;
                if errno(exchanged).is_ok() {
                    let (one, two) = (tree[&name].clone(), tree[&other].clone());
                    tree.extend([(name, two), (other, one)]);
                } else {
                    assert!(!tree.contains_key(&name) || !tree.contains_key(&other));
                }
            }
            4 | 5 => change_attributes(tree, directory, name, random).await,
            6 => streams[name.0].seek(0).unwrap(),
            _ => list(tree, name.0, &mut streams[name.0]).await,
        }
    }
    for (directory, stream) in streams.iter_mut().enumerate() {
        stream.seek(0).unwrap();
        list(tree, directory, stream).await;
    }
    for (directory, name) in tree.keys() {
        look(tree, &directories[*directory], (*directory, name.clone())).await;
    }
}

fn random_name(random: &mut Random) -> (usize, String) {
    (random.below(2) as usize, format!("{:04}", random.below(FILES / 2 + 50)))
}

async fn change_attributes(
    tree: &mut Tree,
    directory: &InodeRef,
    name: (usize, String),
    random: &mut Random,
) {
    let Some(known) = tree.get_mut(&name) else { return };
    let (file, _) = directory.lookup(&name.1).await.unwrap();
    known.permissions = random.below(0o1000) as u16;
    file.set_attributes(|inode| inode.permissions = known.permissions).await.unwrap();
    // Few files have attributes, so that those of most groups are known to have none.
    match random.below(8) {
        0 => {
            known.note = Some(random.bytes(3));
            let note = known.note.as_ref().unwrap();
            file.set_xattr(NOTE, note, SetXattr::Either).await.unwrap();
        }
        1 => {
            let had = known.note.take().is_some();
            assert_eq!(
                errno(file.remove_xattr(NOTE).await),
                had.then_some(()).ok_or(Errno::NODATA)
            );
        }
        _ => {}
    }
}

/// Looks up the next names of a listing.
async fn list(tree: &Tree, directory: usize, stream: &mut DirectoryStream) {
    for _ in 0..100 {
        let Some(entry) = stream.next_entry().await.unwrap() else { break };
        let name = (directory, String::from_utf8(entry.name).unwrap());
        look(tree, stream.directory(), name).await;
    }
}

/// Compares what a name leads to.
async fn look(tree: &Tree, directory: &InodeRef, name: (usize, String)) {
    let known = tree.get(&name);
    match directory.lookup(&name.1).await {
        Ok((file, metadata)) => {
            let note = match file.get_xattr(NOTE).await {
                Err(error) if error.errno() == Errno::NODATA => None,
                note => Some(note.unwrap()),
            };
            assert_eq!(file.list_xattrs().await.unwrap().len(), usize::from(note.is_some()));
            let permissions = (metadata.mode() & 0o7777) as u16;
            let found = Known { number: metadata.ino(), permissions, note };
            assert_eq!(Some(&found), known, "{name:?}");
        }
        Err(error) => assert_eq!((error.errno(), known), (Errno::NOENT, None), "{name:?}"),
    }
}

fn errno<T>(result: Result<T, Error>) -> Result<(), Errno> {
    result.map(drop).map_err(|error| error.errno())
}

//! The content of a volume, read through its API: all names, attributes and bytes.

use std::collections::BTreeMap;

use uringfs_buffer::Buffer;
use uringfs_reactor::Reactor;
use uringfs_volume::{FileType, Follow, InodeNumber, OpenOptions, Time, Volume};

/// Everything in the volume, by path.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Found(pub BTreeMap<String, Entry>);

#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    pub number: InodeNumber,
    pub owner: (u32, u32),
    pub permissions: u16,
    pub modified: Time,
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    pub content: Content,
}

#[derive(Clone, PartialEq)]
pub enum Content {
    Directory,
    Symlink(Vec<u8>),
    File(Vec<u8>),
}

impl std::fmt::Debug for Content {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Content::Directory => write!(out, "directory"),
            Content::Symlink(target) => write!(out, "symlink to {}", target.escape_ascii()),
            Content::File(bytes) => write!(out, "{} bytes", bytes.len()),
        }
    }
}

impl Found {
    /// Reads all of a volume.
    pub fn read(volume: &Volume, reactor: &Reactor) -> Result<Found, String> {
        let mut found = Found::default();
        found.walk(volume, reactor, "").map(|()| found)
    }

    fn walk(&mut self, volume: &Volume, reactor: &Reactor, directory: &str) -> Result<(), String> {
        let path = if directory.is_empty() { "/" } else { directory };
        let listed = |error| format!("{path}: {error}");
        for entry in volume.read_dir(path).map_err(listed)? {
            let name = entry.map_err(listed)?.file_name();
            let name = name.into_string().map_err(|name| format!("{path}: {name:?}"))?;
            let path = format!("{directory}/{name}");
            let entry =
                read_entry(volume, reactor, &path).map_err(|error| format!("{path}: {error}"))?;
            let is_directory = entry.content == Content::Directory;
            self.0.insert(path.clone(), entry);
            if is_directory {
                self.walk(volume, reactor, &path)?;
            }
        }
        Ok(())
    }

    /// The regular files, with their sizes.
    pub fn files(&self) -> impl Iterator<Item = (&String, usize)> {
        self.0.iter().filter_map(|(path, entry)| match &entry.content {
            Content::File(bytes) => Some((path, bytes.len())),
            _ => None,
        })
    }
}

fn read_entry(
    volume: &Volume,
    reactor: &Reactor,
    path: &str,
) -> Result<Entry, Box<dyn std::error::Error>> {
    let metadata = volume.symlink_metadata(path)?;
    let (number, inode) = (InodeNumber(metadata.ino()), metadata.into_inode());
    let content = match inode.kind {
        FileType::Directory => Content::Directory,
        FileType::Symlink => Content::Symlink(inode.target.to_vec()),
        _ => {
            let file =
                volume.open_with(path, OpenOptions::new().read(true).write(true).direct(true))?;
            let size = file.len() as usize;
            let (read, bytes) = reactor.block_on(file.read_at(Buffer::zeroed(size), 0));
            match read? == size {
                true => Content::File(bytes.to_vec()),
                false => return Err("the file is shorter than its size".into()),
            }
        }
    };
    let mut xattrs = BTreeMap::new();
    for name in volume.list_xattrs(path, Follow::No)? {
        let value = volume.get_xattr(path, Follow::No, &name)?;
        xattrs.insert(name, value);
    }
    let (owner, permissions) = ((inode.user, inode.group), inode.permissions);
    Ok(Entry { number, owner, permissions, modified: inode.modified, xattrs, content })
}

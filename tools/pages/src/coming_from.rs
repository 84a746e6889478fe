//! The names of the library in the tables of `docs/guide/coming-from.md`. rustdoc looks each of them up, and
//! `scripts/test lint` fails if one does not exist; a test compares this list with the page.
//!
//! [`Volume::open_file`] [`Volume::create_file`] [`OpenOptions::new`] [`OpenOptions::read`]
//! [`OpenOptions::write`] [`OpenOptions::create`] [`OpenOptions::create_new`] [`OpenOptions::truncate`]
//! [`OpenOptions::mode`] [`OpenOptions::open`] [`Volume::open_with`] [`File::append`] [`OpenOptions::direct`]
//! [`Volume::create_dir`] [`Volume::create_dir_all`] [`Volume::remove_dir`] [`Volume::remove_dir_all`]
//! [`Volume::remove_file`] [`Volume::rename`] [`Volume::hard_link`] [`Volume::read_link`] [`Volume::exists`]
//! [`Volume::read`] [`Volume::write`] [`Volume::copy`] [`Volume::symlink`] [`Volume::read_dir`]
//! [`Volume::metadata`] [`Volume::symlink_metadata`] [`Volume::set_permissions`] [`Volume::chown`]
//! [`Volume::lchown`] [`Volume::set_times`] [`Volume::get_xattr`] [`Volume::list_xattrs`]
//! [`Volume::set_xattr`] [`Volume::remove_xattr`] [`File::read_at`] [`File::write_at`]
//! [`File::read_exact_at`] [`File::write_all_at`] [`File::read_vectored_at`] [`File::write_vectored_at`]
//! [`File::len`] [`File::set_len`] [`File::sync_all`] [`File::sync_data`] [`File::sync_range`]
//! [`File::allocate`] [`File::punch_hole`] [`File::zero_range`] [`File::discard`] [`File::write_zeroes`]
//! [`File::advise`] [`File::seek_data`] [`File::seek_hole`] [`File::write_durably`] [`File::append_durably`]
//! [`File::write_atomic`] [`File::try_read_at`] [`File::page`] [`FileOp::wait`] [`Reactor::block_on`]
//! [`LocalReactor::spawn`] [`FileOp`] [`BlockingFile`] [`Volume::metadata_of`] [`AsyncVolume::metadata_of`]
//! [`DirEntry::metadata`] [`Buffer::truncate`] [`Buffer::split_off`] [`BufferPool`] [`IoBuf`] [`Error::io_kind`]
//! [`Error::errno`] [`Error::path`] [`Reactor::counters`] [`Volume::statistics`] [`Device::flushes`]

#[allow(unused_imports, reason = "only the documentation names them")]
use uringfs::{
    AsyncVolume, Buffer, BufferPool, Error, File, FileOp, IoBuf, OpenOptions, Reactor, Volume,
    compat::BlockingFile, device::Device, reactor::LocalReactor, volume::DirEntry,
};

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    const PAGE: &str = include_str!("../../../docs/guide/coming-from.md");
    const LIST: &str = include_str!("coming_from.rs");

    /// The code in a text: the parts between backquotes.
    fn code(text: &str) -> impl Iterator<Item = &str> {
        text.split('`').skip(1).step_by(2)
    }

    /// The names in the column "uringfs: `Type`" of each table, with their types.
    fn names_in_tables() -> BTreeSet<String> {
        let mut names = BTreeSet::new();
        let mut column = None;
        for line in PAGE.lines() {
            let cells: Vec<&str> = line.split('|').map(str::trim).collect();
            if cells.len() < 3 {
                column = None;
                continue;
            }
            let Some((index, kind)) = column else {
                let head = cells.iter().position(|cell| cell.starts_with("uringfs: `"));
                column = head.map(|index| (index, code(cells[index]).next().unwrap()));
                continue;
            };
            let cell = if cells[index] == "the same" { cells[1] } else { cells[index] };
            names.extend(code(cell).map(|name| {
                let has_type = name.starts_with(char::is_uppercase);
                if has_type { name.to_owned() } else { format!("{kind}::{name}") }
            }));
        }
        names
    }

    #[test]
    fn the_list_has_the_names_of_the_tables() {
        let list = LIST.lines().take_while(|line| line.starts_with("//!"));
        let list = list.flat_map(|line| line.split("[`").skip(1));
        let list: BTreeSet<String> =
            list.map(|link| link.split('`').next().unwrap().to_owned()).collect();
        let tables = names_in_tables();
        assert!(tables.len() > 40, "{tables:?}");
        assert_eq!(list, tables);
    }
}

//! Opens a file by path.

use uringfs_cache::Cache;
use uringfs_file::File;
use uringfs_reactor::ForkDetector;

use crate::core::blocking::WaitMode;
use crate::error::Error;
use crate::namespace::credentials::Credentials;
use crate::namespace::open_options::OpenOptions;
use crate::namespace::operations::{find, find_or_make, strip_privileges};
use crate::records::inode::{FileType, Inode};
use crate::volume::file_map::VolumeMap;
use crate::volume::volume::{Volume, read_only};

impl Volume {
    pub(crate) async fn open_in_mode(
        &self,
        mode: WaitMode,
        path: &[u8],
        options: OpenOptions,
    ) -> Result<File, Error> {
        let open = match options.create {
            Some(permissions) => {
                self.check_changeable()?;
                let mut new = Inode::new(FileType::File, permissions);
                if let Credentials::User { user, group } = options.credentials {
                    (new.user, new.group) = (user, group);
                }
                self.shared.open(mode, path, find_or_make(path, &new, options)).await?
            }
            None => self.shared.open(mode, path, find(path)).await?,
        };
        let (device, lock) = (self.shared.device.clone(), open.lock.clone());
        let map = VolumeMap {
            file: open,
            volume: self.clone(),
            is_superuser: options.credentials == Credentials::Superuser,
            access_time: options.access_time,
            fork: ForkDetector::default(),
        };
        if options.truncate {
            if self.is_read_only() {
                return Err(read_only());
            }
            if map.must_strip_privileges() {
                self.change(mode, strip_privileges(&map.file, map.is_superuser)).await?;
            }
            // Check the cache first: what is written back in between is in the map by then.
            if lock.has_dirty() || !map.file.is_empty() {
                self.shared.truncate_to_zero(&map.file);
            }
            map.update_mtime();
        }
        let file = File::with_resizable_map(device, map, lock, options.file);
        if options.direct {
            return Ok(file);
        }
        let cache = self.shared.page_cache.clone().unwrap_or_else(Cache::of_process);
        Ok(file.buffered(&cache))
    }
}

//! Opens the file, block device or NVMe namespace of a path, or the export or image of a URI.

use std::io;
use std::path::Path;
use std::thread::sleep;
use std::time::Instant;

use uringfs_errno::Errno;

use super::open_error::{IN_USE_TIMEOUT, open_error};
use super::remote::RemoteTarget;
use super::{block, file, in_use, nvme};
use crate::interface::backend::{Access, Backend};

/// The back end of the block device, NVMe namespace or ordinary file `path`, or of the URI of an NBD server's export or
/// of an image of RBD. Refuses
/// to open for writing what is mounted, swap, or used by the kernel in another way, and also a file that backs a loop device
/// which is used in such a way (see [`in_use`]).
///
/// # Errors
/// In one line why it cannot be opened, with the path and what to do.
pub fn open(path: &Path, access: Access) -> io::Result<Box<dyn Backend>> {
    if let Some(target) = RemoteTarget::from_path(path) {
        return target?.open(access);
    }
    let metadata = std::fs::metadata(path).map_err(|error| match Errno::from_io_error(&error) {
        Some(errno) => open_error(path, access, errno),
        None => error,
    })?;
    let namespace_block = nvme::block_device_of(path);
    if access == Access::ReadWrite {
        if file::serves(&metadata) || block::serves(&metadata) {
            refuse_if_in_use(path)?;
        } else if let Some(block_path) = &namespace_block {
            refuse_if_in_use(block_path)?;
        }
    }
    if file::serves(&metadata) {
        Ok(Box::new(file::File::open(path, access)?))
    } else if block::serves(&metadata) {
        Ok(Box::new(block::Block::open(path, access)?))
    } else if nvme::is_namespace(path) {
        Ok(Box::new(nvme::Nvme::open(path, access)?))
    } else if metadata.is_dir() {
        Err(open_error(path, access, Errno::ISDIR))
    } else {
        nvme::refuse_controller(path, &metadata)?;
        // Do not open it: opening a pipe waits for its other end.
        Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("{} is neither a file nor a block device; name one of these", path.display()),
        ))
    }
}

/// Refuses a path that is still in use after [`IN_USE_TIMEOUT`].
fn refuse_if_in_use(path: &Path) -> io::Result<()> {
    let deadline = Instant::now() + IN_USE_TIMEOUT;
    while let Some(user) = in_use::find_user(path) {
        if Instant::now() >= deadline {
            let path = path.display();
            let message = format!("{path} {user}; stop that use first");
            return Err(io::Error::new(io::ErrorKind::ResourceBusy, message));
        }
        sleep(IN_USE_TIMEOUT / 50);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(path: &Path, access: Access) -> String {
        let error = open(path, access).err().expect("refused").to_string();
        assert!(error.contains(&path.display().to_string()), "{error}");
        assert!(!error.contains('\n'), "{error}");
        error
    }

    #[test]
    fn paths_that_are_no_device_are_refused_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let missing = error(&folder.path().join("missing"), Access::Read);
        assert!(missing.contains("does not exist"), "{missing}");
        let directory = error(folder.path(), Access::Read);
        assert!(directory.contains("is a directory"), "{directory}");
        let character = error(Path::new("/dev/null"), Access::ReadWrite);
        assert!(character.contains("neither a file nor a block device"), "{character}");
        let below = folder.path().join("file");
        std::fs::write(&below, "x").unwrap();
        let below = error(&below.join("deeper"), Access::Read);
        assert!(below.contains("not a directory"), "{below}");
    }
}

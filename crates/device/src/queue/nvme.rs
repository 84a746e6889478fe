//! Requests as commands to a namespace of an NVMe device, over io_uring and without the block layer: a reactor has one
//! ring for those of all its devices. Reads, writes and flushes are such commands. Discards and zeroing are calls that
//! wait: there the back end sends the commands.

use std::io;

use uringfs_ring::nvme::NvmeRing;

use crate::inner::DeviceInner;
use crate::interface::backend::KernelTarget;
use crate::request::Request;

/// Puts a namespace into a ring's table, at the device's index.
///
/// # Errors
/// `Unsupported` when the device is no namespace; the errors of [`NvmeRing::install`].
pub fn install(ring: &mut NvmeRing<Request>, core: &DeviceInner) -> io::Result<()> {
    match core.backend().kernel_target() {
        KernelTarget::Nvme(device, namespace) => {
            ring.install(core.index().get() as u32, device, namespace)
        }
        KernelTarget::Descriptor(_) | KernelTarget::Nop | KernelTarget::InProcess => {
            let what = core.backend().description();
            let text =
                format!("{what}: no namespace of an NVMe device; name one, such as /dev/ng0n1");
            Err(io::Error::new(io::ErrorKind::Unsupported, text))
        }
    }
}

#[cfg(test)]
mod tests {
    use uringfs_ring::RingOptions;

    use super::*;
    use crate::Device;
    use crate::backend::null::Null;

    #[test]
    fn only_namespaces_are_served() {
        let device = Device::new(Null::new(1 << 20)).unwrap();
        // Entries of 128 bytes exist since Linux 5.19.
        let Ok(mut ring) = NvmeRing::new(&RingOptions::default()) else { return };
        let text = install(&mut ring, device.core()).unwrap_err().to_string();
        assert!(!text.contains('\n'), "{text}");
        assert!(text.starts_with("null, 1048576 bytes: no namespace"), "{text}");
    }
}

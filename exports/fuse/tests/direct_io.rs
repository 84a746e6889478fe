//! Files that programs open with O_DIRECT: whether the kernel caches them. The test is the kernel here.

mod harness;

use harness::{Kernel, simulated, words};

const OPEN: u32 = 14;
const CREATE: u32 = 35;
const O_RDWR: u32 = 2;
const O_DIRECT: u32 = rustix::fs::OFlags::DIRECT.bits();
/// Capabilities of INIT.
const SETXATTR_EXT: u64 = 1 << 29;
const INIT_EXT: u64 = 1 << 30;
const DIRECT_IO_ALLOW_MMAP: u64 = 1 << 36;
/// Flags of an open reply.
const DIRECT_IO: u32 = 1;
const KEEP_CACHE: u32 = 2;

/// The flags of the replies to CREATE and OPEN of a file with these flags, to a kernel that offers these capabilities.
fn flags_of_replies(offered: u64, asked: u32) -> [u32; 2] {
    let (_, volume) = simulated();
    let kernel = Kernel::connect(volume);
    kernel.offer(offered | SETXATTR_EXT | INIT_EXT);
    let create = [&words(&[asked, 0o100_644, 0, 0])[..], b"file\0"].concat();
    let (error, created) = kernel.ask(CREATE, Kernel::ROOT, &create, b"");
    assert_eq!(error, 0);
    let node = u64::from_ne_bytes(created[..8].try_into().unwrap());
    let (error, opened) = kernel.ask(OPEN, node, &words(&[asked, 0]), b"");
    assert_eq!(error, 0);
    kernel.end();
    [&created[128..], &opened].map(|reply| u32::from_ne_bytes(reply[8..12].try_into().unwrap()))
}

#[test]
fn o_direct_bypasses_the_cache_where_the_kernel_keeps_that_coherent() {
    for capability in [0, DIRECT_IO_ALLOW_MMAP] {
        assert_eq!(flags_of_replies(capability, O_RDWR), [KEEP_CACHE; 2]);
    }
    assert_eq!(flags_of_replies(0, O_RDWR | O_DIRECT), [KEEP_CACHE; 2]);
    let uncached = flags_of_replies(DIRECT_IO_ALLOW_MMAP, O_RDWR | O_DIRECT);
    assert_eq!(uncached.map(|flags| flags & (DIRECT_IO | KEEP_CACHE)), [DIRECT_IO; 2]);
}

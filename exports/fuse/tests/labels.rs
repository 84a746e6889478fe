//! Requests that create a labelled file, as a kernel with SELinux sends them. The test is the kernel here, because few
//! machines of tests have SELinux.

mod harness;

use harness::{Kernel, words};
use uringfs::volume::Follow;
use uringfs::{FormatOptions, Volume};

const SYMLINK: u32 = 6;
const MKNOD: u32 = 8;
const MKDIR: u32 = 9;
const CREATE: u32 = 35;
const TMPFILE: u32 = 51;
const LINK: u32 = 13;
/// Capabilities of INIT.
const SECURITY_CTX: u64 = 1 << 32;

const LABEL: &[u8] = b"system_u:object_r:mail_t:s0\0";

/// An extension with one label.
fn labelled(name: &[u8], value: &[u8]) -> Vec<u8> {
    let label = [&words(&[value.len() as u32, 0])[..], name, b"\0", value].concat();
    let size = (8 + label.len()).next_multiple_of(8);
    let mut extension = [&words(&[size as u32, 1])[..], &label].concat();
    extension.resize(size, 0);
    extension
}

#[test]
fn files_are_created_with_their_labels_or_not_at_all() {
    let folder = tempfile::tempdir().unwrap();
    let format = FormatOptions::new().size(64 << 20);
    let volume = Volume::create(folder.path().join("image"), &format).unwrap();
    let kernel = Kernel::connect(volume.clone());
    assert_eq!(kernel.offer(u64::MAX) & SECURITY_CTX, SECURITY_CTX);

    let label = labelled(b"security.selinux", LABEL);
    let creations = [
        (MKDIR, "dir", [&words(&[0o755, 0])[..], b"dir\0"].concat()),
        (MKNOD, "pipe", [&words(&[0o010_644, 0, 0, 0])[..], b"pipe\0"].concat()),
        (SYMLINK, "link", b"link\0target\0".to_vec()),
        (CREATE, "file", [&words(&[2, 0o100_644, 0, 0])[..], b"file\0"].concat()),
    ];
    for (opcode, name, body) in creations {
        assert_eq!(kernel.ask(opcode, Kernel::ROOT, &body, &label).0, 0, "{name}");
        let stored = volume.get_xattr(format!("/{name}"), Follow::No, "security.selinux");
        assert_eq!(stored.unwrap(), LABEL, "{name}");
    }
    let (error, made) = kernel.ask(TMPFILE, Kernel::ROOT, &words(&[2, 0o100_644, 0, 0]), &label);
    assert_eq!(error, 0);
    assert_eq!(kernel.ask(LINK, Kernel::ROOT, &[&made[..8], b"unnamed\0"].concat(), b"").0, 0);
    let stored = volume.get_xattr("/unnamed", Follow::No, "security.selinux");
    assert_eq!(stored.unwrap(), LABEL);

    // A kernel without a label for the file says so; other extensions are no concern of the server.
    let (none, groups) = (words(&[8, 0]), words(&[16, 32, 1, 100]));
    let mkdir = [&words(&[0o755, 0])[..], b"plain\0"].concat();
    assert_eq!(kernel.ask(MKDIR, Kernel::ROOT, &mkdir, &[none, groups].concat()).0, 0);
    assert_eq!(volume.list_xattrs("/plain", Follow::No).unwrap(), [b""; 0]);
    // EOPNOTSUPP for a label that the volume cannot store.
    let mkdir = [&words(&[0o755, 0])[..], b"refused\0"].concat();
    assert_eq!(kernel.ask(MKDIR, Kernel::ROOT, &mkdir, &labelled(b"unknown", LABEL)).0, 95);
    assert!(volume.metadata("/refused").is_err());
    drop(volume);
    kernel.end();
}

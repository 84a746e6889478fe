//! Requests that create a labelled file, as a kernel with SELinux sends them. The test is the kernel here, because few
//! machines of tests have SELinux.

use std::os::fd::OwnedFd;
use std::thread;

use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair,
};
use uringfs::volume::Follow;
use uringfs::{FormatOptions, Volume};
use uringfs_fuse::{Mount, MountOptions};

const ROOT: u64 = 1;
const SYMLINK: u32 = 6;
const MKNOD: u32 = 8;
const MKDIR: u32 = 9;
const INIT: u32 = 26;
const CREATE: u32 = 35;
const TMPFILE: u32 = 51;
const LINK: u32 = 13;
/// Capabilities of INIT.
const SECURITY_CTX: u64 = 1 << 32;

const LABEL: &[u8] = b"system_u:object_r:mail_t:s0\0";

/// A request. Its body is filled up to a multiple of 8 where an extension follows.
fn ask(kernel: &OwnedFd, opcode: u32, node: u64, body: &[u8], extension: &[u8]) -> (i32, Vec<u8>) {
    let length = (40 + body.len() + extension.len()) as u32;
    let mut header = [0; 40];
    header[..4].copy_from_slice(&length.to_ne_bytes());
    header[4..8].copy_from_slice(&opcode.to_ne_bytes());
    header[8..16].copy_from_slice(&2u64.to_ne_bytes());
    header[16..24].copy_from_slice(&node.to_ne_bytes());
    header[36..38].copy_from_slice(&((extension.len() / 8) as u16).to_ne_bytes());
    send(kernel, &[&header[..], body, extension].concat(), SendFlags::empty()).unwrap();
    let mut reply = vec![0; 4096];
    let (length, _) = recv(kernel, &mut reply[..], RecvFlags::empty()).unwrap();
    let error = i32::from_ne_bytes(reply[4..8].try_into().unwrap());
    (-error, reply[16..length].to_vec())
}

fn words(values: &[u32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_ne_bytes()).collect()
}

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
    let (kernel, theirs) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    let server = thread::spawn({
        let volume = volume.clone();
        || Mount::on_connection(theirs, volume, &MountOptions::new().threads(1)).unwrap().serve()
    });
    let init = [&words(&[7, 45, 1 << 17, u32::MAX, u32::MAX])[..], &[0; 44]].concat();
    let (error, agreed) = ask(&kernel, INIT, 0, &init, b"");
    let word = |at: usize| u64::from(u32::from_ne_bytes(agreed[at..at + 4].try_into().unwrap()));
    assert_eq!((error, (word(12) | word(32) << 32) & SECURITY_CTX), (0, SECURITY_CTX));

    let label = labelled(b"security.selinux", LABEL);
    let creations = [
        (MKDIR, "dir", [&words(&[0o755, 0])[..], b"dir\0"].concat()),
        (MKNOD, "pipe", [&words(&[0o010_644, 0, 0, 0])[..], b"pipe\0"].concat()),
        (SYMLINK, "link", b"link\0target\0".to_vec()),
        (CREATE, "file", [&words(&[2, 0o100_644, 0, 0])[..], b"file\0"].concat()),
    ];
    for (opcode, name, body) in creations {
        assert_eq!(ask(&kernel, opcode, ROOT, &body, &label).0, 0, "{name}");
        let stored = volume.get_xattr(format!("/{name}"), Follow::No, "security.selinux");
        assert_eq!(stored.unwrap(), LABEL, "{name}");
    }
    let (error, made) = ask(&kernel, TMPFILE, ROOT, &words(&[2, 0o100_644, 0, 0]), &label);
    assert_eq!(error, 0);
    assert_eq!(ask(&kernel, LINK, ROOT, &[&made[..8], b"unnamed\0"].concat(), b"").0, 0);
    let stored = volume.get_xattr("/unnamed", Follow::No, "security.selinux");
    assert_eq!(stored.unwrap(), LABEL);

    // A kernel without a label for the file says so; other extensions are no concern of the server.
    let (none, groups) = (words(&[8, 0]), words(&[16, 32, 1, 100]));
    let mkdir = [&words(&[0o755, 0])[..], b"plain\0"].concat();
    assert_eq!(ask(&kernel, MKDIR, ROOT, &mkdir, &[none, groups].concat()).0, 0);
    assert_eq!(volume.list_xattrs("/plain", Follow::No).unwrap(), [b""; 0]);
    // EOPNOTSUPP for a label that the volume cannot store.
    let mkdir = [&words(&[0o755, 0])[..], b"refused\0"].concat();
    assert_eq!(ask(&kernel, MKDIR, ROOT, &mkdir, &labelled(b"unknown", LABEL)).0, 95);
    assert!(volume.metadata("/refused").is_err());
    drop((volume, kernel));
    server.join().unwrap().unwrap();
}

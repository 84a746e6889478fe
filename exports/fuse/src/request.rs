//! Parses requests: bytes from the kernel, or from whatever holds the other end, into an [`Operation`]. Every length is
//! checked; what does not fit is [`Malformed`]. No operation but these is ever seen by the rest of the server.

use zerocopy::{FromBytes, Immutable, KnownLayout, Unalign};

use crate::abi::{
    BatchForgetIn, CopyFileRangeIn, CreateIn, ExtensionHeader, FallocateIn, ForgetIn, ForgetOne,
    FsyncIn, GetxattrIn, InHeader, InitIn, LabelHeader, LinkIn, LseekIn, MAX_LABELS, MkdirIn,
    MknodIn, OpenIn, ReadIn, ReleaseIn, Rename2In, RenameIn, SetattrIn, SetxattrIn, WriteIn,
    opcode,
};

/// A request: who asks, about which node, and what.
pub(crate) struct Request<'a> {
    pub(crate) header: InHeader,
    pub(crate) operation: Operation<'a>,
    pub(crate) labels: Labels<'a>,
}

/// The labels of a file that a request creates: extended attributes that it has from the beginning, by name and value.
pub(crate) type Labels<'a> = Vec<(&'a [u8], &'a [u8])>;

/// Bytes that are no request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Malformed;

pub(crate) enum Operation<'a> {
    Init(InitIn),
    Destroy,
    Forget(u64),
    BatchForget(&'a [Unalign<ForgetOne>]),
    Interrupt,
    Lookup(&'a [u8]),
    Getattr,
    Setattr(SetattrIn),
    Readlink,
    Symlink {
        name: &'a [u8],
        target: &'a [u8],
    },
    Mknod(MknodIn, &'a [u8]),
    Mkdir(MkdirIn, &'a [u8]),
    Unlink(&'a [u8]),
    Rmdir(&'a [u8]),
    Rename {
        new_directory: u64,
        flags: u32,
        name: &'a [u8],
        new_name: &'a [u8],
    },
    Link(LinkIn, &'a [u8]),
    Open(OpenIn),
    Create(CreateIn, &'a [u8]),
    Tmpfile(CreateIn),
    Read(ReadIn),
    Write(WriteIn, &'a [u8]),
    Statfs,
    Release(ReleaseIn),
    Flush,
    Fsync(FsyncIn),
    Setxattr {
        set: SetxattrIn,
        name: &'a [u8],
        value: &'a [u8],
    },
    Getxattr {
        size: u32,
        name: &'a [u8],
    },
    Listxattr {
        size: u32,
    },
    Removexattr(&'a [u8]),
    Opendir,
    Readdir(ReadIn),
    Readdirplus(ReadIn),
    Releasedir(ReleaseIn),
    Fsyncdir,
    Syncfs,
    Fallocate(FallocateIn),
    Lseek(LseekIn),
    CopyFileRange {
        copy: CopyFileRangeIn,
        /// The reply has 64 bits for the length.
        is_64: bool,
    },
    /// An operation that this server does not know.
    Unknown,
}

impl<'a> Request<'a> {
    /// Parses the bytes of one read of the device.
    pub(crate) fn parse(bytes: &'a [u8]) -> Result<Request<'a>, Malformed> {
        let (header, rest) = InHeader::read_from_prefix(bytes).map_err(|_| Malformed)?;
        let body_length = (header.length as usize)
            .checked_sub(size_of::<InHeader>() + usize::from(header.extension_length) * 8)
            .filter(|_| header.length as usize == bytes.len())
            .ok_or(Malformed)?;
        let (body, extensions) = rest.split_at(body_length);
        let operation = Operation::parse(header.opcode, &mut Body { rest: body })?;
        let labels = labels(Body { rest: extensions })?;
        Ok(Request { header, operation, labels })
    }
}

/// Whether an operation, other than a write, changes the volume.
pub(crate) fn is_change(code: u32) -> bool {
    matches!(
        code,
        opcode::SETATTR
            | opcode::SYMLINK
            | opcode::MKNOD
            | opcode::MKDIR
            | opcode::UNLINK
            | opcode::RMDIR
            | opcode::RENAME
            | opcode::RENAME2
            | opcode::LINK
            | opcode::CREATE
            | opcode::TMPFILE
            | opcode::SETXATTR
            | opcode::REMOVEXATTR
            | opcode::FALLOCATE
            | opcode::COPY_FILE_RANGE
            | opcode::COPY_FILE_RANGE_64
    )
}

/// The labels in the extensions of a request. Other extensions are left alone.
fn labels<'a>(mut extensions: Body<'a>) -> Result<Labels<'a>, Malformed> {
    let mut labels = Labels::new();
    while !extensions.rest.is_empty() {
        let ExtensionHeader { size, kind } = extensions.take()?;
        let length = size.checked_sub(size_of::<ExtensionHeader>() as u32);
        let length = length.filter(|length| length % 8 == 0).ok_or(Malformed)?;
        let mut extension = Body { rest: extensions.bytes(length)? };
        for _ in 0..if kind <= MAX_LABELS { kind } else { 0 } {
            let LabelHeader { size, .. } = extension.take()?;
            labels.push((extension.string()?, extension.bytes(size)?));
            // The next one begins at a multiple of 8, as the end does.
            extension.bytes(extension.rest.len() as u32 % 8)?;
        }
    }
    Ok(labels)
}

impl<'a> Operation<'a> {
    fn parse(code: u32, body: &mut Body<'a>) -> Result<Operation<'a>, Malformed> {
        Ok(match code {
            opcode::INIT => Operation::Init(body.init()?),
            opcode::DESTROY => Operation::Destroy,
            opcode::FORGET => Operation::Forget(body.take::<ForgetIn>()?.lookups),
            opcode::BATCH_FORGET => {
                let count = body.take::<BatchForgetIn>()?.count as usize;
                let forgets = <[Unalign<ForgetOne>]>::ref_from_prefix_with_elems(body.rest, count);
                let (forgets, _) = forgets.map_err(|_| Malformed)?;
                Operation::BatchForget(forgets)
            }
            opcode::INTERRUPT => Operation::Interrupt,
            opcode::LOOKUP => Operation::Lookup(body.string()?),
            opcode::GETATTR => Operation::Getattr,
            opcode::SETATTR => Operation::Setattr(body.take()?),
            opcode::READLINK => Operation::Readlink,
            opcode::SYMLINK => Operation::Symlink { name: body.string()?, target: body.string()? },
            opcode::MKNOD => Operation::Mknod(body.take()?, body.string()?),
            opcode::MKDIR => Operation::Mkdir(body.take()?, body.string()?),
            opcode::UNLINK => Operation::Unlink(body.string()?),
            opcode::RMDIR => Operation::Rmdir(body.string()?),
            opcode::RENAME => {
                let RenameIn { new_directory } = body.take()?;
                let (name, new_name) = (body.string()?, body.string()?);
                Operation::Rename { new_directory, flags: 0, name, new_name }
            }
            opcode::RENAME2 => {
                let Rename2In { new_directory, flags, .. } = body.take()?;
                let (name, new_name) = (body.string()?, body.string()?);
                Operation::Rename { new_directory, flags, name, new_name }
            }
            opcode::LINK => Operation::Link(body.take()?, body.string()?),
            opcode::OPEN => Operation::Open(body.take()?),
            opcode::CREATE => Operation::Create(body.take()?, body.string()?),
            opcode::TMPFILE => Operation::Tmpfile(body.take()?),
            opcode::READ => Operation::Read(body.take()?),
            opcode::WRITE => {
                let write: WriteIn = body.take()?;
                Operation::Write(write, body.bytes(write.size)?)
            }
            opcode::STATFS => Operation::Statfs,
            opcode::RELEASE => Operation::Release(body.take()?),
            opcode::FLUSH => Operation::Flush,
            opcode::FSYNC => Operation::Fsync(body.take()?),
            opcode::SETXATTR => {
                let set: SetxattrIn = body.take()?;
                let name = body.string()?;
                Operation::Setxattr { set, name, value: body.bytes(set.size)? }
            }
            opcode::GETXATTR => {
                let GetxattrIn { size, .. } = body.take()?;
                Operation::Getxattr { size, name: body.string()? }
            }
            opcode::LISTXATTR => Operation::Listxattr { size: body.take::<GetxattrIn>()?.size },
            opcode::REMOVEXATTR => Operation::Removexattr(body.string()?),
            opcode::OPENDIR => Operation::Opendir,
            opcode::READDIR => Operation::Readdir(body.take()?),
            opcode::READDIRPLUS => Operation::Readdirplus(body.take()?),
            opcode::RELEASEDIR => Operation::Releasedir(body.take()?),
            opcode::FSYNCDIR => Operation::Fsyncdir,
            opcode::SYNCFS => Operation::Syncfs,
            opcode::FALLOCATE => Operation::Fallocate(body.take()?),
            opcode::LSEEK => Operation::Lseek(body.take()?),
            opcode::COPY_FILE_RANGE => {
                Operation::CopyFileRange { copy: body.take()?, is_64: false }
            }
            opcode::COPY_FILE_RANGE_64 => {
                Operation::CopyFileRange { copy: body.take()?, is_64: true }
            }
            _ => Operation::Unknown,
        })
    }
}

/// The rest of a request.
struct Body<'a> {
    rest: &'a [u8],
}

impl<'a> Body<'a> {
    fn take<T: FromBytes + KnownLayout + Immutable>(&mut self) -> Result<T, Malformed> {
        let (value, rest) = T::read_from_prefix(self.rest).map_err(|_| Malformed)?;
        self.rest = rest;
        Ok(value)
    }

    /// INIT, of which old kernels send the front only.
    fn init(&mut self) -> Result<InitIn, Malformed> {
        const FRONT: usize = 16;
        let mut bytes = [0; size_of::<InitIn>()];
        let length = self.rest.len().min(bytes.len());
        if length < FRONT {
            return Err(Malformed);
        }
        bytes[..length].copy_from_slice(&self.rest[..length]);
        InitIn::read_from_bytes(&bytes).map_err(|_| Malformed)
    }

    /// Bytes up to a zero, which must be there.
    fn string(&mut self) -> Result<&'a [u8], Malformed> {
        let end = self.rest.iter().position(|byte| *byte == 0).ok_or(Malformed)?;
        let string = &self.rest[..end];
        self.rest = &self.rest[end + 1..];
        Ok(string)
    }

    fn bytes(&mut self, length: u32) -> Result<&'a [u8], Malformed> {
        let bytes = self.rest.get(..length as usize).ok_or(Malformed)?;
        self.rest = &self.rest[length as usize..];
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use zerocopy::IntoBytes;

    use super::*;

    fn request(opcode: u32, body: &[u8]) -> Vec<u8> {
        let length = (size_of::<InHeader>() + body.len()) as u32;
        let header = InHeader { length, opcode, ..InHeader::default() };
        [header.as_bytes(), body].concat()
    }

    fn is_malformed(opcode: u32, body: &[u8]) -> bool {
        Request::parse(&request(opcode, body)).is_err()
    }

    #[test]
    fn strings_end_inside_the_request() {
        let bytes = request(opcode::SYMLINK, b"name\0target\0");
        match Request::parse(&bytes).unwrap().operation {
            Operation::Symlink { name, target } => {
                assert_eq!((name, target), (&b"name"[..], &b"target"[..]));
            }
            _ => panic!("another operation"),
        }
        assert!(is_malformed(opcode::SYMLINK, b"name\0target"));
        assert!(is_malformed(opcode::LOOKUP, b""));
    }

    #[test]
    fn lengths_that_do_not_fit_are_malformed() {
        let whole = request(opcode::LOOKUP, b"name\0");
        for length in 0..whole.len() {
            assert!(Request::parse(&whole[..length]).is_err(), "{length}");
        }
        assert!(Request::parse(&[&whole[..], b"more"].concat()).is_err());
        let write = WriteIn { size: 5, ..WriteIn::default() };
        assert!(is_malformed(opcode::WRITE, &[write.as_bytes(), b"1234"].concat()));
        assert!(!is_malformed(opcode::WRITE, &[write.as_bytes(), b"12345"].concat()));
        let forget = BatchForgetIn { count: u32::MAX, padding: 0 };
        assert!(is_malformed(opcode::BATCH_FORGET, forget.as_bytes()));
        let mut extended = whole.clone();
        extended[36] = 1;
        assert!(Request::parse(&extended).is_err(), "the extension is longer than the body");
    }

    /// An extension, whose content is filled up to a multiple of 8.
    fn extension(kind: u32, content: &[u8]) -> Vec<u8> {
        let size = (size_of::<ExtensionHeader>() + content.len()).next_multiple_of(8);
        let mut bytes = [ExtensionHeader { size: size as u32, kind }.as_bytes(), content].concat();
        bytes.resize(size, 0);
        bytes
    }

    fn label(name: &[u8], value: &[u8]) -> Vec<u8> {
        let header = LabelHeader { size: value.len() as u32, padding: 0 };
        let mut bytes = [header.as_bytes(), name, b"\0", value].concat();
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        bytes
    }

    type OwnedLabels = Vec<(Vec<u8>, Vec<u8>)>;

    /// The labels of a request that makes a directory.
    fn labels_in(extensions: &[u8]) -> Result<OwnedLabels, Malformed> {
        let mut bytes = request(opcode::MKDIR, &[&[0; 8][..], b"name\0", extensions].concat());
        let units = (extensions.len() / 8) as u16;
        bytes[36..38].copy_from_slice(&units.to_ne_bytes());
        let parsed = Request::parse(&bytes)?;
        assert!(matches!(parsed.operation, Operation::Mkdir(_, b"name")));
        Ok(parsed.labels.iter().map(|(name, value)| (name.to_vec(), value.to_vec())).collect())
    }

    #[test]
    fn labels_are_found_among_extensions() {
        const GROUPS: u32 = 32;
        let found = |name: &[u8], value: &[u8]| (name.to_vec(), value.to_vec());
        let (one, two) = (label(b"security.one", b"first"), label(b"security.second", b""));
        let groups = extension(GROUPS, &[1, 0, 0, 0, 100, 0, 0, 0]);
        let both = extension(2, &[&one[..], &two].concat());
        let expected = [found(b"security.one", b"first"), found(b"security.second", b"")];
        assert_eq!(labels_in(&[&groups[..], &both].concat()), Ok(expected.to_vec()));
        // The kernel sends this if it has no label.
        assert_eq!(labels_in(&extension(0, b"")), Ok(Vec::new()));
        assert_eq!(labels_in(b""), Ok(Vec::new()));
    }

    #[test]
    fn extensions_that_do_not_fit_are_malformed() {
        let one = label(b"security.one", b"first");
        assert_eq!(labels_in(&extension(2, &one)), Err(Malformed), "one label is missing");
        assert_eq!(labels_in(&extension(1, b"")), Err(Malformed), "the label is missing");
        let unended = [LabelHeader::default().as_bytes(), &[b'n'; 8]].concat();
        assert_eq!(labels_in(&extension(1, &unended)), Err(Malformed), "the name has no end");
        let long = LabelHeader { size: u32::MAX, padding: 0 };
        let long = [long.as_bytes(), b"name\0value"].concat();
        assert_eq!(labels_in(&extension(1, &long)), Err(Malformed), "the value is longer");
        for size in [0, 4, 7, 9, 16, u32::MAX] {
            let header = ExtensionHeader { size, kind: 40 };
            assert_eq!(labels_in(header.as_bytes()), Err(Malformed), "a size of {size}");
        }
        for length in (8..extension(1, &one).len()).step_by(8) {
            assert_eq!(labels_in(&extension(1, &one)[..length]), Err(Malformed), "{length}");
        }
    }

    #[test]
    fn an_old_kernel_sends_the_front_of_init() {
        let init = InitIn { major: 7, minor: 31, flags: 5, flags2: 9, ..InitIn::default() };
        let bytes = request(opcode::INIT, &init.as_bytes()[..16]);
        match Request::parse(&bytes).unwrap().operation {
            Operation::Init(parsed) => {
                assert_eq!((parsed.minor, parsed.flags, parsed.flags2), (31, 5, 0));
            }
            _ => panic!("another operation"),
        }
        assert!(is_malformed(opcode::INIT, &init.as_bytes()[..12]));
    }
}

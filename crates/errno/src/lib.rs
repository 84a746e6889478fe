//! System error numbers: [`Errno`].
//!
//! ```
//! use std::io;
//! use uringfs_errno::Errno;
//!
//! let errno = Errno::NOENT;
//! assert_eq!(errno.to_string(), "No such file or directory (os error 2)");
//! assert_eq!(errno.kind(), io::ErrorKind::NotFound);
//! assert_eq!(io::Error::from(errno).raw_os_error(), Some(2));
//! ```

use std::num::NonZeroU16;
use std::{error, fmt, io};

/// An error number of the system. Two bytes, and as many in an `Option` or a `Result<(), Errno>`.
///
/// The constants have the names of `errno(3)` without the `E`. [`Display`](fmt::Display) is the text of
/// [`io::Error`], [`Debug`](fmt::Debug) the constant's name:
///
/// ```
/// # use uringfs_errno as uringfs;
/// use uringfs::Errno;
///
/// assert_eq!(format!("{:?}", Err::<(), _>(Errno::NOSPC)), "Err(NOSPC)");
/// assert_eq!(Errno::NOSPC.to_string(), "No space left on device (os error 28)");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Errno(NonZeroU16);

/// The largest error number of a system call: the kernel returns -4095 to -1.
const MAX: i32 = 4095;

impl Errno {
    /// The error with this positive number.
    ///
    /// # Panics
    /// When `raw` is not from 1 to 4095, as all of Linux's are.
    #[inline]
    pub const fn from_raw_os_error(raw: i32) -> Errno {
        assert!(raw > 0 && raw <= MAX, "an error number of Linux is from 1 to 4095");
        match NonZeroU16::new(raw as u16) {
            Some(number) => Errno(number),
            None => unreachable!(),
        }
    }

    /// The number of an error of the system; `None` of an error that has none.
    #[inline]
    pub fn from_io_error(error: &io::Error) -> Option<Errno> {
        let raw = error.raw_os_error()?;
        (1..=MAX).contains(&raw).then(|| Errno::from_raw_os_error(raw))
    }

    /// The number, as in `<errno.h>`.
    #[inline]
    pub const fn raw_os_error(self) -> i32 {
        self.0.get() as i32
    }

    /// The kind that the standard library gives this number.
    pub fn kind(self) -> io::ErrorKind {
        io::Error::from(self).kind()
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        io::Error::from(*self).fmt(f)
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match NAMES.iter().find(|(errno, _)| errno == self) {
            Some((_, name)) => f.write_str(name),
            None => f.debug_tuple("Errno").field(&self.0).finish(),
        }
    }
}

impl error::Error for Errno {}

impl From<Errno> for io::Error {
    #[inline]
    fn from(errno: Errno) -> io::Error {
        io::Error::from_raw_os_error(errno.raw_os_error())
    }
}

// For `?` at the calls to rustix in the crates above. Hidden: no part of what `uringfs` promises.
#[doc(hidden)]
impl From<rustix::io::Errno> for Errno {
    #[inline]
    fn from(errno: rustix::io::Errno) -> Errno {
        Errno::from_raw_os_error(errno.raw_os_error())
    }
}

macro_rules! constants {
    ($($name:ident, $meaning:literal;)*) => {
        impl Errno {
            $(
                #[doc = $meaning]
                pub const $name: Errno = Errno::from_raw_os_error(rustix::io::Errno::$name.raw_os_error());
            )*
        }

        const NAMES: &[(Errno, &str)] = &[$((Errno::$name, stringify!($name))),*];
    };
}

constants! {
    PERM, "`EPERM`: operation not permitted.";
    NOENT, "`ENOENT`: no such file or directory.";
    SRCH, "`ESRCH`: no such process.";
    INTR, "`EINTR`: interrupted system call.";
    IO, "`EIO`: input/output error.";
    NXIO, "`ENXIO`: no such device or address.";
    TOOBIG, "`E2BIG`: argument list too long.";
    NOEXEC, "`ENOEXEC`: not an executable.";
    BADF, "`EBADF`: bad file descriptor.";
    CHILD, "`ECHILD`: no child processes.";
    AGAIN, "`EAGAIN`: resource temporarily unavailable.";
    NOMEM, "`ENOMEM`: cannot allocate memory.";
    ACCESS, "`EACCES`: permission denied.";
    FAULT, "`EFAULT`: bad address.";
    BUSY, "`EBUSY`: device or resource busy.";
    EXIST, "`EEXIST`: file exists.";
    XDEV, "`EXDEV`: invalid cross-device link.";
    NODEV, "`ENODEV`: no such device.";
    NOTDIR, "`ENOTDIR`: not a directory.";
    ISDIR, "`EISDIR`: is a directory.";
    INVAL, "`EINVAL`: invalid argument.";
    NFILE, "`ENFILE`: too many open files in system.";
    MFILE, "`EMFILE`: too many open files.";
    NOTTY, "`ENOTTY`: not a terminal, or a request that the device does not know.";
    TXTBSY, "`ETXTBSY`: text file busy.";
    FBIG, "`EFBIG`: file too large.";
    NOSPC, "`ENOSPC`: no space left on device.";
    SPIPE, "`ESPIPE`: illegal seek.";
    ROFS, "`EROFS`: read-only file system.";
    MLINK, "`EMLINK`: too many links.";
    PIPE, "`EPIPE`: broken pipe.";
    RANGE, "`ERANGE`: numerical result out of range.";
    DEADLK, "`EDEADLK`: resource deadlock avoided.";
    NAMETOOLONG, "`ENAMETOOLONG`: file name too long.";
    NOLCK, "`ENOLCK`: no locks available.";
    NOSYS, "`ENOSYS`: function not implemented.";
    NOTEMPTY, "`ENOTEMPTY`: directory not empty.";
    LOOP, "`ELOOP`: too many levels of symbolic links.";
    NODATA, "`ENODATA`: no data available.";
    TIME, "`ETIME`: timer expired.";
    PROTO, "`EPROTO`: protocol error.";
    BADMSG, "`EBADMSG`: bad message.";
    OVERFLOW, "`EOVERFLOW`: value too large for defined data type.";
    ILSEQ, "`EILSEQ`: invalid or incomplete multibyte or wide character.";
    USERS, "`EUSERS`: too many users.";
    NOTSOCK, "`ENOTSOCK`: socket operation on non-socket.";
    DESTADDRREQ, "`EDESTADDRREQ`: destination address required.";
    MSGSIZE, "`EMSGSIZE`: message too long.";
    PROTOTYPE, "`EPROTOTYPE`: protocol wrong type for socket.";
    NOPROTOOPT, "`ENOPROTOOPT`: protocol not available.";
    PROTONOSUPPORT, "`EPROTONOSUPPORT`: protocol not supported.";
    SOCKTNOSUPPORT, "`ESOCKTNOSUPPORT`: socket type not supported.";
    OPNOTSUPP, "`EOPNOTSUPP`: operation not supported.";
    PFNOSUPPORT, "`EPFNOSUPPORT`: protocol family not supported.";
    AFNOSUPPORT, "`EAFNOSUPPORT`: address family not supported by protocol.";
    ADDRINUSE, "`EADDRINUSE`: address already in use.";
    ADDRNOTAVAIL, "`EADDRNOTAVAIL`: cannot assign requested address.";
    NETDOWN, "`ENETDOWN`: network is down.";
    NETUNREACH, "`ENETUNREACH`: network is unreachable.";
    NETRESET, "`ENETRESET`: network dropped connection on reset.";
    CONNABORTED, "`ECONNABORTED`: software caused connection abort.";
    CONNRESET, "`ECONNRESET`: connection reset by peer.";
    NOBUFS, "`ENOBUFS`: no buffer space available.";
    ISCONN, "`EISCONN`: transport endpoint is already connected.";
    NOTCONN, "`ENOTCONN`: transport endpoint is not connected.";
    SHUTDOWN, "`ESHUTDOWN`: cannot send after transport endpoint shutdown.";
    TOOMANYREFS, "`ETOOMANYREFS`: too many references: cannot splice.";
    TIMEDOUT, "`ETIMEDOUT`: connection timed out.";
    CONNREFUSED, "`ECONNREFUSED`: connection refused.";
    HOSTDOWN, "`EHOSTDOWN`: host is down.";
    HOSTUNREACH, "`EHOSTUNREACH`: no route to host.";
    ALREADY, "`EALREADY`: operation already in progress.";
    INPROGRESS, "`EINPROGRESS`: operation now in progress.";
    STALE, "`ESTALE`: stale file handle.";
    UCLEAN, "`EUCLEAN`: structure needs cleaning.";
    REMOTEIO, "`EREMOTEIO`: remote I/O error.";
    DQUOT, "`EDQUOT`: disk quota exceeded.";
    NOMEDIUM, "`ENOMEDIUM`: no medium found.";
    MEDIUMTYPE, "`EMEDIUMTYPE`: wrong medium type.";
    CANCELED, "`ECANCELED`: operation canceled.";
    NOKEY, "`ENOKEY`: required key not available.";
    KEYEXPIRED, "`EKEYEXPIRED`: key has expired.";
    KEYREVOKED, "`EKEYREVOKED`: key has been revoked.";
    KEYREJECTED, "`EKEYREJECTED`: key was rejected by service.";
    OWNERDEAD, "`EOWNERDEAD`: owner died.";
    NOTRECOVERABLE, "`ENOTRECOVERABLE`: state not recoverable.";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_without_a_name_is_shown_as_a_number() {
        let unnamed = Errno::from_raw_os_error(4000);
        assert_eq!(format!("{unnamed:?}"), "Errno(4000)");
        assert_eq!(unnamed.to_string(), "Unknown error 4000 (os error 4000)");
    }

    #[test]
    fn an_error_without_a_number_of_the_system_has_no_errno() {
        let without = [io::Error::other("text"), io::Error::from(io::ErrorKind::NotFound)];
        let outside = [0, -2, 4096, 65538].map(io::Error::from_raw_os_error);
        for error in without.iter().chain(&outside) {
            assert_eq!(Errno::from_io_error(error), None, "{error}");
        }
        for errno in [Errno::PERM, Errno::CANCELED, Errno::from_raw_os_error(MAX)] {
            assert_eq!(Errno::from_io_error(&errno.into()), Some(errno));
        }
    }

    #[test]
    fn an_option_of_it_is_two_bytes() {
        assert_eq!(size_of::<Option<Errno>>(), 2);
        assert_eq!(size_of::<Result<(), Errno>>(), 2);
    }
}

//! Why a controller has failed a command.

use std::fmt;

use uringfs_errno::Errno;

use crate::transfer::Tries;

/// The status of a failed command: the status field of its completion, as the kernel passes it on.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct NvmeStatus(u16);

/// The status code and its type.
const CODE: u16 = 0x7ff;
/// Do Not Retry: the same command would fail again.
const DO_NOT_RETRY: u16 = 1 << 14;
/// The tries of a command that each try may keep for as long as the driver's timeout: the first one, and as many more as
/// the block layer has (`nvme_core.max_retries`).
const TRIES_TO_TIME_OUT: Tries = Tries(6);

impl NvmeStatus {
    /// The host has ended the command: it was in flight when the controller was reset. The result of a passthrough
    /// command is EINTR then.
    pub const ABORTED_BY_HOST: NvmeStatus = NvmeStatus(0x371);

    /// From the result of a passthrough command, which is positive.
    pub fn from_result(result: u32) -> NvmeStatus {
        NvmeStatus(result as u16)
    }

    /// True if the range lies behind the end of the namespace.
    pub fn is_behind_the_end(self) -> bool {
        self.0 & CODE == 0x80
    }

    /// True if the same command may succeed if it is sent again, and the controller does not forbid that: it was
    /// aborted or interrupted, the namespace was not ready, or the path to the controller has failed.
    ///
    /// The block layer retries every status without Do Not Retry a few times, but no passthrough command
    /// (`nvme_decide_disposition` in drivers/nvme/host/core.c). A medium that fails is slow to do so, and is not asked
    /// again here.
    pub fn is_transient(self) -> bool {
        let code = self.0 & CODE;
        self.0 & DO_NOT_RETRY == 0
            && matches!(code, 0x07 | 0x08 | 0x21 | 0x22 | 0x82 | 0x300..=0x3ff)
    }

    /// The error of a step: EAGAIN if the status [is transient](Self::is_transient) and there are tries left, else
    /// [`Self::errno`].
    pub fn step_errno(self, tries: Tries) -> Errno {
        let most = if self.may_be_a_timeout() { TRIES_TO_TIME_OUT } else { Tries::ALL };
        if self.is_transient() && tries < most { Errno::AGAIN } else { self.errno() }
    }

    /// True if the driver may have ended the command since it took too long.
    fn may_be_a_timeout(self) -> bool {
        matches!(self.0 & CODE, 0x07 | 0x371)
    }

    /// The error that a read or write of the block device gets for this status in the end (`nvme_error_status` in
    /// drivers/nvme/host/core.c, `blk_errors` in block/blk-core.c).
    pub fn errno(self) -> Errno {
        let errno = match self.0 & CODE {
            0x21 | 0x80 | 0x82 => libc::EREMOTEIO,
            0x81 => libc::ENOSPC,
            0x01 | 0x02 | 0x0b | 0x180 | 0x183 => libc::EOPNOTSUPP,
            0x182 | 0x280 | 0x281 | 0x285..=0x287 => libc::ENODATA,
            0x181 | 0x282..=0x284 => libc::EILSEQ,
            0x83 => libc::EBADE,
            0x370 => libc::ENOLINK,
            _ => libc::EIO,
        };
        Errno::from_raw_os_error(errno)
    }

    /// Its meaning in the words of the NVMe specifications. `None` if it is a rarer one.
    pub fn text(self) -> Option<&'static str> {
        Some(match self.0 & CODE {
            0x01 => "invalid command opcode",
            0x02 => "invalid field in command",
            0x04 => "data transfer error",
            0x05 => "commands aborted due to power loss notification",
            0x06 => "internal error",
            0x07 => "command abort requested",
            0x08 => "command aborted due to submission queue deletion",
            0x0b => "invalid namespace or format",
            0x1c => "sanitize failed",
            0x1d => "sanitize in progress",
            0x20 => "namespace is write protected",
            0x21 => "command interrupted",
            0x22 => "transient transport error",
            0x80 => "LBA out of range",
            0x81 => "capacity exceeded",
            0x82 => "namespace not ready",
            0x83 => "reservation conflict",
            0x84 => "format in progress",
            0x180 => "conflicting attributes",
            0x181 => "invalid protection information",
            0x182 => "attempted write to read only range",
            0x183 => "command size limit exceeded",
            0x280 => "write fault",
            0x281 => "unrecovered read error",
            0x282 => "end-to-end guard check error",
            0x283 => "end-to-end application tag check error",
            0x284 => "end-to-end reference tag check error",
            0x285 => "compare failure",
            0x286 => "access denied",
            0x287 => "deallocated or unwritten logical block",
            0x301 => "asymmetric access persistent loss",
            0x302 => "asymmetric access inaccessible",
            0x303 => "asymmetric access transition",
            0x360 => "controller pathing error",
            0x370 => "host pathing error",
            0x371 => "command aborted by host",
            _ => return None,
        })
    }
}

impl fmt::Display for NvmeStatus {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.text().unwrap_or("a status that has no name here");
        write!(out, "NVMe status {:#x}: {text}", self.0 & CODE)
    }
}

impl fmt::Debug for NvmeStatus {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn errno(status: u32) -> i32 {
        NvmeStatus::from_result(status).errno().raw_os_error()
    }

    #[test]
    fn each_status_has_the_errno_of_the_block_device() {
        for (status, expected) in [
            (0x01, libc::EOPNOTSUPP),
            (0x02, libc::EOPNOTSUPP),
            (0x06, libc::EIO),
            (0x07, libc::EIO),
            (0x0b, libc::EOPNOTSUPP),
            (0x20, libc::EIO),
            (0x21, libc::EREMOTEIO),
            (0x22, libc::EIO),
            (0x80, libc::EREMOTEIO),
            (0x81, libc::ENOSPC),
            (0x82, libc::EREMOTEIO),
            (0x83, libc::EBADE),
            (0x180, libc::EOPNOTSUPP),
            (0x181, libc::EILSEQ),
            (0x182, libc::ENODATA),
            (0x280, libc::ENODATA),
            (0x281, libc::ENODATA),
            (0x282, libc::EILSEQ),
            (0x284, libc::EILSEQ),
            (0x286, libc::ENODATA),
            (0x287, libc::ENODATA),
            (0x302, libc::EIO),
            (0x370, libc::ENOLINK),
            (0x7ff, libc::EIO),
        ] {
            assert_eq!(errno(status), expected, "{status:#x}");
            // Do Not Retry, More and the retry delay change nothing of that.
            assert_eq!(errno(status | 0x7800), expected, "{status:#x}");
        }
    }

    #[test]
    fn a_transient_status_is_eagain_until_the_last_try_unless_the_controller_forbids_another() {
        let step =
            |status, tries| NvmeStatus::from_result(status).step_errno(Tries(tries)).raw_os_error();
        // Aborted, interrupted, not ready; errors of the path.
        for (status, expected) in [
            (0x07, libc::EIO),
            (0x08, libc::EIO),
            (0x21, libc::EREMOTEIO),
            (0x22, libc::EIO),
            (0x82, libc::EREMOTEIO),
            (0x302, libc::EIO),
            (0x360, libc::EIO),
            (0x370, libc::ENOLINK),
        ] {
            assert_eq!(step(status, 1), libc::EAGAIN, "{status:#x}");
            assert_eq!(step(status, 100), expected, "{status:#x}");
            assert_eq!(step(status | 0x4000, 1), expected, "{status:#x}");
        }
        // A failing medium, and commands that would be refused again.
        for status in [0x02, 0x06, 0x80, 0x81, 0x280, 0x281] {
            assert_eq!(step(status, 1), errno(status), "{status:#x}");
        }
    }

    #[test]
    fn a_command_that_may_have_timed_out_is_sent_again_as_often_as_by_the_block_layer() {
        let tries = |status: NvmeStatus| {
            let is_retried = |tries: &u8| status.step_errno(Tries(*tries)) == Errno::AGAIN;
            (1..=200).take_while(is_retried).count() + 1
        };
        assert_eq!(tries(NvmeStatus::from_result(0x07)), 6);
        assert_eq!(tries(NvmeStatus::ABORTED_BY_HOST), 6);
        assert_eq!(tries(NvmeStatus::from_result(0x82)), 100);
        assert_eq!(NvmeStatus::ABORTED_BY_HOST.errno(), Errno::IO);
    }

    #[test]
    fn a_status_is_shown_with_its_name() {
        let shown = NvmeStatus::from_result(0x4281).to_string();
        assert_eq!(shown, "NVMe status 0x281: unrecovered read error");
        assert!(NvmeStatus::from_result(0x1ff).to_string().contains("0x1ff"));
        assert!(NvmeStatus::from_result(0x4080).is_behind_the_end());
    }
}

//! The commands that the kernel lets this user send. It decides for each, by `CAP_SYS_ADMIN`, or by the mode of the
//! descriptor and the controller's log of command effects (`nvme_cmd_allowed` in drivers/nvme/host/ioctl.c), before it
//! looks for the command's memory. So a command with memory that does not exist tells, and never reaches the
//! controller.

use std::os::fd::BorrowedFd;

use uringfs_errno::Errno;
use uringfs_ring::nvme::{Namespace, Opcode};

use super::ioctl;

/// The commands that this user may send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Permission {
    allowed: Vec<Opcode>,
}

impl Permission {
    /// Probes each command.
    ///
    /// # Errors
    /// Those of the system, other than the one for a missing permission.
    pub(super) fn probe(
        device: BorrowedFd<'_>,
        namespace: &Namespace,
    ) -> Result<Permission, Errno> {
        let mut allowed = Vec::new();
        for opcode in Opcode::ALL {
            match ioctl::ask_permission(device, namespace, opcode) {
                Err(Errno::ACCESS | Errno::PERM) => {}
                Err(Errno::FAULT) => allowed.push(opcode),
                Err(errno) => return Err(errno),
                // No kernel sends such a command.
                Ok(()) => return Err(Errno::IO),
            }
        }
        Ok(Permission { allowed })
    }

    pub(super) fn has(&self, opcode: Opcode) -> bool {
        self.allowed.contains(&opcode)
    }

    /// The names of those that may be sent, and of those that may not, each as a list.
    pub(super) fn names(&self) -> (String, String) {
        let list = |allowed| {
            let found = Opcode::ALL.into_iter().filter(|opcode| self.has(*opcode) == allowed);
            found.map(Opcode::name).collect::<Vec<_>>().join(", ")
        };
        (list(true), list(false))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_lists_have_names() {
        let some = Permission { allowed: vec![Opcode::Flush, Opcode::Read] };
        let (allowed, refused) = some.names();
        assert_eq!(allowed, "read, flush");
        assert_eq!(refused, "write, write zeroes, dataset management");
        let all = Permission { allowed: Opcode::ALL.to_vec() };
        assert_eq!(all.names().1, "");
    }
}

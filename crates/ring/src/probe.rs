//! Probes the features of io_uring on this machine: each separately, by using it,
//! never by the kernel's version.

use std::cell::RefCell;
use std::io;
use std::sync::OnceLock;

use io_uring::{IoUring, Probe, opcode};
use rustix::process::{Resource, getrlimit};

/// One feature: used, or dropped with the kernel's reason.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Feature {
    /// The kernel's name for it.
    pub name: &'static str,
    /// Its purpose.
    pub purpose: &'static str,
    /// `Ok` if it is used, or the reason why it is not.
    pub state: Result<(), String>,
}

impl Feature {
    /// True when it is used.
    pub fn is_enabled(&self) -> bool {
        self.state.is_ok()
    }
}

/// Every feature that the ring can use, probed once a process.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Features {
    /// Only one thread submits.
    pub single_issuer: Feature,
    /// The kernel finishes completions when the thread enters it, instead of interrupting the thread.
    pub defer_taskrun: Feature,
    /// No array of indexes between the submission queue and its entries.
    pub no_sqarray: Feature,
    /// A completion queue larger than twice the submission queue.
    pub cqsize: Feature,
    /// A bad entry does not stop the submission of the entries after it.
    pub submit_all: Feature,
    /// The kernel finds the ring without a look-up of its descriptor.
    pub registered_ring: Feature,
    /// A table of registered files that starts empty.
    pub sparse_files: Feature,
    /// A table of registered buffers that starts empty.
    pub sparse_buffers: Feature,
    /// A message from one ring wakes the thread of another.
    pub message: Feature,
    /// Cancelling by `user_data`.
    pub cancel: Feature,
    /// A timeout in the waiting call itself.
    pub timeout: Feature,
    /// Polling for completions, if the device supports it.
    pub polled: Feature,
}

impl Features {
    /// The features of this machine, probed at the first call. A probe that failed for lack of
    /// descriptors or memory is repeated at the next call.
    ///
    /// # Errors
    /// In one line why there is no io_uring at all.
    pub fn probe() -> Result<&'static Features, String> {
        static PROBED: OnceLock<Result<Features, String>> = OnceLock::new();
        if PROBED.get().is_none() {
            let probed = match probe() {
                Err(ProbeError::Temporary(why)) => return Err(why),
                Err(ProbeError::Permanent(why)) => Err(why),
                Ok(features) => Ok(features),
            };
            // Another thread may have set it first, to the same value.
            let _ = PROBED.set(probed);
        }
        PROBED.get().expect("it was just set").as_ref().map_err(Clone::clone)
    }

    /// All features.
    pub fn list(&self) -> [&Feature; 12] {
        [
            &self.single_issuer,
            &self.defer_taskrun,
            &self.no_sqarray,
            &self.cqsize,
            &self.submit_all,
            &self.registered_ring,
            &self.sparse_files,
            &self.sparse_buffers,
            &self.message,
            &self.cancel,
            &self.timeout,
            &self.polled,
        ]
    }

    /// True if no feature was dropped.
    pub fn is_full(&self) -> bool {
        self.list().iter().all(|feature| feature.is_enabled())
    }
}

/// Why there is no io_uring.
enum ProbeError {
    /// A resource ran out; the next probe may succeed.
    Temporary(String),
    Permanent(String),
}

/// True if the call may succeed later, when resources are free again.
fn is_temporary(error: &io::Error) -> bool {
    let code = error.raw_os_error();
    matches!(code, Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::EAGAIN | libc::EINTR))
}

/// In one line why the kernel refuses a ring, and what to do.
pub(crate) fn explain_setup_error(error: &io::Error) -> String {
    let disabled = std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled");
    match (error.raw_os_error(), disabled.as_deref().map(str::trim)) {
        (Some(libc::EPERM), Ok(level @ ("1" | "2"))) => {
            format!("io_uring is switched off: kernel.io_uring_disabled={level}")
        }
        (Some(libc::EPERM), _) => {
            "io_uring is forbidden here (EPERM): a seccomp filter or security module refuses it"
                .into()
        }
        (Some(libc::ENOSYS), _) => {
            "io_uring is missing here (ENOSYS): not in this kernel, or hidden by a seccomp filter"
                .into()
        }
        (Some(libc::ENOMEM), _) => {
            let limit = getrlimit(Resource::Memlock).current;
            let limit = limit.map_or("unlimited".into(), |limit| format!("{limit} bytes"));
            format!(
                "io_uring needs more locked memory than the limit allows: RLIMIT_MEMLOCK is {limit}; \
                 raise it (ulimit -l)"
            )
        }
        (Some(libc::EMFILE), _) => {
            "no descriptor is left for a ring: raise RLIMIT_NOFILE (ulimit -n)".into()
        }
        _ => format!("io_uring cannot be set up: {error}"),
    }
}

fn probe() -> Result<Features, ProbeError> {
    let plain = IoUring::new(4).map_err(|error| {
        let why = explain_setup_error(&error);
        if is_temporary(&error) { ProbeError::Temporary(why) } else { ProbeError::Permanent(why) }
    })?;
    let parameters = plain.params();
    let missing = |what: &str| Err(ProbeError::Permanent(format!("this kernel's io_uring {what}")));
    if !parameters.is_feature_nodrop() {
        return missing("drops completions (no IORING_FEAT_NODROP)");
    }
    if !parameters.is_feature_submit_stable() {
        return missing("keeps pointing at submitted entries (no IORING_FEAT_SUBMIT_STABLE)");
    }
    if !parameters.is_feature_ext_arg() {
        return missing("cannot wait with a timeout (no IORING_FEAT_EXT_ARG)");
    }
    // A resource that ran out during a probe: the feature stays unknown.
    let short = RefCell::new(None);
    let refused = |error: io::Error| {
        if is_temporary(&error) {
            *short.borrow_mut() = Some(explain_setup_error(&error));
        }
        format!("the kernel refuses it: {error}")
    };
    let mut operations = Probe::new();
    let known = plain.submitter().register_probe(&mut operations);
    let operation = |code| match &known {
        Err(error) => Err(format!("the kernel cannot list its operations: {error}")),
        Ok(()) if operations.is_supported(code) => Ok(()),
        Ok(()) => Err("this kernel's io_uring does not support the operation".into()),
    };
    let feature = |name, purpose, state| Feature { name, purpose, state };
    let setup = |configure: fn(&mut io_uring::Builder) -> &mut io_uring::Builder| {
        configure(&mut IoUring::builder()).build(4).map(drop).map_err(refused)
    };
    let features = Features {
        single_issuer: feature(
            "SINGLE_ISSUER",
            "only one thread submits",
            setup(|builder| builder.setup_single_issuer()),
        ),
        defer_taskrun: feature(
            "DEFER_TASKRUN",
            "completions are finished while reaping",
            setup(|builder| builder.setup_single_issuer().setup_defer_taskrun()),
        ),
        no_sqarray: feature(
            "NO_SQARRAY",
            "no indirection between queue and entries",
            setup(|builder| builder.setup_no_sqarray()),
        ),
        cqsize: feature(
            "CQSIZE",
            "a large completion queue",
            setup(|builder| builder.setup_cqsize(64)),
        ),
        submit_all: feature(
            "SUBMIT_ALL",
            "a bad entry does not hold back the rest",
            setup(|builder| builder.setup_submit_all()),
        ),
        registered_ring: feature(
            "REGISTER_RING_FDS",
            "entering without a descriptor look-up",
            register_ring(&plain).map_err(refused),
        ),
        sparse_files: feature(
            "REGISTER_FILES2",
            "registered files",
            plain.submitter().register_files_sparse(4).map_err(refused),
        ),
        sparse_buffers: feature(
            "REGISTER_BUFFERS2",
            "registered buffers",
            plain.submitter().register_buffers_sparse(4).map_err(refused),
        ),
        message: feature(
            "MSG_RING",
            "one ring wakes another",
            operation(opcode::MsgRingData::CODE),
        ),
        cancel: feature("ASYNC_CANCEL", "cancelling", operation(opcode::AsyncCancel::CODE)),
        timeout: feature("EXT_ARG", "waiting with a timeout in one call", Ok(())),
        polled: feature(
            "IOPOLL",
            "polling for completions, where the device can",
            setup(|builder| builder.setup_iopoll()),
        ),
    };
    match short.into_inner() {
        None => Ok(features),
        Some(why) => Err(ProbeError::Temporary(why)),
    }
}

fn register_ring(ring: &IoUring) -> io::Result<()> {
    use std::os::fd::AsRawFd;
    let descriptor = ring.as_raw_fd();
    let index = crate::sys::register_ring(descriptor)?;
    crate::sys::unregister_ring(descriptor, index);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_feature_is_kept_or_has_a_reason() {
        let features = Features::probe().expect("the test machine has io_uring");
        for feature in features.list() {
            assert!(feature.is_enabled() || !feature.state.as_ref().unwrap_err().is_empty());
        }
    }

    #[test]
    fn setup_errors_include_advice() {
        let seccomp = explain_setup_error(&io::Error::from_raw_os_error(libc::ENOSYS));
        assert!(seccomp.contains("seccomp"), "{seccomp}");
        let limit = explain_setup_error(&io::Error::from_raw_os_error(libc::EMFILE));
        assert!(limit.contains("RLIMIT_NOFILE"), "{limit}");
    }
}

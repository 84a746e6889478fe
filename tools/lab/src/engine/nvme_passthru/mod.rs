//! The control of NVMe passthrough: a bare loop of commands to the character device of a namespace (`/dev/ng0n1`), which go around the
//! kernel's block layer, with as little code as possible above the kernel. Its counterpart for block devices and files
//! is `ring`.

mod passthru_ring;

use uringfs::Errno;
use uringfs::device::backend::nvme::is_namespace;

use self::passthru_ring::{PassthruOptions, PassthruRing};
use super::{
    Capabilities, Engine, EngineReport, Io, IoCompletion, NO_BATCH, ReapBounds, Setup, SyncKind,
    ThreadCost,
};
use crate::Error;
use crate::job::SyncWrites;
use crate::targets::{Namespace, NvmeCommand, Target, TargetInfo, Transfer, Volumes, inspect};
use crate::workload::IoOp;

/// The engine.
pub struct NvmePassthru {
    ring: PassthruRing,
    namespaces: Vec<Namespace>,
    /// The address of each namespace in its commands.
    addresses: Vec<Address>,
    write: Transfer,
    tier: String,
    /// Trims that have ended and are not reaped: each is a call, as with the engine `ring`.
    trimmed: Vec<IoCompletion>,
    /// Commands of the ring that are not submitted.
    queued: u32,
    /// Commands of the ring that have not completed, those included.
    in_ring: usize,
    /// System calls of trims and syncs.
    calls: u64,
}

/// How the commands of a namespace name it and its blocks.
#[derive(Debug, Clone, Copy)]
struct Address {
    namespace: u32,
    block_shift: u32,
}

/// The most blocks of a command.
const MAX_BLOCKS: u64 = 1 << 16;

const BARE: &str = "a bare loop submits its commands itself";

impl Engine for NvmePassthru {
    const CAPABILITIES: Capabilities = Capabilities {
        synchronous: false,
        // There is no page cache on this path.
        buffered: false,
        any_alignment: false,
        extends_files: false,
        volumes: false,
        virtual_targets: false,
        inspect: inspect_namespace,
        ignored_keys: &[("sqthread_poll", BARE), ("force_async", BARE), ("batch", NO_BATCH)],
    };

    fn open(setup: &Setup<'_>) -> Result<Self, Error> {
        setup.no_settings("nvme-passthru")?;
        let open = |target: &Target| match target {
            Target::Path(path) => Namespace::open(path, setup.access.writes),
            other => Err(Error::input(format!("{other}: {NO_NAMESPACE}"))),
        };
        let namespaces = setup.targets.iter().map(open).collect::<Result<Vec<_>, _>>()?;
        for (target, namespace) in setup.targets.iter().zip(&namespaces) {
            require_transfer(target, namespace, setup.block as u64)?;
        }
        let options = PassthruOptions {
            depth: setup.depth,
            block_size: setup.block as u32,
            fixed_files: setup.options.register_files,
            fixed_buffers: setup.options.fixed_buffers,
            polled: setup.options.polled,
        };
        let descriptors: Vec<_> = namespaces.iter().map(Namespace::descriptor).collect();
        let ring = PassthruRing::new(&options, &descriptors)
            .map_err(|error| Error::input("engine nvme-passthru").because(error))?;
        let parts = [
            (true, "bare NVMe passthrough"),
            (options.fixed_files, "files registered"),
            (options.fixed_buffers, "buffers registered"),
            (options.polled, "polled"),
        ];
        let parts: Vec<&str> = parts.iter().filter(|part| part.0).map(|part| part.1).collect();
        let address = |namespace: &Namespace| Address {
            namespace: namespace.id,
            block_shift: namespace.format.block_bytes.trailing_zeros(),
        };
        Ok(Self {
            ring,
            addresses: namespaces.iter().map(address).collect(),
            namespaces,
            write: match setup.access.sync {
                SyncWrites::No => Transfer::Write,
                SyncWrites::Sync | SyncWrites::Dsync => Transfer::WriteDurably,
            },
            tier: parts.join(", "),
            trimmed: Vec::new(),
            queued: 0,
            in_ring: 0,
            calls: 0,
        })
    }

    fn buffer(&mut self, slot: u32) -> &mut [u8] {
        self.ring.buffer(slot)
    }

    #[inline]
    fn push(&mut self, io: Io) -> Result<(), Errno> {
        let transfer = match io.op {
            IoOp::Read => Transfer::Read,
            IoOp::Write => self.write,
            IoOp::Trim => {
                self.trim(io);
                return Ok(());
            }
        };
        let Address { namespace, block_shift } = self.addresses[io.file as usize];
        let (first, count) = (io.offset >> block_shift, io.length >> block_shift);
        self.ring.push(io.slot, io.file, io.length, |data| {
            NvmeCommand::transfer(transfer, namespace, first, count, data)
        });
        self.queued += 1;
        self.in_ring += 1;
        Ok(())
    }

    fn submit(&mut self) -> Result<(), Errno> {
        if self.queued == 0 {
            // Only trims were pushed.
            return Ok(());
        }
        self.ring.enter(0)?;
        self.queued = 0;
        Ok(())
    }

    #[inline]
    fn reap(&mut self, bounds: ReapBounds, done: &mut Vec<IoCompletion>) -> Result<(), Errno> {
        let trimmed = self.trimmed.len().min(bounds.max);
        if trimmed > 0 {
            done.extend(self.trimmed.drain(..trimmed));
        }
        if self.in_ring == 0 {
            return Ok(());
        }
        self.ring.enter(bounds.min.saturating_sub(trimmed) as u32)?;
        self.queued = 0;
        let before = done.len();
        let max = bounds.max - trimmed;
        self.ring.reap(max, |slot, result| done.push(IoCompletion { slot, result }));
        self.in_ring -= done.len() - before;
        Ok(())
    }

    fn sync(&mut self, file: u32, _kind: SyncKind) -> Result<(), Errno> {
        self.calls += 1;
        self.namespaces[file as usize].flush()
    }

    /// There is no cache to drop.
    fn sync_and_drop_cache(&mut self, file: u32) -> Result<(), Errno> {
        self.namespaces[file as usize].flush()
    }

    fn report(&self) -> EngineReport {
        let note = |status| format!("a command has failed with the NVMe status {status:#x}");
        EngineReport {
            queue: "nvme".into(),
            tier: self.tier.clone(),
            system_calls: self.ring.enters() + self.calls,
            helper_threads: ThreadCost::read_ring_workers(),
            notes: self.ring.status().map(note).into_iter().collect(),
            ..EngineReport::default()
        }
    }
}

impl NvmePassthru {
    #[cold]
    fn trim(&mut self, io: Io) {
        self.calls += 1;
        let trimmed = self.namespaces[io.file as usize].deallocate(io.offset, io.length.into());
        self.trimmed.push(IoCompletion { slot: io.slot, result: trimmed.map(|()| io.length) });
    }
}

const NO_NAMESPACE: &str = "engine nvme-passthru needs the character device of an NVMe namespace, as /dev/ng0n1 (for /dev/nvme0n1)";

/// Inspects a target, which must be a namespace.
fn inspect_namespace(
    target: &Target,
    writes: bool,
    volumes: &mut Volumes,
) -> Result<TargetInfo, Error> {
    match target {
        Target::Path(path) if is_namespace(path) => inspect(target, writes, volumes),
        _ => Err(Error::input(format!("{target}: {NO_NAMESPACE}"))),
    }
}

/// An error if a command cannot move a buffer of `bytes`: no other layer splits it here.
fn require_transfer(target: &Target, namespace: &Namespace, bytes: u64) -> Result<(), Error> {
    let most = MAX_BLOCKS * u64::from(namespace.format.block_bytes);
    let most = namespace.largest_transfer.map_or(most, |limit| limit.min(most));
    if bytes > most {
        return Err(Error::input(format!(
            "{target}: a command of this controller moves at most {most} bytes; give bs={most} or less"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_namespace_is_refused() {
        for name in ["/dev/null", "/no/such/device", "null:1g"] {
            let target = Target::parse(name);
            let error = inspect_namespace(&target, false, &mut Volumes::default()).unwrap_err();
            assert!(error.to_string().contains("as /dev/ng0n1"), "{error}");
        }
    }
}

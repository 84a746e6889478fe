//! Every engine against the promises of the trait `Engine`.

use uringfs_lab::engine::{Done, Engine, EngineKind, Io, Setup, Wanted, WithEngine};
use uringfs_lab::job::{Options, SyncWrites};
use uringfs_lab::target::{Access, Target, Volumes};
use uringfs_lab::workload::IoOp;

const BLOCK: usize = 4096;
const DEPTH: u32 = 8;

/// The engines that move bytes themselves.
fn engines() -> impl Iterator<Item = EngineKind> {
    EngineKind::ALL.iter().copied().filter(|kind| *kind != EngineKind::Fio)
}

/// Writes a block from each slot, filling the next slot's buffer while the ones before it are in
/// flight; then reads them back into other slots.
struct FillWhileOthersFly<'a> {
    target: &'a Target,
    kind: EngineKind,
}

impl WithEngine for FillWhileOthersFly<'_> {
    type Output = ();

    fn call<E: Engine>(self) {
        let targets = [self.target.clone()];
        let settings: &[(String, String)] = match self.kind {
            EngineKind::Uringfs => &[("device.queue".into(), "threads".into())],
            _ => &[],
        };
        let setup = Setup {
            targets: &targets,
            volumes: &Volumes::default(),
            access: Access { writes: true, direct: false, sync: SyncWrites::No },
            depth: DEPTH,
            block: BLOCK,
            options: &Options::default(),
            settings,
        };
        let mut engine = E::open(&setup).unwrap();
        let io = |slot: u32, block: u32, op| {
            let offset = u64::from(block) * BLOCK as u64;
            Io { slot, file: 0, op, offset, length: BLOCK as u32 }
        };
        for slot in 0..DEPTH {
            engine.buffer(slot).fill(slot as u8 + 1);
            engine.push(io(slot, slot, IoOp::Write)).unwrap();
            engine.submit().unwrap();
        }
        reap_all(&mut engine);
        for slot in 0..DEPTH {
            engine.push(io(slot, DEPTH - 1 - slot, IoOp::Read)).unwrap();
        }
        reap_all(&mut engine);
        for slot in 0..DEPTH {
            let expected = (DEPTH - slot) as u8;
            let name = self.kind.name();
            assert!(engine.buffer(slot).iter().all(|&byte| byte == expected), "{name}: {slot}");
        }
    }
}

fn reap_all(engine: &mut impl Engine) {
    let mut done: Vec<Done> = Vec::new();
    while done.len() < DEPTH as usize {
        let min = DEPTH as usize - done.len();
        engine.reap(Wanted { min, max: min }, &mut done).unwrap();
    }
    assert!(done.iter().all(|one| one.result == Ok(BLOCK as u32)), "{done:?}");
}

#[test]
fn a_slot_s_buffer_is_its_own_while_others_are_in_flight() {
    let folder = tempfile::tempdir().unwrap();
    for kind in engines() {
        let path = folder.path().join(kind.name());
        std::fs::write(&path, vec![0; BLOCK * DEPTH as usize]).unwrap();
        let target = Target::Path(path);
        kind.with(FillWhileOthersFly { target: &target, kind }).unwrap();
    }
}

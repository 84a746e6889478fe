//! Registration of files and buffers with a ring, which saves work in each I/O. This stack registers unless a switch says
//! otherwise, a bare ring and fio's only by keys of the job. So two sides may differ in it without a key that says so.

use super::side::Side;
use crate::engine::EngineKind;
use crate::job::{Job, JobSet};
use crate::targets::Target;
use uringfs::Options;
use uringfs::reactor::QueueKind;

/// What a job registers.
#[derive(Debug, Clone, Copy, Default)]
struct Registered {
    files: bool,
    buffers: bool,
}

/// The sides whose rings do not register what this stack does on another side, each with a note.
pub(crate) fn unregistered(sides: &[(&Side, &JobSet)]) -> Vec<(usize, String)> {
    let jobs = |engines: &'static [EngineKind]| {
        let of_engine = move |(_, (side, _)): &(usize, &(&Side, &JobSet))| {
            side.engine().is_some_and(|engine| engines.contains(&engine))
        };
        let sides = sides.iter().enumerate().filter(of_engine);
        sides.flat_map(|(index, (side, set))| set.jobs.iter().map(move |job| (index, *side, job)))
    };
    let mut stack = Registered::default();
    for (_, side, job) in jobs(&[EngineKind::Uringfs]) {
        let registered = by_switches(side, job);
        stack.files |= registered.files;
        stack.buffers |= registered.buffers;
    }
    let mut notes = Vec::new();
    let rings = &[EngineKind::Ring, EngineKind::NvmePassthru, EngineKind::Fio];
    for (index, side, job) in jobs(rings) {
        let is_fio = side.engine() == Some(EngineKind::Fio);
        if is_fio && !job.options.ioengine.starts_with("io_uring") {
            continue;
        }
        let missing = [
            (stack.files && !job.options.register_files, "files", "registerfiles=1"),
            (stack.buffers && !job.options.fixed_buffers, "buffers", "fixedbufs=1"),
        ];
        let missing = || missing.into_iter().filter(|(is_missing, ..)| *is_missing);
        if missing().next().is_some() {
            let things: Vec<_> = missing().map(|(_, things, _)| things).collect();
            let keys: Vec<_> = missing().map(|(.., key)| key).collect();
            let (things, keys) = (things.join(" and "), keys.join(" "));
            notes.push((
                index,
                format!("{things} are not registered, unlike those of engine uringfs; give {keys}"),
            ));
        }
    }
    notes
}

/// What a job registers with engine `uringfs`, if its queue is a ring.
fn by_switches(side: &Side, job: &Job) -> Registered {
    let mut options = Options::default();
    for (name, value) in job.options.settings.iter().chain(side.settings()) {
        // The run refuses an unknown one.
        let _ = options.set(name, value);
    }
    let on_disk = |target: &Target| matches!(target, Target::Path(_) | Target::InVolume(_));
    let has_files = Target::from_job(&job.name, &job.options, 0).iter().any(on_disk);
    match options.reactor.queue {
        QueueKind::Auto | QueueKind::Ring if has_files => Registered {
            files: options.reactor.fixed_files,
            buffers: options.reactor.fixed_buffers,
        },
        _ => Registered::default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::{Parser, UnknownKeys};

    /// The notes of sides with these keys.
    fn notes(sides: &[&str]) -> Vec<(usize, String)> {
        let side = |keys: &&str| {
            let keys: Vec<_> = keys.split_whitespace().map(str::to_owned).collect();
            let side = Side::parse(&keys).unwrap();
            let mut parser = Parser::new(&|_| None, UnknownKeys::Refuse);
            side.replace_keys(&mut parser);
            parser.bytes(b"[x]\nfilename=x\nsize=1m\n", "test").unwrap();
            let set = parser.finish().unwrap();
            (side, set)
        };
        let sides: Vec<_> = sides.iter().map(side).collect();
        let sides: Vec<_> = sides.iter().map(|(side, set)| (side, set)).collect();
        unregistered(&sides)
    }

    #[test]
    fn a_ring_that_registers_less_than_the_stack_is_noted() {
        let both = "files and buffers are not registered, unlike those of engine uringfs; give registerfiles=1 fixedbufs=1";
        for other in ["engine=ring", "engine=io_uring"] {
            assert_eq!(notes(&["", other]), [(1, both.to_owned())], "{other}");
        }
        let buffers = notes(&["engine=ring registerfiles=1", ""]);
        assert!(buffers[0].0 == 0 && buffers[0].1.ends_with("; give fixedbufs=1"), "{buffers:?}");
        assert!(buffers[0].1.starts_with("buffers are"), "{buffers:?}");
        for equal in [
            &["", "engine=ring registerfiles=1 fixedbufs=1"][..],
            &["", "engine=libaio"],
            &["", "engine=psync"],
            &["ring.fixed_files=off ring.fixed_buffers=off", "engine=ring"],
            &["device.queue=threads", "engine=ring"],
            &["target=null:1m", "engine=ring"],
            &["engine=ring", "engine=io_uring"],
        ] {
            assert_eq!(notes(equal), [], "{equal:?}");
        }
    }
}

//! Runs tests under each kernel in the cache, without counting: whether it boots, which features of io_uring
//! it has, and whether test programs pass. One kernel runs again with io_uring forbidden, so that the absence
//! of each feature is tested, too.

use super::GuestRunner;
use super::file_name::file_name;
use super::guest::{Guest, GuestDevice, Step, StepResult, StorageKind};
use super::machine::Profile;
use crate::Error;
use comfy_table::{Table, presets};
use serde_json::{Value, json};
use std::path::PathBuf;

/// The results of one kernel.
#[derive(Debug)]
pub struct KernelTrial {
    /// Its release, and whether io_uring was forbidden.
    pub kernel: String,
    /// Features of io_uring, and whether each is used.
    features: Vec<(String, bool)>,
    /// Test programs: name, whether it passed, output.
    programs: Vec<(String, bool, String)>,
}

/// Whether a guest's kernel lets programs use io_uring.
#[derive(Clone, Copy, PartialEq, Eq)]
enum IoUringAccess {
    Allowed,
    /// By the sysctl of newer kernels.
    Forbidden,
}

/// Runs test programs, which must be static, under each kernel. Failures of tests are in the results.
///
/// # Errors
/// Two programs have the same name, and could not be distinguished in the results. A kernel does not boot,
/// or a guest does not end.
pub fn run(runner: &GuestRunner<'_>, programs: &[PathBuf]) -> Result<Vec<KernelTrial>, Error> {
    for (index, path) in programs.iter().enumerate() {
        super::program::require_static(path)?;
        let name = file_name(path);
        if programs[..index].iter().any(|other| file_name(other) == name) {
            return Err(Error::input(format!("--test: two programs have the name `{name}`")));
        }
    }
    let mut trials = Vec::new();
    let kernels = &runner.packages.kernels;
    let wanted = runner.options.kernel.unwrap_or_default();
    for kernel in kernels.iter().filter(|kernel| kernel.matches(wanted)) {
        trials.push(trial(runner, kernel, IoUringAccess::Allowed, programs)?);
    }
    if runner.options.kernel.is_none() {
        trials.push(trial(runner, runner.kernel()?, IoUringAccess::Forbidden, programs)?);
    }
    Ok(trials)
}

fn trial(
    runner: &GuestRunner<'_>,
    kernel: &super::packages::Kernel,
    io_uring: IoUringAccess,
    tests: &[PathBuf],
) -> Result<KernelTrial, Error> {
    // A file system with direct I/O, for the tests' files.
    let mut script = String::from(
        "insert null_blk $null_blk\nmkfs.ext4 -q /dev/nvme0n2 && mkdir /scratch && mount /dev/nvme0n2 /scratch\n\
         export TMPDIR=/scratch\n",
    );
    let mut name = format!("Linux {}", kernel.release);
    if io_uring == IoUringAccess::Forbidden {
        name += ", io_uring forbidden";
        script += "echo 2 >/proc/sys/kernel/io_uring_disabled\n";
    }
    let mut programs = vec![("uringfs".to_owned(), runner.program.clone())];
    let mut steps = vec![step("info", "uringfs info null:1m --json")];
    match io_uring {
        IoUringAccess::Allowed => {
            // Renamed, because their names may be those of tools of the guest.
            for (index, path) in tests.iter().enumerate() {
                let program = format!("test-{index}");
                steps.push(Step { name: file_name(path), command: vec![program.clone()] });
                programs.push((program, path.clone()));
            }
            steps.extend(reads("polled", &["ring", "uringfs"], "--hipri"));
        }
        // Tests of rings have nothing to test. This stack uses its other queues.
        IoUringAccess::Forbidden => steps.extend(reads("without-a-ring", &["uringfs"], "")),
    }
    let environment: Vec<_> = ["PROPTEST_CASES", "RUST_BACKTRACE"]
        .into_iter()
        .filter_map(|name| Some((name.to_owned(), std::env::var(name).ok()?)))
        .collect();
    let guest = Guest {
        packages: &runner.packages,
        kernel,
        profile: Profile::Functional,
        devices: &[] as &[GuestDevice],
        programs: &programs,
        environment: &environment,
        script: &script,
        steps,
    };
    let results = guest.run(runner.limits(), runner.options.progress)?;
    let (info, tests) = results.split_first().expect("one for each step");
    let features = features(info)?;
    let programs =
        tests.iter().map(|result| (result.step.clone(), result.code == 0, result.output.clone()));
    Ok(KernelTrial { kernel: name, features, programs: programs.collect() })
}

fn step(name: &str, command: &str) -> Step {
    let command = command.split_whitespace().map(str::to_owned).collect();
    Step { name: name.to_owned(), command }
}

/// Steps that read both devices with these engines. An engine that should poll and cannot fails.
fn reads(what: &str, engines: &[&str], keys: &str) -> Vec<Step> {
    let read = |device: GuestDevice, engine: &&str| {
        let target = device.target(StorageKind::Raw);
        let command = format!(
            "uringfs bench run --name={what} --filename={target} --engine={engine} --rw=randread \
             --bs=4k --direct=1 --size=64m --io_size=4m --iodepth=16 {keys}"
        );
        step(&format!("{what}:{}:{engine}", device.name()), &command)
    };
    let devices = [GuestDevice::NullBlk, GuestDevice::Nvme];
    devices
        .iter()
        .flat_map(|device| engines.iter().map(move |engine| read(*device, engine)))
        .collect()
}

fn features(info: &StepResult) -> Result<Vec<(String, bool)>, Error> {
    let bad = |error: serde_json::Error| Error::run("in the guest, info").because(error);
    let info: Value = serde_json::from_str(&info.output).map_err(bad)?;
    let features = info["features"].as_array().into_iter().flatten();
    Ok(features
        .filter_map(|feature| {
            Some((feature["name"].as_str()?.to_owned(), feature["used"].as_bool()?))
        })
        .collect())
}

/// Whether all programs passed under all kernels.
pub fn passed(trials: &[KernelTrial]) -> bool {
    trials.iter().all(|trial| trial.programs.iter().all(|(_, passed, _)| *passed))
}

/// A table with a line per feature and per program, and a column per kernel; then the output of failed
/// programs.
pub fn table(trials: &[KernelTrial]) -> String {
    let mut table = Table::new();
    table.load_preset(presets::UTF8_HORIZONTAL_ONLY);
    table.set_header([""].into_iter().chain(trials.iter().map(|trial| trial.kernel.as_str())));
    let mut names: Vec<&str> = Vec::new();
    for (name, _) in trials.iter().flat_map(|trial| &trial.features) {
        if !names.contains(&name.as_str()) {
            names.push(name);
        }
    }
    for name in names {
        let used =
            |trial: &KernelTrial| trial.features.iter().any(|(other, used)| other == name && *used);
        let words = trials.iter().map(|trial| if used(trial) { "yes" } else { "-" });
        table.add_row([name].into_iter().chain(words));
    }
    let mut programs: Vec<&str> = Vec::new();
    for (name, ..) in trials.iter().flat_map(|trial| &trial.programs) {
        if !programs.contains(&name.as_str()) {
            programs.push(name);
        }
    }
    for name in programs {
        let words = trials.iter().map(|trial| {
            let program = trial.programs.iter().find(|(other, ..)| other == name);
            program.map_or(String::new(), summary)
        });
        table.add_row([name.to_owned()].into_iter().chain(words));
    }
    let mut text = format!("{table}\n");
    for trial in trials {
        for (name, _, output) in trial.programs.iter().filter(|(_, passed, _)| !passed) {
            text += &format!("\n{name} under {}:\n{output}\n", trial.kernel);
        }
    }
    text
}

/// The verdict on a program, with the number of passed tests if Rust's test harness printed it.
fn summary((_, passed, output): &(String, bool, String)) -> String {
    let word = if *passed { "passed" } else { "FAILED" };
    let count = output.lines().find_map(|line| {
        let (_, counts) = line.split_once("test result: ")?.1.split_once(". ")?;
        counts.split_once(" passed").map(|(count, _)| count.to_owned())
    });
    count.map_or(word.to_owned(), |count| format!("{count} {word}"))
}

/// The results as JSON.
pub fn json(trials: &[KernelTrial]) -> Value {
    let trial = |trial: &KernelTrial| {
        let features = trial.features.iter().map(|(name, used)| (name.clone(), json!(used)));
        let programs = trial.programs.iter().map(
            |(name, passed, output)| json!({"name": name, "passed": passed, "output": output}),
        );
        json!({
            "kernel": trial.kernel,
            "features": features.collect::<serde_json::Map<_, _>>(),
            "programs": programs.collect::<Vec<_>>(),
        })
    };
    json!({"passed": passed(trials), "kernels": trials.iter().map(trial).collect::<Vec<_>>()})
}

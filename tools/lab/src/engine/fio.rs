//! The installed fio, run on the same jobs: its own figures, to the digit, beside ours. It gets
//! every job as keys on its command line, and its two outputs are passed on.

use super::Facts;
use crate::Error;
use crate::job::{Job, JobSet, find_key};
use serde_json::Value;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// What fio can do depends on its `ioengine`; what it cannot, it refuses itself.
pub(super) const FACTS: Facts =
    Facts { synchronous: false, buffered: true, any_alignment: false, virtual_targets: false };

/// What fio printed.
#[derive(Debug)]
pub struct Output {
    /// Its JSON.
    pub json: Value,
    /// Its report for people.
    pub text: String,
    /// 0, 1 if a job failed, 130 if it was stopped.
    pub exit_code: u8,
}

/// The arguments that give fio the same jobs.
pub fn arguments(set: &JobSet) -> Vec<String> {
    set.jobs.iter().flat_map(job_arguments).collect()
}

/// The command line a user could type, quoted for a shell.
pub fn command_line(program: &Path, set: &JobSet) -> String {
    let quoted = |word: String| {
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_=/.,:%+@".contains(c);
        if word.chars().all(plain) { word } else { format!("'{}'", word.replace('\'', r"'\''")) }
    };
    let words = std::iter::once(program.display().to_string()).chain(arguments(set));
    words.map(quoted).collect::<Vec<_>>().join(" ")
}

fn job_arguments(job: &Job) -> Vec<String> {
    let mut words = vec![format!("--name={}", job.name)];
    // Every `--name` begins anew, so that a job carries the global keys it inherits, and its own
    // after them: the last wins.
    let own = |key: &str| job.given.iter().any(|(other, _)| same_key(key, other));
    let inherited = job.inherited.iter().filter(|(key, _)| !own(key));
    for (key, value) in inherited.chain(&job.given).filter(|(key, _)| key != "name") {
        words.push(match find_key(key) {
            // fio takes no value for some of its flags.
            Some(key) if value == "1" && BARE.contains(&key.name) => format!("--{}", key.name),
            _ => format!("--{key}={value}"),
        });
    }
    let stonewalled = job.given.iter().chain(&job.inherited).any(|(key, _)| key == "stonewall");
    if job.options.stonewall && !stonewalled {
        words.push("--stonewall".into());
    }
    words
}

/// fio's keys without a value.
const BARE: &[&str] =
    &["stonewall", "time_based", "group_reporting", "new_group", "thread", "norandommap"];

fn same_key(one: &str, other: &str) -> bool {
    let name = |key| find_key(key).map(|key| key.name);
    name(one) == name(other)
}

/// Runs fio and reads what it prints.
pub fn run(set: &JobSet, program: &Path, stop: &AtomicBool) -> Result<Output, Error> {
    let failed = |error: std::io::Error| {
        Error::input(format!("cannot run {} (apt install fio, or --exec PATH)", program.display()))
            .because(error)
    };
    let file = tempfile::NamedTempFile::new().map_err(failed)?;
    let mut child = Command::new(program)
        .args(["--output-format=json,normal", "--output"])
        .arg(file.path())
        .args(arguments(set))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    let succeeded = wait(&mut child, stop).map_err(failed)?;
    let printed = std::fs::read_to_string(file.path()).map_err(failed)?;
    let Some((json, text)) = split(&printed) else {
        let mut complaint = String::new();
        if let Some(mut stderr) = child.stderr.take() {
            // Whatever it says is better than nothing.
            let _ = std::io::Read::read_to_string(&mut stderr, &mut complaint);
        }
        let line = complaint.lines().chain(printed.lines()).next().unwrap_or("it printed nothing");
        return Err(Error::run(format!("fio failed: {line}")));
    };
    let stopped = stop.load(Ordering::Relaxed);
    let exit_code = if stopped { 130 } else { u8::from(!succeeded) };
    Ok(Output { json, text, exit_code })
}

/// Waits for fio, and passes a stop on by ending it: fio itself has had the terminal's Ctrl-C.
fn wait(child: &mut Child, stop: &AtomicBool) -> std::io::Result<bool> {
    const STEP: Duration = Duration::from_millis(10);
    const PATIENCE: u32 = 300;
    let mut patience = PATIENCE;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status.success());
        }
        if stop.load(Ordering::Relaxed) {
            patience -= 1;
            if patience == 0 {
                child.kill()?;
            }
        }
        std::thread::sleep(STEP);
    }
}

/// The JSON object that begins a line, and the rest.
fn split(printed: &str) -> Option<(Value, String)> {
    let begin = if printed.starts_with('{') { 0 } else { printed.find("\n{")? + 1 };
    let mut stream = serde_json::Deserializer::from_str(&printed[begin..]).into_iter::<Value>();
    let json = stream.next()?.ok()?;
    let end = begin + stream.byte_offset();
    let text = format!("{}{}", &printed[..begin], printed[end..].trim_start_matches('\n'));
    Some((json, text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::{Parser, UnknownKeys};

    fn set(text: &str) -> JobSet {
        let mut parser = Parser::new(&|_| None, UnknownKeys::Refuse);
        parser.bytes(text.as_bytes(), "x.fio").unwrap();
        parser.finish().unwrap()
    }

    #[test]
    fn a_job_carries_the_globals_it_inherits_and_its_own_win() {
        let set =
            set("[global]\nbs=8k\ntime_based\nruntime=1\n[a b]\nblocksize=4k\ndirect=1\nx.y=off\n");
        let line = command_line(Path::new("fio"), &set);
        assert_eq!(line, "fio '--name=a b' --time_based --runtime=1 --blocksize=4k --direct=1");
    }

    #[test]
    fn both_outputs_are_told_apart() {
        let (json, text) = split("warning\n{\n \"a\" : {\"b\":1}\n}\n\nx: (g=0)\n").unwrap();
        assert_eq!(json["a"]["b"], 1);
        assert_eq!(text, "warning\nx: (g=0)\n");
        assert!(split("fio: bad").is_none());
    }
}

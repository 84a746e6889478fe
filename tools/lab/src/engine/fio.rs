//! Runs the installed fio on the same jobs. fio gets each job as keys on its command line; its text and
//! JSON are passed on unchanged.

use super::Capabilities;
use crate::job::{Job, JobSet, find_key, replaces};
use crate::targets::{Target, inspect};
use crate::{Error, LOST_TARGET};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::io::{Read, Seek};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use uringfs::Errno;

/// fio's capabilities depend on its `ioengine`. fio itself refuses keys that its engine does not support.
pub(super) const CAPABILITIES: Capabilities = Capabilities {
    synchronous: false,
    buffered: true,
    any_alignment: false,
    extends_files: true,
    virtual_targets: false,
    volumes: false,
    inspect,
    ignored_keys: &[],
};

/// Time for fio to exit after SIGINT.
const EXIT_TIMEOUT: Duration = Duration::from_secs(3);

/// The output of fio beside its text and JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Extras {
    /// The bins of latencies in the JSON, which is `json+` then.
    pub bins: bool,
    /// Terse lines.
    pub terse: bool,
}

/// fio's output.
#[derive(Debug)]
pub struct Output {
    /// Its JSON.
    pub json: Value,
    /// Its text report.
    pub text: String,
    /// Its terse lines; empty unless asked for.
    pub terse: String,
    /// The lines of its standard error.
    pub stderr_lines: Vec<String>,
    /// Notes about the run: keys without effect, and those lines.
    pub notes: Vec<String>,
    /// Files that the lab laid out for it and left.
    pub files_made: Vec<String>,
    /// Whether the user stopped the run.
    pub incomplete: bool,
    /// 0; 1 if a job failed; 2 if one failed because its target is full or gone; 130 if it was stopped.
    pub exit_code: u8,
}

/// fio's arguments for these jobs.
pub fn arguments(set: &JobSet) -> Vec<String> {
    set.jobs.iter().flat_map(job_arguments).collect()
}

/// The fio command line for these jobs, quoted for a shell.
///
/// # Errors
/// A job has a file in a volume, which fio cannot use.
pub fn command_line(program: &Path, set: &JobSet) -> Result<String, Error> {
    for job in &set.jobs {
        let targets = Target::from_job(&job.name, &job.options, 0);
        if let Some(target) = targets.iter().find(|target| matches!(target, Target::InVolume(_))) {
            let line = format!("{target}: fio cannot use files in volumes");
            return Err(Error::input(line).at(job.label()));
        }
        let own = [("waits_apart", job.options.waits_apart), ("batch", job.options.batch)];
        if let Some((key, _)) = own.into_iter().find(|(_, is_on)| *is_on) {
            return Err(Error::input(format!("{key}: fio has no such key")).at(job.label()));
        }
    }
    let quoted = |word: String| {
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_=/.,:%+@".contains(c);
        if word.chars().all(plain) { word } else { format!("'{}'", word.replace('\'', r"'\''")) }
    };
    let words = std::iter::once(program.display().to_string()).chain(arguments(set));
    Ok(words.map(quoted).collect::<Vec<_>>().join(" "))
}

/// The arguments of one job: its name, then its keys.
pub(crate) fn job_arguments(job: &Job) -> Vec<String> {
    let mut words = vec![format!("--name={}", job.name)];
    // Each `--name` resets fio's keys. So a job has its inherited global keys, then its own: the last
    // one wins.
    let own = |old: &(String, String)| {
        job.own_keys.iter().any(|(name, value)| {
            find_key(name).is_some_and(|key| replaces((key, value), (&old.0, &old.1)))
        })
    };
    let inherited = job.inherited_keys.iter().filter(|old| !own(old));
    let mut keys: Vec<_> =
        inherited.chain(&job.own_keys).filter(|(key, _)| key != "name").collect();
    // On a command line, fio knows the keys of an engine only after its name.
    keys.sort_by_key(|(key, _)| key != "ioengine");
    for (key, value) in keys {
        // On a command line, fio's keys do not stand alone.
        let value = if value.is_empty() { &job.name } else { value };
        words.push(format!("--{key}={value}"));
    }
    let stonewalled =
        job.own_keys.iter().chain(job.inherited_keys.iter()).any(|(key, _)| key == "stonewall");
    if job.options.stonewall && !stonewalled {
        words.push("--stonewall=1".into());
    }
    words
}

/// Runs fio and reads its output.
pub fn run(
    set: &JobSet,
    program: &Path,
    extras: Extras,
    stop: &AtomicBool,
) -> Result<Output, Error> {
    let hint = "apt install fio, or give the path of one";
    let command = Command::new(program);
    let program = Program { name: "fio", command, extras, hint, exit_code: exit_code_of_fio };
    let mut output = program.run(&arguments(set), stop)?;
    output.notes = notes(set);
    output.notes.extend(output.stderr_lines.iter().cloned());
    Ok(output)
}

/// The keys without effect. fio says so only of jobs that are threads, and only in its text.
fn notes(set: &JobSet) -> Vec<String> {
    const SYNCHRONOUS: [&str; 6] = ["psync", "sync", "vsync", "pvsync", "pvsync2", "mmap"];
    let mut notes = Vec::new();
    for Job { options, .. } in &set.jobs {
        let note = format!(
            "iodepth has no effect: ioengine={} of fio does one I/O at a time",
            options.ioengine
        );
        let is_capped = options.depth > 1 && SYNCHRONOUS.contains(&options.ioengine);
        if is_capped && !notes.contains(&note) {
            notes.push(note);
        }
    }
    notes
}

/// fio's exit code is the number of jobs that failed; their errors are in the JSON.
fn exit_code_of_fio(status: ExitStatus, json: Option<&Value>) -> u8 {
    let jobs = json.and_then(|json| json["jobs"].as_array()).into_iter().flatten();
    let mut errors = jobs.filter_map(|job| job["error"].as_i64());
    let is_lost = |error| LOST_TARGET.iter().any(|lost| i64::from(lost.raw_os_error()) == error);
    match status.success() {
        true => 0,
        false if errors.any(is_lost) => 2,
        false => 1,
    }
}

/// A program that has fio's options for its output, and prints fio's JSON.
pub(crate) struct Program<'a> {
    /// Its name in messages.
    pub name: &'a str,
    /// The command, without options and jobs.
    pub command: Command,
    /// Its output beside text and JSON.
    pub extras: Extras,
    /// The advice if it does not start.
    pub hint: &'a str,
    /// The exit code of the lab for its status and its JSON, if it printed any.
    pub exit_code: fn(ExitStatus, Option<&Value>) -> u8,
}

impl Program<'_> {
    /// Runs the program and reads its output.
    pub fn run(mut self, arguments: &[String], stop: &AtomicBool) -> Result<Output, Error> {
        let program = self.command.get_program().display().to_string();
        let failed = |error: std::io::Error| {
            Error::input(format!("cannot run {program} ({})", self.hint)).because(error)
        };
        let file = tempfile::NamedTempFile::new().map_err(failed)?;
        let mut stderr = tempfile::tempfile().map_err(failed)?;
        let json = if self.extras.bins { "json+" } else { "json" };
        let terse = if self.extras.terse { "terse," } else { "" };
        let mut child = self
            .command
            .arg(format!("--output-format={terse}{json},normal"))
            .arg("--output")
            .arg(file.path())
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            // Not a pipe: nothing reads it while the program runs.
            .stderr(stderr.try_clone().map_err(failed)?)
            .spawn()
            .map_err(failed)?;
        let status = wait(&mut child, stop, EXIT_TIMEOUT).map_err(failed)?;
        let printed = std::fs::read_to_string(file.path()).map_err(failed)?;
        let mut stderr_text = String::new();
        stderr.rewind().and_then(|()| stderr.read_to_string(&mut stderr_text)).map_err(failed)?;
        let incomplete = stop.load(Ordering::Relaxed);
        let (printed, terse) = match self.extras.terse {
            true => without_terse(&printed),
            false => (printed, String::new()),
        };
        let Some((json, text)) = split(&printed) else {
            if incomplete {
                return Err(Error::interrupted());
            }
            let mut lines = stderr_text.lines().chain(printed.lines());
            let line = lines.find(|line| !line.trim().is_empty()).unwrap_or("it printed nothing");
            let own = line.strip_prefix(self.name).and_then(|line| line.strip_prefix(": "));
            let error = Error::run(format!("{} failed", self.name)).because(own.unwrap_or(line));
            // Also if it pretends to have succeeded.
            return Err(error.exiting_with((self.exit_code)(status, None).max(1)));
        };
        let exit_code = if incomplete { 130 } else { (self.exit_code)(status, Some(&json)) };
        let lines = stderr_text.lines().map(str::trim).filter(|line| !line.is_empty());
        let stderr_lines = lines.map(str::to_owned).collect();
        Ok(Output {
            json,
            text,
            terse,
            stderr_lines,
            notes: Vec::new(),
            files_made: Vec::new(),
            incomplete,
            exit_code,
        })
    }
}

/// Waits for the program. Forwards a stop as SIGINT: the program gets none if the signal was sent to this process only.
/// Kills it if it does not exit within `timeout` after that.
fn wait(child: &mut Child, stop: &AtomicBool, timeout: Duration) -> std::io::Result<ExitStatus> {
    const POLL_INTERVAL: Duration = Duration::from_millis(10);
    let mut stopped: Option<Instant> = None;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        match stopped {
            None if stop.load(Ordering::Relaxed) => {
                signal(child.id(), Signal::INT)?;
                stopped = Some(Instant::now());
            }
            Some(since) if since.elapsed() >= timeout => {
                // Its jobs first: after their parent's death they would have no parent to find them by.
                for job in children(child.id()) {
                    // A job that has exited meanwhile is no error.
                    let _ = signal(job, Signal::KILL);
                }
                child.kill()?;
                return child.wait();
            }
            _ => {}
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

fn signal(process: u32, signal: Signal) -> Result<(), Errno> {
    let process = Pid::from_raw(process as i32).ok_or(Errno::SRCH)?;
    Ok(kill_process(process, signal)?)
}

/// The processes that fio forked for its jobs. Each has its own session, so that no signal to a process
/// group reaches all of them.
fn children(process: u32) -> Vec<u32> {
    let list = std::fs::read_to_string(format!("/proc/{process}/task/{process}/children"));
    let list = list.unwrap_or_default();
    list.split_whitespace().filter_map(|child| child.parse().ok()).collect()
}

/// Separates the terse lines, which no text and no JSON looks like, from all others.
fn without_terse(printed: &str) -> (String, String) {
    let is_terse = |line: &&str| line.starts_with("3;fio-");
    let (terse, others): (Vec<&str>, Vec<&str>) = printed.split_inclusive('\n').partition(is_terse);
    (others.concat(), terse.concat())
}

/// Splits the output into the JSON object, which begins a line, and the text around it.
fn split(printed: &str) -> Option<(Value, String)> {
    let begin = if printed.starts_with('{') { 0 } else { printed.find("\n{")? + 1 };
    let mut stream = serde_json::Deserializer::from_str(&printed[begin..]).into_iter::<Value>();
    let json = stream.next()?.ok()?;
    let end = begin + stream.byte_offset();
    let rest = &printed[end..];
    let text = format!("{}{}", &printed[..begin], rest.strip_prefix('\n').unwrap_or(rest));
    Some((json, text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::{Parser, UnknownKeys};
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use std::io::{BufRead, BufReader};

    fn set(text: &str) -> JobSet {
        let mut parser = Parser::new(&|_| None, UnknownKeys::Refuse);
        parser.bytes(text.as_bytes(), "x.fio").unwrap();
        parser.finish().unwrap()
    }

    #[test]
    fn own_keys_win_over_inherited_globals() {
        let set =
            set("[global]\nbs=8k\ntime_based\nruntime=1\n[a b]\nblocksize=4k\ndirect=1\nx.y=off\n");
        let line = command_line(Path::new("fio"), &set).unwrap();
        let words = "--time_based=1 --runtime=1 --blocksize=4k --direct=1";
        assert_eq!(line, format!("fio '--name=a b' {words}"));
    }

    #[test]
    fn the_last_value_wins_as_in_fio() {
        for (keys, words) in [
            ("bs=4k\nblocksize=8k\nbs=16k\n", "--bs=16k"),
            ("direct=1\nbuffered=1\ndirect=1\n", "--buffered=1 --direct=1"),
            ("bs=16k\nbs=,8k\n", "--bs=16k --bs=,8k"),
            ("bs=16k\nbs=,4k\nbs=2k,\nbs=,8k\n", "--bs=16k --bs=2k, --bs=,8k"),
        ] {
            let line = command_line(Path::new("fio"), &set(&format!("[j]\n{keys}"))).unwrap();
            assert_eq!(line, format!("fio --name=j {words}"));
        }
        let log = set("[global]\nwrite_bw_log\n[j]\nwrite_lat_log\n");
        let line = command_line(Path::new("fio"), &log).unwrap();
        assert_eq!(line, "fio --name=j --write_bw_log=j --write_lat_log=j");
        let line = command_line(Path::new("fio"), &set("[global]\nbs=16k\n[j]\nbs=,8k\n")).unwrap();
        assert_eq!(line, "fio --name=j --bs=16k --bs=,8k");
    }

    #[test]
    fn keys_of_an_engine_follow_its_name() {
        let set = set("[global]\nfixedbufs\n[j]\nregisterfiles\nioengine=io_uring\n");
        let line = command_line(Path::new("fio"), &set).unwrap();
        assert_eq!(line, "fio --name=j --ioengine=io_uring --fixedbufs=1 --registerfiles=1");
    }

    #[test]
    fn a_depth_of_a_synchronous_ioengine_is_noted() {
        let noted =
            notes(&set("[a]\niodepth=8\n[b]\niodepth=4\n[c]\n[d]\nioengine=libaio\niodepth=8\n"));
        let note = "iodepth has no effect: ioengine=psync of fio does one I/O at a time";
        assert_eq!(noted, [note]);
    }

    #[test]
    fn jobs_that_ignore_the_stop_are_killed_with_their_parent() {
        // Like fio, the script forks a job into a session of its own. Both have the pipe's write end.
        let script = "trap '' INT; setsid sh -c 'echo $$; exec sleep 1000' & wait; exit 1";
        let mut child =
            Command::new("sh").args(["-c", script]).stdout(Stdio::piped()).spawn().unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut job = String::new();
        output.read_line(&mut job).unwrap();
        let stop = AtomicBool::new(true);
        assert!(!wait(&mut child, &stop, Duration::ZERO).unwrap().success());
        let timeout = Timespec { tv_sec: 60, tv_nsec: 0 };
        let ended = poll(&mut [PollFd::new(output.get_ref(), PollFlags::IN)], Some(&timeout));
        if ended != Ok(1) {
            signal(job.trim().parse().unwrap(), Signal::KILL).unwrap();
            panic!("the job outlives its parent");
        }
    }

    #[test]
    fn a_job_of_fio_whose_target_is_full_or_gone_has_an_exit_code_of_its_own() {
        let run = |code: u32, printed: &str| {
            // The third argument is the file of `--output`.
            let script =
                format!("printf '%s' '{printed}' >\"$3\"; echo 'fio: broken' >&2; exit {code}");
            let mut command = Command::new("sh");
            command.args(["-c", &script, "sh"]);
            let (extras, hint) = (Extras::default(), "");
            let program =
                Program { name: "fio", command, extras, hint, exit_code: exit_code_of_fio };
            let done = program.run(&[], &AtomicBool::new(false));
            done.map_or_else(|error| error.exit_code(), |output| output.exit_code)
        };
        let jobs = |errors: &[i64]| {
            let jobs: Vec<_> =
                errors.iter().map(|error| serde_json::json!({"error": error})).collect();
            serde_json::json!({"jobs": jobs}).to_string()
        };
        assert_eq!(run(0, &jobs(&[0])), 0);
        // EIO, ENOSPC, ENODEV.
        assert_eq!(run(1, &jobs(&[5])), 1);
        assert_eq!(run(3, &jobs(&[0, -1, 1 << 40, 28])), 2);
        assert_eq!(run(1, &jobs(&[19])), 2);
        assert_eq!([run(1, ""), run(0, "")], [1; 2], "no JSON");
    }

    #[test]
    fn json_and_text_are_separated() {
        let (json, text) = split("warning\n{\n \"a\" : {\"b\":1}\n}\n\nx: (g=0)\n").unwrap();
        assert_eq!(json["a"]["b"], 1);
        assert_eq!(text, "warning\n\nx: (g=0)\n");
        assert!(split("fio: bad").is_none());
    }
}

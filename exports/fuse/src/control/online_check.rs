//! A check of the open volume for a client: lines of progress and findings, then the counts.

use std::io::{self, Write};
use std::ops::ControlFlow;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};
use uringfs::volume::{CheckOptions, CheckReport, CheckStep, Finding};
use uringfs::{Error, Volume};

use super::file_request::{broken, bytes_of, error_of, refusal, text};
use super::protocol::{number, object, result};

/// The time between two lines about one step.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(200);
/// How long a client may leave a line unread.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);

const STEPS: [(&str, CheckStep); 5] = [
    ("pages", CheckStep::Pages),
    ("records", CheckStep::Records),
    ("names", CheckStep::Names),
    ("blocks", CheckStep::Blocks),
    ("data", CheckStep::Data),
];

/// Checks the volume, and sends what it finds, but the last line, which it returns. Ends early when the client has gone, or when
/// the server ends.
pub(crate) fn serve(
    volume: &Volume,
    deep: bool,
    stream: &UnixStream,
    is_ending: &AtomicBool,
) -> io::Result<Value> {
    stream.set_nonblocking(false)?;
    stream.set_write_timeout(Some(WRITE_TIMEOUT))?;
    let mut last: Option<(CheckStep, Instant)> = None;
    let checked = volume.check_online(CheckOptions::new().deep(deep), &mut |step, done| {
        if is_ending.load(Ordering::Relaxed) {
            return ControlFlow::Break(());
        }
        let now = Instant::now();
        if last.is_some_and(|(before, at)| before == step && now - at < PROGRESS_INTERVAL) {
            return ControlFlow::Continue(());
        }
        last = Some((step, now));
        match send(stream, &json!({"step": word(step), "done": done})) {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => ControlFlow::Break(()),
        }
    });
    let report = match checked {
        Ok(report) => report,
        Err(error) => return Ok(refusal(&error)),
    };
    for finding in &report.findings {
        if is_ending.load(Ordering::Relaxed) {
            return Err(io::ErrorKind::Interrupted.into());
        }
        send(stream, &json!({"finding": finding_to_json(finding)}))?;
    }
    // The last line goes into the socket's buffer, or is lost.
    stream.set_nonblocking(true)?;
    Ok(result(counts(&report)))
}

fn send(mut stream: &UnixStream, line: &Value) -> io::Result<()> {
    stream.write_all(format!("{line}\n").as_bytes())
}

/// The report of a check, from the lines of the server.
pub(crate) fn receive(
    mut line: impl FnMut() -> io::Result<Vec<u8>>,
    progress: &mut dyn FnMut(CheckStep, u64),
) -> Result<CheckReport, Error> {
    let mut report = CheckReport::default();
    loop {
        let mut reply = line().and_then(|line| parse(&line)).map_err(broken)?;
        if let Some(error) = error_of(&reply) {
            return Err(error);
        }
        if let Some(step) = reply.get("step").and_then(step_of) {
            progress(step, number(&mut reply, "done").unwrap_or(0));
        }
        if let Some(Value::Object(finding)) = reply.remove("finding") {
            report.findings.push(finding_from(finding));
        }
        if let Some(Value::Object(mut counts)) = reply.remove("result") {
            let mut count =
                |name| number(&mut counts, name).map_err(io::Error::other).map_err(broken);
            report.unlisted = count("unlisted")?;
            report.files = count("files")?;
            report.directories = count("directories")?;
            report.used_blocks = count("used_blocks")?;
            report.read_blocks = count("read_blocks")?;
            return Ok(report);
        }
    }
}

fn parse(line: &[u8]) -> io::Result<Map<String, Value>> {
    object(line).map_err(io::Error::other)
}

fn counts(report: &CheckReport) -> Value {
    json!({
        "unlisted": report.unlisted,
        "files": report.files,
        "directories": report.directories,
        "used_blocks": report.used_blocks,
        "read_blocks": report.read_blocks,
    })
}

fn finding_to_json(finding: &Finding) -> Value {
    let mut fields = json!({"what": finding.what});
    if let Some(path) = &finding.path {
        fields["path"] = text(path);
    }
    if let Some(inode) = finding.inode {
        fields["file"] = inode.0.into();
    }
    fields
}

fn finding_from(mut fields: Map<String, Value>) -> Finding {
    let path = fields.remove("path").and_then(bytes_of);
    let inode = number(&mut fields, "file").ok();
    let what = fields.get("what").and_then(Value::as_str).unwrap_or_default().to_owned();
    Finding::reported(path, inode, what)
}

fn word(step: CheckStep) -> &'static str {
    STEPS.iter().find(|(_, it)| *it == step).map_or("other", |(word, _)| *word)
}

fn step_of(word: &Value) -> Option<CheckStep> {
    STEPS.iter().find(|(it, _)| word == *it).map(|(_, step)| *step)
}

//! The log of a server: events of `tracing` as lines on standard error, as text or as JSON.
//!
//! A thread of its own writes the lines: a reader of standard error that is slow holds up no server. At most
//! [`MAX_QUEUED_LINES`] wait for it; others are left out, and the log says how many.

use serde_json::{Map, Value, json};
use std::fmt::{self, Write as _};
use std::io::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::{Layer, Registry};
use uringfs_lab::Error;

/// The most lines that wait to be written.
const MAX_QUEUED_LINES: usize = 1024;

/// The longest wait for the lines that are left when the program ends.
const LAST_LINES_TIMEOUT: Duration = Duration::from_secs(5);

/// The event of a server that serves. As text it is not logged: standard output has its line.
const STARTED: &str = "server_started";

/// How the log is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// A line for people.
    #[default]
    Text,
    /// A JSON object a line.
    Json,
}

/// A log that has begun.
pub struct Log {
    format: LogFormat,
    /// Its other end is dropped when all lines are written.
    written: Receiver<()>,
}

/// The queue of the log, while there is one.
static QUEUE: Mutex<Option<Queue>> = Mutex::new(None);

struct Queue {
    lines: SyncSender<String>,
    missed: Arc<AtomicU64>,
}

impl Log {
    /// Writes events from now on.
    ///
    /// # Errors
    /// There is a log already, or no thread for it.
    pub fn start(format: LogFormat) -> Result<Log, Error> {
        let failed = |what: String| Error::run(format!("cannot write a log: {what}"));
        let subscriber = Registry::default().with(LevelFilter::INFO).with(LogLayer(format));
        tracing::subscriber::set_global_default(subscriber)
            .map_err(|error| failed(error.to_string()))?;
        let (sender, lines) = sync_channel(MAX_QUEUED_LINES);
        let missed = Arc::<AtomicU64>::default();
        let (end, written) = channel();
        let writer = thread::Builder::new().name("uringfs-log".to_owned()).spawn({
            let missed = missed.clone();
            move || {
                let _end: Sender<()> = end;
                write_lines(&lines, &missed, format);
            }
        });
        writer.map_err(|error| failed(error.to_string()))?;
        *queue() = Some(Queue { lines: sender, missed });
        Ok(Log { format, written })
    }

    /// Logs the error of the command, if that is its result, and writes what is left. Returns the exit code.
    pub fn end(self, result: Result<u8, Error>) -> u8 {
        // The last sender: the thread ends after the last line.
        drop(queue().take());
        // A reader of standard error that has stopped does not keep the program.
        let is_written =
            self.written.recv_timeout(LAST_LINES_TIMEOUT) != Err(RecvTimeoutError::Timeout);
        result.unwrap_or_else(|error| {
            if is_written {
                let line = self.format.line(Level::ERROR, &Fields::of_error(&error));
                let _ = std::io::stderr().write_all(line.as_bytes());
            }
            error.exit_code()
        })
    }
}

/// Whether there is a log.
pub fn is_running() -> bool {
    queue().is_some()
}

/// Logs that a server has begun, at an address, a path or a directory.
pub fn server_started(protocol: &str, address: &str) {
    tracing::info!(event = STARTED, protocol, address, "serving");
}

fn queue() -> std::sync::MutexGuard<'static, Option<Queue>> {
    QUEUE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn write_lines(lines: &Receiver<String>, missed: &AtomicU64, format: LogFormat) {
    for line in lines {
        // A failure to write has no other place to be reported.
        let _ = std::io::stderr().write_all(line.as_bytes());
        match missed.swap(0, Ordering::Relaxed) {
            0 => {}
            count => {
                let fields = Fields {
                    message: "lines are missing here: standard error takes them too slowly".into(),
                    others: Map::from_iter([
                        ("event".to_owned(), json!("lines_missed")),
                        ("lines".to_owned(), json!(count)),
                    ]),
                };
                let line = format.line(Level::WARN, &fields);
                let _ = std::io::stderr().write_all(line.as_bytes());
            }
        }
    }
}

/// Makes lines of events.
struct LogLayer(LogFormat);

impl<S: Subscriber> Layer<S> for LogLayer {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let LogLayer(format) = self;
        let mut fields = Fields::default();
        event.record(&mut fields);
        if *format == LogFormat::Text && fields.event() == Some(STARTED) {
            return;
        }
        let line = format.line(*event.metadata().level(), &fields);
        if let Some(Queue { lines, missed }) = &*queue()
            && lines.try_send(line).is_err()
        {
            missed.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// The fields of an event.
#[derive(Default)]
struct Fields {
    message: String,
    /// In their order.
    others: Map<String, Value>,
}

impl Fields {
    fn of_error(error: &Error) -> Fields {
        let others = Map::from_iter([("event".to_owned(), json!("error"))]);
        Fields { message: error.to_string(), others }
    }

    fn event(&self) -> Option<&str> {
        self.others.get("event").and_then(Value::as_str)
    }

    fn insert(&mut self, field: &Field, value: Value) {
        self.others.insert(field.name().to_owned(), value);
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        match field.name() {
            "message" => self.message = format!("{value:?}"),
            _ => self.insert(field, format!("{value:?}").into()),
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.insert(field, value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.insert(field, value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.insert(field, value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.insert(field, value.into());
    }
}

impl LogFormat {
    /// The line of an event.
    fn line(self, level: Level, fields: &Fields) -> String {
        match self {
            LogFormat::Text => text_line(level, fields),
            LogFormat::Json => json_line(level, fields),
        }
    }
}

fn text_line(level: Level, Fields { message, others }: &Fields) -> String {
    let mut text = if level == Level::WARN { "warning: " } else { "" }.to_owned() + message;
    let others = others.iter().filter(|(name, _)| *name != "event");
    for (number, (name, value)) in others.enumerate() {
        let separator = if number == 0 { ":" } else { "," };
        let _ = match value {
            Value::String(value) => write!(text, "{separator} {name} {value}"),
            value => write!(text, "{separator} {name} {value}"),
        };
    }
    line_of(&text)
}

fn json_line(level: Level, Fields { message, others }: &Fields) -> String {
    let mut line = Map::from_iter([
        ("time".to_owned(), json!(jiff::Timestamp::now().to_string())),
        ("level".to_owned(), json!(level.as_str().to_lowercase())),
    ]);
    // Warnings of the library may have no name.
    let event = if level == Level::ERROR { "error" } else { "warning" };
    line.insert("event".to_owned(), json!(event));
    line.extend(others.clone());
    line.insert("message".to_owned(), json!(message));
    format!("{}\n", Value::Object(line))
}

/// A line for people. Control characters are escaped, as the text can have file names and output of other programs.
pub fn line_of(text: &str) -> String {
    let mut line = String::with_capacity(text.len() + 10);
    line.push_str("uringfs: ");
    for character in text.chars() {
        if character.is_control() {
            line.extend(character.escape_default());
        } else {
            line.push(character);
        }
    }
    line.push('\n');
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields() -> Fields {
        let others = [("event", json!("left")), ("client", json!(7)), ("peer", json!("a\nb"))];
        let others = others.map(|(name, value)| (name.to_owned(), value));
        Fields { message: "NBD client left".into(), others: Map::from_iter(others) }
    }

    #[test]
    fn an_event_is_one_line_of_text() {
        let line = |level| LogFormat::Text.line(level, &fields());
        assert_eq!(line(Level::INFO), "uringfs: NBD client left: client 7, peer a\\nb\n");
        assert!(line(Level::WARN).starts_with("uringfs: warning: NBD client left: "));
    }

    #[test]
    fn an_event_is_one_object_of_json() {
        let line = LogFormat::Json.line(Level::WARN, &fields());
        assert_eq!(line.lines().count(), 1);
        let parsed: Value = serde_json::from_str(&line).unwrap();
        assert!(parsed["time"].as_str().unwrap().parse::<jiff::Timestamp>().is_ok());
        assert_eq!(
            (&parsed["level"], &parsed["event"], &parsed["client"], &parsed["peer"]),
            (&json!("warn"), &json!("left"), &json!(7), &json!("a\nb"))
        );
        assert_eq!(parsed["message"], "NBD client left");
    }
}

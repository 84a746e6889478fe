//! The progress line of a run, drawn if standard error is a terminal.

use indicatif::{ProgressBar, ProgressStyle};
use std::io::{IsTerminal, Write};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;
use uringfs_lab::report;
use uringfs_lab::run::RunProgress;

/// When progress is shown: fio's `--eta`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Eta {
    /// On a terminal.
    Auto,
    /// Elsewhere, too: a line each second.
    Always,
    /// Not at all.
    Never,
}

/// The progress line; dropping it clears the line.
pub struct Progress(Option<Drawer>);

/// The thread that shows the progress.
struct Drawer {
    /// The line on a terminal.
    bar: Option<ProgressBar>,
    end: Sender<()>,
    thread: JoinHandle<()>,
}

/// The length of the bar is that of the whole.
const BAR_LENGTH: u64 = 1000;

impl Progress {
    /// Starts to draw `live` on a terminal.
    pub fn start(live: &Arc<RunProgress>) -> Self {
        Self::start_when(Eta::Auto, live)
    }

    /// Starts to show `live`, or does nothing.
    pub fn start_when(eta: Eta, live: &Arc<RunProgress>) -> Self {
        let is_terminal = std::io::stderr().is_terminal();
        let bar = match eta {
            Eta::Auto | Eta::Always if is_terminal => Some(ProgressBar::new(BAR_LENGTH)),
            Eta::Always => None,
            Eta::Auto | Eta::Never => return Self(None),
        };
        let (live, drawn) = (Arc::clone(live), bar.clone());
        let (end, ended) = channel();
        // A separate thread, so the threads of jobs only publish their figures.
        let thread = std::thread::spawn(move || match drawn {
            Some(bar) => draw(&bar, &live, &ended),
            None => print_lines(&live, &ended),
        });
        Self(Some(Drawer { bar, end, thread }))
    }

    /// Prints something while the line is away, so that on a terminal neither is in the other.
    pub fn suspend<T>(&self, print: impl FnOnce() -> T) -> T {
        match &self.0 {
            Some(Drawer { bar: Some(bar), .. }) => bar.suspend(print),
            _ => print(),
        }
    }
}

/// Draws a line until the end, then clears it.
fn draw(bar: &ProgressBar, live: &RunProgress, ended: &Receiver<()>) {
    // The interval at which new figures are published.
    const REDRAW_INTERVAL: Duration = Duration::from_millis(500);
    const BAR_COLUMNS: usize = "* [--------------------] ".len();
    // On a narrower terminal the words need the room of the bar.
    const MIN_COLUMNS_WITH_BAR: usize = 100;
    let style =
        |template| ProgressStyle::with_template(template).expect("the template is a constant");
    let (with_bar, words_alone) = (style("{spinner} [{bar:20}] {wide_msg}"), style("{wide_msg}"));
    loop {
        let now = live.snapshot();
        let share = now.estimate.map_or(0.0, |estimate| estimate.share);
        // Anew each time: a window changes its size. In the last column some terminals begin a new line.
        let columns = columns() - 1;
        let (style, room) = match columns >= MIN_COLUMNS_WITH_BAR {
            true => (&with_bar, columns - BAR_COLUMNS),
            false => (&words_alone, columns),
        };
        bar.set_style(style.clone());
        bar.set_position((share * BAR_LENGTH as f64) as u64);
        bar.set_message(report::progress_line(&now, room));
        bar.tick();
        if ended.recv_timeout(REDRAW_INTERVAL) != Err(RecvTimeoutError::Timeout) {
            return bar.finish_and_clear();
        }
    }
}

/// The width of the terminal on standard error.
fn columns() -> usize {
    // Of a terminal that does not know its width.
    const DEFAULT: usize = 80;
    match rustix::termios::tcgetwinsize(std::io::stderr()) {
        Ok(size) if size.ws_col > 0 => size.ws_col.into(),
        _ => DEFAULT,
    }
}

/// Prints a line each second until the end.
fn print_lines(live: &RunProgress, ended: &Receiver<()>) {
    // fio's interval.
    const INTERVAL: Duration = Duration::from_secs(1);
    while ended.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Timeout) {
        let line = report::progress_line(&live.snapshot(), usize::MAX);
        // Nothing reads the lines if this fails.
        let _ = writeln!(std::io::stderr(), "{line}");
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(Drawer { end, thread, .. }) = self.0.take() {
            drop(end);
            // The thread only draws: a panic in it must not lose the report.
            let _ = thread.join();
        }
    }
}

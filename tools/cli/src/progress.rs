//! The progress line of a run. Draws nothing if standard error is not a terminal.

use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;
use uringfs_lab::report;
use uringfs_lab::run::RunProgress;

/// The progress line; dropping it clears the line.
pub struct Progress(Option<(Sender<()>, JoinHandle<()>)>);

impl Progress {
    /// Starts to draw `live`.
    pub fn start(live: &Arc<RunProgress>) -> Self {
        if !std::io::stderr().is_terminal() {
            return Self(None);
        }
        let live = Arc::clone(live);
        let (end, ended) = channel();
        // A separate thread draws, so the threads of jobs only publish their figures.
        let drawer = std::thread::spawn(move || {
            // The interval at which new figures are published.
            const REDRAW_INTERVAL: Duration = Duration::from_millis(500);
            const BAR_LENGTH: u64 = 1000;
            let bar = ProgressBar::new(BAR_LENGTH);
            let style = ProgressStyle::with_template("{spinner} [{bar:20}] {wide_msg}");
            bar.set_style(style.expect("the template is a constant"));
            loop {
                let now = live.snapshot();
                let share = now.estimate.map_or(0.0, |estimate| estimate.share);
                bar.set_position((share * BAR_LENGTH as f64) as u64);
                bar.set_message(report::progress_line(&now));
                bar.tick();
                if ended.recv_timeout(REDRAW_INTERVAL) != Err(RecvTimeoutError::Timeout) {
                    return bar.finish_and_clear();
                }
            }
        });
        Self(Some((end, drawer)))
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some((end, drawer)) = self.0.take() {
            drop(end);
            // The thread only draws: a panic in it must not lose the report.
            let _ = drawer.join();
        }
    }
}

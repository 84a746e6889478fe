//! A line on the terminal that says how a run goes; silent when standard error is no terminal.

use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;
use uringfs_lab::report;
use uringfs_lab::run::Live;

/// The line; it goes away with this.
pub struct Progress(Option<(Sender<()>, JoinHandle<()>)>);

impl Progress {
    /// Shows `live`, if there is a terminal to show it on.
    pub fn start(live: &Arc<Live>) -> Self {
        if !std::io::stderr().is_terminal() {
            return Self(None);
        }
        let live = Arc::clone(live);
        let (end, ended) = channel();
        // A thread of its own: those that run jobs only leave their figures where it looks.
        let drawer = std::thread::spawn(move || {
            // As often as there are new figures.
            const REDRAW_INTERVAL: Duration = Duration::from_millis(500);
            const BAR_LENGTH: u64 = 1000;
            let bar = ProgressBar::new(BAR_LENGTH);
            let style = ProgressStyle::with_template("{spinner} [{bar:20}] {wide_msg}");
            bar.set_style(style.expect("a template that is constant"));
            loop {
                let now = live.now();
                let share = now.estimate.map_or(0.0, |estimate| estimate.share);
                bar.set_position((share * BAR_LENGTH as f64) as u64);
                bar.set_message(report::progress(&now));
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
            // It only draws: whatever it may have died of is no reason to lose a report.
            let _ = drawer.join();
        }
    }
}

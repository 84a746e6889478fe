//! The progress line of work on a known number of bytes: percent, rate, and time left. Draws nothing if standard error
//! is not a terminal, and with `-q`.

use super::quiet::QuietOptions;
use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal;

/// The progress line; dropping it clears the line.
pub struct ByteProgress(ProgressBar);

impl ByteProgress {
    pub fn start(total_bytes: u64, quiet: QuietOptions) -> Self {
        Self(if is_drawn(quiet) { bar(total_bytes) } else { ProgressBar::hidden() })
    }

    /// Counts bytes as done.
    pub fn add(&self, bytes: u64) {
        self.0.inc(bytes);
    }
}

impl Drop for ByteProgress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

/// Whether progress is drawn.
pub fn is_drawn(quiet: QuietOptions) -> bool {
    !quiet.is_on() && std::io::stderr().is_terminal()
}

/// A line with percent, rate, time left, and a message.
pub fn bar(total_bytes: u64) -> ProgressBar {
    let style = "{spinner} {percent:>3}% of {total_bytes}, {bytes_per_sec}, {eta} left  {wide_msg}";
    let style = ProgressStyle::with_template(style).expect("the template is a constant");
    ProgressBar::new(total_bytes).with_style(style)
}

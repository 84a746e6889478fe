//! A line on the terminal that says what is being done; silent when standard error is no terminal.

use indicatif::ProgressBar;
use std::io::IsTerminal;
use std::time::Duration;

/// The line; it goes away with this.
pub struct Progress(Option<ProgressBar>);

impl Progress {
    /// A line, if there is a terminal to show it on.
    pub fn new() -> Self {
        const TICK: Duration = Duration::from_millis(250);
        Self(std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new_spinner();
            bar.enable_steady_tick(TICK);
            bar
        }))
    }

    /// What is being done now.
    pub fn say(&self, what: &str) {
        if let Some(bar) = &self.0 {
            bar.set_message(what.to_owned());
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}

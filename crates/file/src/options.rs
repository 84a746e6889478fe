//! The switches of direct I/O.

use uringfs_reactor::on_off;

/// How a file moves bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileOptions {
    /// `direct.simple_read`: small reads inside one extent go out as one
    /// request, without a task.
    pub simple_read: bool,
}

impl Default for FileOptions {
    fn default() -> FileOptions {
        FileOptions { simple_read: true }
    }
}

impl FileOptions {
    /// Sets a switch by its dotted name. `Ok(false)` when the name is not one of these.
    ///
    /// # Errors
    /// Which values the switch takes.
    pub fn set(&mut self, name: &str, value: &str) -> Result<bool, String> {
        match name {
            "direct.simple_read" => self.simple_read = on_off(name, value)?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// The names that [`Self::set`] knows, with their values.
    pub const SWITCHES: &'static [(&'static str, &'static str)] =
        &[("direct.simple_read", "on or off")];
}

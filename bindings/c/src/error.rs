//! Errors as C gets them: a negative errno as the result, and the text of the thread's last failure.

use std::borrow::Cow;
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char};
use std::io;

use uringfs::{Errno, Error};

/// Names of the library in its messages, and what a program in C writes.
const IN_C: [(&str, &str); 11] = [
    ("`Volume::create`", "uringfs_volume_create"),
    ("`Volume::open`", "uringfs_volume_open"),
    ("`FormatOptions::overwrite`", "URINGFS_FORMAT_OVERWRITE"),
    ("`FormatOptions::size`", "the bytes of uringfs_format_options"),
    ("`.read(true)`", "URINGFS_OPEN_READ"),
    ("`.write(true)`", "URINGFS_OPEN_WRITE"),
    ("use a clone of that handle", "use that handle"),
    ("await or reap", "reap"),
    ("(a clone, or the one whose `as_async` was called)", "(a directory that is being listed)"),
    ("(clones, or those whose `as_async` was called)", "(directories that are being listed)"),
    ("alive: drop", "open: close"),
];

/// A call that fails: the errno that it returns, one word. To make one sets the thread's text, so none is made and
/// dropped.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Failure(Errno);

impl Failure {
    /// With a text that needs no memory, for failures that a loop meets often.
    #[cold]
    pub(crate) fn fixed(errno: Errno, text: &'static CStr) -> Failure {
        Failure::with(errno, Cow::Borrowed(text))
    }

    /// With a text that may be the library's: what it names gets its name in C.
    #[cold]
    pub(crate) fn new(errno: Errno, text: impl Into<String>) -> Failure {
        let text = IN_C.iter().fold(text.into(), |text, (rust, c)| text.replace(rust, c));
        let mut text = text.into_bytes();
        text.retain(|byte| *byte != 0);
        let text = CString::new(text).expect("its zeros were removed");
        Failure::with(errno, Cow::Owned(text))
    }

    /// An argument that breaks the rules of its function.
    #[cold]
    pub(crate) fn argument(text: &'static CStr) -> Failure {
        Failure::fixed(Errno::INVAL, text)
    }

    /// An operation on a file's data that failed.
    #[cold]
    pub(crate) fn of_file(doing: &str, errno: Errno) -> Failure {
        Failure::new(errno, format!("{doing}: {}", Error::from(errno)))
    }

    fn with(errno: Errno, text: Cow<'static, CStr>) -> Failure {
        // Without effect in a thread that is ending and has dropped its text.
        let _ = LAST_ERROR.try_with(|last| last.replace(text));
        Failure(errno)
    }

    /// The negative errno.
    #[inline(always)]
    pub(crate) fn status(self) -> i32 {
        -self.0.raw_os_error()
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure::new(error.errno(), error.to_string())
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        Failure::from(Error::from(error))
    }
}

thread_local! {
    static LAST_ERROR: RefCell<Cow<'static, CStr>> = const { RefCell::new(Cow::Borrowed(c"no call has failed")) };
}

/// The text of the last call of this library that failed in this thread: one line that says what happened, to what, and
/// what to do. It is also set by a uringfs_queue_reads or uringfs_queue_writes that queues fewer than it is asked to.
/// Other calls that succeed do not change it, and operations that complete with an error do not set it. Valid until the
/// next failure in this thread, and until the thread ends. Never NULL.
#[unsafe(no_mangle)]
pub extern "C" fn uringfs_error_text() -> *const c_char {
    LAST_ERROR.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"the thread is ending".as_ptr())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::{Path, PathBuf};

    use super::*;

    /// Names of Rust in texts that no call of C returns: of a warning, and of a check.
    const NOT_IN_C: [&str; 3] = ["`turn`", "`reap`", "`Volume::check`"];

    /// The lines of code in the sources below a folder.
    fn code_below(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        let lines = |path: PathBuf| match path.is_dir() {
            true => code_below(&path),
            false => fs::read_to_string(path).unwrap().lines().map(str::to_owned).collect(),
        };
        entries.flat_map(lines).filter(|line| !line.trim_start().starts_with("//")).collect()
    }

    #[test]
    fn each_name_of_rust_in_a_text_of_the_library_has_one_in_c() {
        let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../crates");
        let code: Vec<_> = ["device", "reactor", "volume"]
            .iter()
            .flat_map(|name| code_below(&crates.join(name).join("src")))
            .collect();
        for line in &code {
            // Commands to run have spaces, and values come from arguments.
            let names =
                line.split('`').skip(1).step_by(2).filter(|name| !name.contains([' ', '{']));
            for name in names.map(|name| format!("`{name}`")) {
                let is_known = IN_C.iter().any(|(rust, _)| rust.contains(&name));
                assert!(is_known || NOT_IN_C.contains(&&*name), "add {name} to IN_C: {line}");
            }
        }
        for (rust, _) in IN_C {
            assert!(code.iter().any(|line| line.contains(rust)), "no text has {rust:?}");
        }
    }

    #[test]
    fn a_text_has_no_zeros() {
        let failure = Failure::new(Errno::NOENT, "a\0b");
        assert_eq!(failure.status(), -2);
        let last = LAST_ERROR.with(|last| last.borrow().clone().into_owned());
        assert_eq!(last.as_c_str(), c"ab");
    }
}

//! Reads of many ranges into one buffer, with many in flight.

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyEOFError, PyValueError};
use pyo3::prelude::*;
use uringfs::buffer::MAX_LENGTH;
use uringfs::{Completion, Errno, File, Reactor, Token, Tokens};

use crate::guard::catch;
use crate::handle::Handle;
use crate::memory::Memory;
use crate::thread_reactor::{MAX_PANICS, settle, thread_reactor};

/// The ranges of a call; each goes behind the one before in the target.
pub(crate) struct Ranges {
    offsets: Vec<u64>,
    lengths: Lengths,
}

enum Lengths {
    Equal(usize),
    Each(Vec<u64>),
}

/// One range, and where it goes.
struct Range {
    offset: u64,
    length: usize,
    target: usize,
}

/// Why the ranges were not read.
#[derive(Debug)]
pub(crate) enum Failure {
    Errno(Errno),
    /// This range ends beyond the end of the file.
    EndOfFile(u64),
}

impl Failure {
    pub(crate) fn into_error(self, handle: &Handle) -> PyErr {
        match self {
            Failure::Errno(errno) => handle.error(errno),
            Failure::EndOfFile(number) => PyEOFError::new_err(format!(
                "range {number} ends beyond the end of {}",
                handle.path().display()
            )),
        }
    }
}

impl From<Errno> for Failure {
    fn from(errno: Errno) -> Failure {
        Failure::Errno(errno)
    }
}

impl Ranges {
    /// From sequences or arrays of integers; one length stands for all.
    ///
    /// # Errors
    /// ValueError when there are not as many lengths as offsets, or a length is over 1 GiB.
    pub(crate) fn new(offsets: &Bound<'_, PyAny>, lengths: &Bound<'_, PyAny>) -> PyResult<Ranges> {
        let offsets = integers(offsets)?;
        let lengths = match lengths.extract::<u64>() {
            Ok(length) => Lengths::Equal(request_length(length)?),
            Err(_) => {
                let lengths = integers(lengths)?;
                if lengths.len() != offsets.len() {
                    let (given, wanted) = (lengths.len(), offsets.len());
                    let what = format!("there are {wanted} offsets and {given} lengths");
                    return Err(PyValueError::new_err(what));
                }
                for length in &lengths {
                    request_length(*length)?;
                }
                Lengths::Each(lengths)
            }
        };
        Ok(Ranges { offsets, lengths })
    }

    /// The bytes of all ranges.
    pub(crate) fn total(&self) -> usize {
        match &self.lengths {
            Lengths::Equal(length) => length.saturating_mul(self.offsets.len()),
            Lengths::Each(lengths) => {
                lengths.iter().fold(0, |total, length| total.saturating_add(*length as usize))
            }
        }
    }

    /// Reads all ranges into the memory, at most `depth` at a time.
    ///
    /// # Errors
    /// The first that a read has; the others have ended.
    pub(crate) fn read(&self, file: &File, memory: &Memory, depth: usize) -> Result<(), Failure> {
        let Ok(reactor) = thread_reactor() else { return self.read_one_by_one(file, memory) };
        let mut in_flight =
            InFlight { reactor: &reactor, file, memory, left: 0, ended: Vec::new() };
        let read = self.read_on(&mut in_flight, depth);
        drop(in_flight);
        settle(&reactor);
        read
    }

    fn read_on(&self, in_flight: &mut InFlight<'_>, depth: usize) -> Result<(), Failure> {
        let mut target = 0;
        for (number, offset) in (0..).zip(&self.offsets) {
            let length = self.length(number);
            let range = Range { offset: *offset, length, target };
            target += length;
            while in_flight.left >= depth {
                self.check_ended(in_flight)?;
            }
            while !in_flight.begin(number as u64, &range)? {
                self.check_ended(in_flight)?;
            }
        }
        while in_flight.left > 0 {
            self.check_ended(in_flight)?;
        }
        Ok(())
    }

    fn length(&self, number: usize) -> usize {
        match &self.lengths {
            Lengths::Equal(length) => *length,
            Lengths::Each(lengths) => lengths[number] as usize,
        }
    }

    /// Waits for at least one read, and checks those that have ended.
    fn check_ended(&self, in_flight: &mut InFlight<'_>) -> Result<(), Failure> {
        in_flight.reap(1)?;
        for completion in in_flight.ended.drain(..) {
            let number = completion.token().get();
            if completion.result()? < self.length(number as usize) as u64 {
                return Err(Failure::EndOfFile(number));
            }
        }
        Ok(())
    }

    /// For a process without a file descriptor for a reactor.
    fn read_one_by_one(&self, file: &File, memory: &Memory) -> Result<(), Failure> {
        let mut target = 0;
        for (number, offset) in (0..).zip(&self.offsets) {
            let length = self.length(number);
            let (read, _) = file.read_at(memory.lend(target, length), *offset).wait();
            if read? < length {
                return Err(Failure::EndOfFile(number as u64));
            }
            target += length;
        }
        Ok(())
    }
}

struct InFlight<'a> {
    reactor: &'a Reactor,
    file: &'a File,
    memory: &'a Memory,
    /// Reads that have begun and not ended.
    left: usize,
    ended: Vec<Completion>,
}

impl InFlight<'_> {
    /// False if something has to end before.
    fn begin(&mut self, number: u64, range: &Range) -> Result<bool, Errno> {
        let buffer = self.memory.lend(range.target, range.length);
        match self.reactor.read_at(self.file, buffer, range.offset, Token::new(number)) {
            Ok(()) => {
                self.left += 1;
                Ok(true)
            }
            Err(refused) if refused.error == Errno::AGAIN && self.left > 0 => Ok(false),
            Err(refused) => Err(refused.error),
        }
    }

    fn reap(&mut self, min: usize) -> Result<(), Errno> {
        // The wait runs other operations of the thread, too. If one of them panics, the wait goes on.
        let mut waits = (0..MAX_PANICS).map(|_| {
            let waited = catch(|| self.reactor.reap(min, None, &mut self.ended));
            waited.or((!self.ended.is_empty()).then_some(Ok(())))
        });
        let waited = waits.find_map(|waited| waited);
        drop(waits);
        waited.unwrap_or_else(|| self.reactor.reap(min, None, &mut self.ended))?;
        self.left -= self.ended.len();
        Ok(())
    }
}

impl Drop for InFlight<'_> {
    /// Waits for the reads that are left after a failure: the next call must not find them.
    fn drop(&mut self) {
        // A wait that panicked may have found some.
        self.left -= self.ended.len();
        self.ended.clear();
        // If the reactor takes no requests at all, or only panics, nothing can be done.
        while self.left > 0 && catch(|| self.reap(self.left)) == Some(Ok(())) {
            self.ended.clear();
        }
    }
}

/// Integers of a sequence, or of an array of 64 bits.
fn integers(object: &Bound<'_, PyAny>) -> PyResult<Vec<u64>> {
    if let Ok(array) = PyBuffer::<u64>::get(object) {
        return array.to_vec(object.py());
    }
    if let Ok(array) = PyBuffer::<i64>::get(object) {
        let signed = array.to_vec(object.py())?;
        let unsigned = signed.into_iter().map(u64::try_from).collect::<Result<_, _>>();
        return unsigned.map_err(|_| PyValueError::new_err("a range begins or ends below 0"));
    }
    object.extract()
}

fn request_length(length: u64) -> PyResult<usize> {
    match usize::try_from(length) {
        Ok(length) if length <= MAX_LENGTH => Ok(length),
        _ => Err(PyValueError::new_err(format!("a range of {length} bytes is over 1 GiB"))),
    }
}

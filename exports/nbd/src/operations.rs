//! Requests on a file.

use uringfs::file::{Advice, FallocateSize};
use uringfs::{Buffer, Errno, File};
use uringfs_nbd_protocol::transmission::{Extent, extent_flags};

/// The most extents in one reply.
pub(crate) const MAX_EXTENTS: usize = 1024;
/// How much is zeroed at a time, so that the rest of the thread's work goes on, and a stop is not held up.
const MAX_ZEROED: u64 = 64 << 20;
/// The same where the zeros are written.
const MAX_ZEROS_WRITTEN: u64 = 1 << 20;

/// Reads the whole of `data` at `offset`.
pub(crate) async fn read(file: &File, data: Buffer, offset: u64) -> (Result<(), Errno>, Buffer) {
    let length = data.len();
    let (read, data) = file.read_at(data, offset).await;
    match read {
        Ok(read) if read == length => (Ok(()), data),
        Ok(read) => read_rest(file, data, offset, read).await,
        Err(errno) => (Err(errno), data),
    }
}

/// Reads what a short read has left.
async fn read_rest(
    file: &File,
    mut data: Buffer,
    offset: u64,
    mut done: usize,
) -> (Result<(), Errno>, Buffer) {
    while done < data.len() {
        let tail = data.split_off(done);
        let (read, tail) = file.read_at(tail, offset + done as u64).await;
        data.join(tail).expect("it is of this buffer");
        match read {
            // The file has become shorter meanwhile.
            Ok(0) => return (Err(Errno::IO), data),
            Ok(read) => done += read,
            Err(errno) => return (Err(errno), data),
        }
    }
    (Ok(()), data)
}

/// Writes the whole of `data` at `offset`.
pub(crate) async fn write(
    file: &File,
    mut data: Buffer,
    mut offset: u64,
    durable: bool,
) -> Result<(), Errno> {
    while !data.is_empty() {
        let (written, mut back) = match durable {
            true => file.write_durably(data, offset).await,
            false => file.write_at(data, offset).await,
        };
        match written? {
            0 => return Err(Errno::NOSPC),
            written => {
                data = back.split_off(written);
                offset += written as u64;
            }
        }
    }
    Ok(())
}

/// Gives up the content of a range. Does nothing where the device cannot.
pub(crate) async fn trim(file: &File, offset: u64, length: u64) -> Result<(), Errno> {
    match file.discard(offset, length).await {
        Err(Errno::OPNOTSUPP) => Ok(()),
        trimmed => trimmed,
    }
}

/// Reads a range into the cache.
pub(crate) async fn cache(file: &File, offset: u64, length: u64) -> Result<(), Errno> {
    file.advise(Advice::WillNeed, offset, length).await
}

/// Makes a range read as zeros: by a hole if `hole`. If `fast`, only if that is faster than to write them.
///
/// # Errors
/// ESHUTDOWN once `goes_on` says no. Part of the range may read as zeros then.
pub(crate) async fn write_zeroes(
    file: &File,
    offset: u64,
    length: u64,
    hole: bool,
    fast: bool,
    goes_on: impl AsyncFn() -> bool,
) -> Result<(), Errno> {
    let zeroed = match hole {
        true => file.punch_hole(offset, length).await,
        false => file.zero_range(offset, length, FallocateSize::Keep).await,
    };
    match zeroed {
        // It is an image or a device, not a file of a volume.
        Err(Errno::OPNOTSUPP) => {}
        zeroed => return zeroed,
    }
    let max = match file.geometry().write_zeroes {
        true => MAX_ZEROED,
        false if fast => return Err(Errno::OPNOTSUPP),
        false => MAX_ZEROS_WRITTEN,
    };
    let mut done = 0;
    while done < length {
        if !goes_on().await {
            return Err(Errno::SHUTDOWN);
        }
        let part = (length - done).min(max);
        file.write_zeroes(offset + done, part).await?;
        done += part;
    }
    Ok(())
}

/// The extents of a range, of which the first begins with it. At most `max`; the rest of the range is asked for again.
pub(crate) fn extents(file: &File, offset: u64, length: u64, max: usize) -> Vec<Extent> {
    let end = offset + length;
    let (mut at, mut extents) = (offset, Vec::new());
    while at < end && extents.len() < max.min(MAX_EXTENTS) {
        let data = file.find_data(at..end).unwrap_or(end);
        let (until, flags) = match data > at {
            true => (data, extent_flags::HOLE | extent_flags::ZERO),
            false => (file.find_hole(at..end).unwrap_or(end), 0),
        };
        // A file that changes meanwhile has no state here.
        if until <= at {
            break;
        }
        extents.push(Extent { length: ((until - at) as u32).into(), flags: flags.into() });
        at = until;
    }
    if extents.is_empty() {
        extents.push(Extent { length: (length as u32).into(), flags: 0.into() });
    }
    extents
}

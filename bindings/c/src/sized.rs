//! Structs that carry their size, so that they may grow at their end: a program that was built for an older library
//! passes less, one that was built for a newer library more.

use std::ffi::CStr;
use std::mem::size_of;
use std::ptr;

use uringfs::Errno;
use zerocopy::FromZeros;

use crate::error::Failure;

/// No struct is larger: what claims to be is no size.
const MAX_SIZE: usize = 4096;

/// A struct whose first field, of 32 bits, is its size in bytes. All other fields are 0 by default.
///
/// # Safety
/// The struct is `repr(C)`, its first field is a `u32`, and it has no padding.
pub(crate) unsafe trait Growing: FromZeros + Copy {
    /// Its size in the first version that had it.
    const FIRST_SIZE: usize;
}

/// The options at `pointer`, or the defaults for NULL. Fields that the caller's struct lacks are 0.
pub(crate) fn read<T: Growing>(pointer: *const T) -> Result<T, Failure> {
    let mut options = T::new_zeroed();
    if pointer.is_null() {
        return Ok(options);
    }
    let size = checked_size(pointer)?;
    for at in size_of::<T>()..size {
        // SAFETY: the caller's struct has `size` bytes.
        let byte = unsafe { pointer.cast::<u8>().add(at) };
        // SAFETY: as above; the program that filled the struct has initialized it.
        if unsafe { byte.read() } != 0 {
            return Err(Failure::fixed(
                Errno::TOOBIG,
                c"an option is set that this version of the library does not know: use a newer library",
            ));
        }
    }
    // SAFETY: both sides have so many bytes, and any bytes are values of the fields, which are numbers and addresses.
    unsafe {
        ptr::copy_nonoverlapping(
            pointer.cast::<u8>(),
            ptr::from_mut(&mut options).cast(),
            size.min(size_of::<T>()),
        )
    };
    Ok(options)
}

/// Fills the struct at `pointer`, whose size the caller has set. Fields that this library does not know become 0.
pub(crate) fn write<T: Growing>(pointer: *mut T, value: T) -> Result<(), Failure> {
    if pointer.is_null() {
        return Err(Failure::argument(c"the struct for the result is NULL"));
    }
    let size = checked_size(pointer)?;
    let head = size_of::<u32>();
    let known = size.min(size_of::<T>()) - head;
    // SAFETY: behind the size, inside the caller's struct.
    let target = unsafe { pointer.cast::<u8>().add(head) };
    // SAFETY: the caller's struct has `size` bytes.
    unsafe { ptr::write_bytes(target, 0, size - head) };
    // SAFETY: inside `value`.
    let source = unsafe { ptr::from_ref(&value).cast::<u8>().add(head) };
    // SAFETY: both sides have so many bytes.
    unsafe { ptr::copy_nonoverlapping(source, target, known) };
    Ok(())
}

/// The size that the caller has set.
fn checked_size<T: Growing>(pointer: *const T) -> Result<usize, Failure> {
    // SAFETY: the first field of the caller's struct, which has at least that.
    let size = unsafe { pointer.cast::<u32>().read() } as usize;
    match size {
        0 => {
            Err(Failure::argument(c"the field size of a struct is 0: set it to sizeof the struct"))
        }
        size if size < T::FIRST_SIZE => Err(Failure::argument(
            c"the field size of a struct is too small: set it to sizeof the struct",
        )),
        size if size > MAX_SIZE => {
            let text = c"the field size of a struct is over 4096: set it to sizeof the struct";
            Err(Failure::fixed(Errno::TOOBIG, text))
        }
        size => Ok(size),
    }
}

/// Refuses flags that this version does not know.
pub(crate) fn check_flags(flags: u32, known: u32, text: &'static CStr) -> Result<(), Failure> {
    if flags & !known == 0 { Ok(()) } else { Err(Failure::argument(text)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A struct in its second version.
    #[derive(Clone, Copy, Debug, PartialEq, FromZeros)]
    #[repr(C)]
    struct Options {
        size: u32,
        first: u32,
        second: u64,
    }

    // SAFETY: its fields leave no padding.
    unsafe impl Growing for Options {
        const FIRST_SIZE: usize = 8;
    }

    /// As a program passes it that was built for a newer library.
    #[repr(C)]
    struct Newer {
        known: Options,
        third: u64,
    }

    fn read_newer(size: u32, third: u64) -> Result<Options, i32> {
        let newer = Newer { known: Options { size, first: 1, second: 2 }, third };
        read(ptr::from_ref(&newer).cast::<Options>()).map_err(Failure::status)
    }

    #[test]
    fn options_of_any_version_are_read() {
        let of_size = |size, second| Ok(Options { size, first: 1, second });
        assert_eq!(read_newer(8, 7), of_size(8, 0), "of the first version");
        assert_eq!(read_newer(16, 7), of_size(16, 2), "of this version");
        assert_eq!(read_newer(24, 0), of_size(24, 2), "of a newer version, without its options");
        assert_eq!(read(ptr::null::<Options>()).unwrap(), Options { size: 0, first: 0, second: 0 });
    }

    #[test]
    fn wrong_sizes_and_unknown_options_are_refused() {
        let (invalid, too_big) = (-Errno::INVAL.raw_os_error(), -Errno::TOOBIG.raw_os_error());
        assert_eq!(read_newer(0, 0), Err(invalid));
        assert_eq!(read_newer(7, 0), Err(invalid));
        assert_eq!(read_newer(24, 1), Err(too_big));
        assert_eq!(read_newer(24, 1 << 63), Err(too_big));
        assert_eq!(read_newer(4097, 0), Err(too_big));
    }

    #[test]
    fn results_fit_the_callers_version() {
        let result = Options { size: 0, first: 1, second: 2 };
        for (size, expected) in [(8, (1, 9, 9)), (16, (1, 2, 9)), (24, (1, 2, 0))] {
            let mut newer = Newer { known: Options { size, first: 9, second: 9 }, third: 9 };
            write(ptr::from_mut(&mut newer).cast::<Options>(), result).unwrap();
            assert_eq!(newer.known.size, size);
            assert_eq!((newer.known.first, newer.known.second, newer.third), expected);
        }
        let mut small = Options { size: 4, first: 9, second: 9 };
        assert_eq!(write(&mut small, result).unwrap_err().status(), -Errno::INVAL.raw_os_error());
        assert!(write(ptr::null_mut(), result).is_err());
    }
}

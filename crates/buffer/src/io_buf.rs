//! Memory of other types as [`Buffer`]s: [`IoBuf`] for writes, [`IoBufMut`] for reads. The value moves into the
//! region of a `Buffer`, so that requests carry nothing else, and comes back at the end.

use std::ptr::NonNull;
use std::sync::Arc;

use crate::buffer::{Buffer, MAX_LENGTH};
use crate::region::{Region, RegionId};

/// Memory whose bytes a write can take: [`Buffer`], `Vec<u8>`, `Box<[u8]>`, `Box<[u8; N]>`, `String`, `Arc<[u8]>`,
/// `&'static` bytes and text, and with the feature `bytes` the types of that crate. An operation owns the value until it
/// ends, and gives it back. An array by itself is not in the list: it has another address after each move.
///
/// # Safety
/// The operation moves the value, and may drop it in another thread. While it owns the value, [`Self::io_bytes`] must
/// keep address, length and content, and any thread may read them. Only the documented methods may be implemented.
#[diagnostic::on_unimplemented(
    message = "an operation cannot write from `{Self}`: pass a `Buffer`, `Vec<u8>` or `Box<[u8]>`",
    label = "an operation owns its memory until it ends",
    note = "`Buffer::copy_of` copies borrowed bytes"
)]
pub unsafe trait IoBuf: Send + Sized + 'static {
    /// The bytes.
    fn io_bytes(&self) -> &[u8];

    /// A value in place of one that is lost: that of an operation that was given up while the kernel had its memory, or
    /// that belongs to the parent of this process.
    fn lost() -> Self;

    #[doc(hidden)]
    fn lend_for_write(self) -> Result<Buffer, TooLong> {
        let bytes = |value: &mut Self| NonNull::from(value.io_bytes());
        Loan { value: self, set_length: None }.into_buffer(RegionId::READ_ONLY, bytes)
    }

    #[doc(hidden)]
    fn take_back(buffer: Buffer, read: usize) -> Self {
        Loan::end(buffer, read)
    }
}

/// Memory that a read can fill: [`Buffer`], `Vec<u8>`, `Box<[u8]>`, `Box<[u8; N]>`, and with the feature `bytes`
/// `BytesMut`.
///
/// The operation owns the value, so borrowed memory does not compile:
///
/// ```compile_fail,E0277
/// # use uringfs_buffer as uringfs;
/// fn read_into(memory: impl uringfs::IoBufMut) {}
/// let mut bytes = [0; 4096];
/// read_into(&mut bytes); // Instead: vec![0; 4096], Box::new(bytes), Buffer::zeroed(4096).
/// ```
///
/// # Safety
/// As for [`IoBuf`], of the bytes that [`Self::io_bytes_mut`] returns. They must have no other owner.
#[diagnostic::on_unimplemented(
    message = "an operation cannot read into `{Self}`: pass a `Buffer`, `Vec<u8>` or `Box<[u8]>`",
    label = "an operation owns its memory until it ends",
    note = "`Buffer::copy_of` copies borrowed bytes"
)]
pub unsafe trait IoBufMut: IoBuf {
    /// All bytes that a read may fill, each initialized. A `Vec` gives its whole capacity, and fills the spare part
    /// with zeros first.
    fn io_bytes_mut(&mut self) -> &mut [u8];

    /// Makes the first `length` of these bytes the content, where the type has a length. Called after a read with the
    /// bytes that were read, after an error with 0.
    fn set_io_length(&mut self, length: usize);

    #[doc(hidden)]
    fn lend_for_read(self) -> Result<Buffer, TooLong> {
        let bytes = |value: &mut Self| NonNull::from(value.io_bytes_mut());
        let loan = Loan { value: self, set_length: Some(Self::set_io_length) };
        loan.into_buffer(RegionId::NONE, bytes)
    }
}

/// The memory that an operation takes from its caller and gives back: one value, or several.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be the memory of an operation: pass a `Buffer`, `Vec<u8>` or `Box<[u8]>`",
    label = "an operation owns its memory until it ends"
)]
pub trait OpMemory: Sized {
    /// The value from its buffer, after a read of so many bytes.
    fn from_buffer(buffer: Buffer, read: usize) -> Self;

    /// The values from their buffers, after a read of so many bytes in all.
    fn from_buffers(buffers: Vec<Buffer>, read: usize) -> Self;

    /// A value in place of lost memory.
    fn lost() -> Self;
}

impl<B: IoBuf> OpMemory for B {
    #[inline]
    fn from_buffer(buffer: Buffer, read: usize) -> B {
        B::take_back(buffer, read)
    }

    fn from_buffers(buffers: Vec<Buffer>, _read: usize) -> B {
        unreachable!("one value went in, {} came out", buffers.len())
    }

    fn lost() -> B {
        <B as IoBuf>::lost()
    }
}

impl<B: IoBuf> OpMemory for Vec<B> {
    fn from_buffer(buffer: Buffer, _read: usize) -> Vec<B> {
        unreachable!("several values went in, {buffer:?} came out")
    }

    fn from_buffers(buffers: Vec<Buffer>, mut read: usize) -> Vec<B> {
        let take_back = |buffer: Buffer| {
            let own = read.min(buffer.len());
            read -= own;
            B::take_back(buffer, own)
        };
        buffers.into_iter().map(take_back).collect()
    }

    fn lost() -> Vec<B> {
        Vec::new()
    }
}

/// A value over [`MAX_LENGTH`], in a buffer of no bytes.
#[derive(Debug)]
pub struct TooLong(pub Buffer);

/// A value in the region of a buffer.
struct Loan<B> {
    value: B,
    /// It is called with the number of bytes read. `None` for a write.
    set_length: Option<fn(&mut B, usize)>,
}

impl<B: IoBuf> Loan<B> {
    fn into_buffer(
        self,
        id: RegionId,
        bytes: impl FnOnce(&mut B) -> NonNull<[u8]>,
    ) -> Result<Buffer, TooLong> {
        // The value moves into its box first: some types allow no use of a pointer from before a move.
        let mut loan = Box::new(self);
        let bytes = bytes(&mut loan.value);
        let is_too_long = bytes.len() > MAX_LENGTH;
        let length = if is_too_long { 0 } else { bytes.len() };
        let region = Region::of_value(bytes.cast(), length, id, loan);
        let buffer = Buffer::from_region(Arc::new(region), 0, length);
        if is_too_long { Err(TooLong(buffer)) } else { Ok(buffer) }
    }

    fn end(buffer: Buffer, read: usize) -> B {
        let loan = buffer.into_value().and_then(|value| value.downcast::<Loan<B>>().ok());
        // Without a loan, a request that was given up still has a part of the memory.
        let Some(loan) = loan else { return <B as IoBuf>::lost() };
        let Loan { mut value, set_length } = *loan;
        if let Some(set_length) = set_length {
            set_length(&mut value, read);
        }
        value
    }
}

// SAFETY: a buffer is the only owner of its bytes, which keep their address.
unsafe impl IoBuf for Buffer {
    fn io_bytes(&self) -> &[u8] {
        self
    }

    fn lost() -> Buffer {
        Buffer::zeroed(0)
    }

    #[inline(always)]
    fn lend_for_write(self) -> Result<Buffer, TooLong> {
        Ok(self)
    }

    #[inline(always)]
    fn take_back(buffer: Buffer, _read: usize) -> Buffer {
        buffer
    }
}

// SAFETY: as for `IoBuf`.
unsafe impl IoBufMut for Buffer {
    fn io_bytes_mut(&mut self) -> &mut [u8] {
        self
    }

    fn set_io_length(&mut self, _length: usize) {}

    #[inline(always)]
    fn lend_for_read(self) -> Result<Buffer, TooLong> {
        Ok(self)
    }
}

/// Types that dereference to bytes, which a write takes.
macro_rules! write_from {
    ($($type:ty $([$($generics:tt)*])?, $lost:expr;)*) => {$(
        // SAFETY: the bytes are on the heap or static, so they stay in place when the value moves. While it is owned
        // and not used, its type lets nobody else change them.
        unsafe impl $(<$($generics)*>)? IoBuf for $type {
            fn io_bytes(&self) -> &[u8] {
                self.as_ref()
            }

            fn lost() -> Self {
                $lost
            }
        }
    )*};
}

write_from! {
    Vec<u8>, Vec::new();
    Box<[u8]>, Box::default();
    Box<[u8; N]> [const N: usize], Box::new([0; N]);
    Arc<[u8]>, Arc::default();
    String, String::new();
    &'static str, "";
    &'static [u8], &[];
    &'static [u8; N] [const N: usize], &[0; N];
}

// SAFETY: the bytes are on the heap and have this owner only.
unsafe impl IoBufMut for Vec<u8> {
    fn io_bytes_mut(&mut self) -> &mut [u8] {
        self.resize(self.capacity(), 0);
        self
    }

    fn set_io_length(&mut self, length: usize) {
        self.truncate(length);
    }
}

// SAFETY: as above.
unsafe impl IoBufMut for Box<[u8]> {
    fn io_bytes_mut(&mut self) -> &mut [u8] {
        self
    }

    fn set_io_length(&mut self, _length: usize) {}
}

// SAFETY: as above.
unsafe impl<const N: usize> IoBufMut for Box<[u8; N]> {
    fn io_bytes_mut(&mut self) -> &mut [u8] {
        &mut **self
    }

    fn set_io_length(&mut self, _length: usize) {}
}

#[cfg(feature = "bytes")]
mod bytes_crate {
    use bytes::{Bytes, BytesMut};

    use super::{IoBuf, IoBufMut};

    write_from! {
        Bytes, Bytes::new();
        BytesMut, BytesMut::new();
    }

    // SAFETY: the bytes are on the heap. No other `BytesMut` of the same allocation reaches them.
    unsafe impl IoBufMut for BytesMut {
        fn io_bytes_mut(&mut self) -> &mut [u8] {
            self.resize(self.capacity(), 0);
            self
        }

        fn set_io_length(&mut self, length: usize) {
            self.truncate(length);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads `bytes` into a value's memory as an operation does.
    fn read_into<B: IoBufMut>(value: B, bytes: &[u8]) -> (usize, B) {
        let mut buffer = value.lend_for_read().unwrap();
        let room = buffer.len();
        buffer[..bytes.len()].copy_from_slice(bytes);
        (room, B::take_back(buffer, bytes.len()))
    }

    fn written_from<B: IoBuf>(value: B) -> (Vec<u8>, B) {
        let buffer = value.lend_for_write().unwrap();
        (buffer.to_vec(), B::take_back(buffer, 0))
    }

    #[test]
    fn a_vec_is_filled_up_to_its_capacity() {
        let mut value = Vec::with_capacity(64);
        value.extend([9; 50]);
        let (room, value) = read_into(value, &[1, 2, 3]);
        assert_eq!((room, &value[..]), (64, &[1, 2, 3][..]));
        let (room, value) = read_into(value, &[]);
        assert_eq!((room, value.len(), value.capacity()), (64, 0, 64));
        assert_eq!(read_into(Vec::new(), &[]), (0, Vec::new()));
    }

    #[test]
    fn boxes_keep_their_length() {
        let boxed: Box<[u8]> = vec![7; 5].into();
        assert_eq!(read_into(boxed, &[1, 2]), (5, vec![1, 2, 7, 7, 7].into()));
        assert_eq!(read_into(Box::new([7; 4]), &[1, 2]), (4, Box::new([1, 2, 7, 7])));
    }

    #[test]
    fn every_type_of_a_write_comes_back_as_it_was() {
        fn check<B: IoBuf + Clone + PartialEq + std::fmt::Debug>(value: B, bytes: &[u8]) {
            assert_eq!(written_from(value.clone()), (bytes.to_vec(), value));
        }
        check(vec![1, 2], &[1, 2]);
        check(Box::<[u8]>::from([1, 2]), &[1, 2]);
        check(Box::new([1, 2]), &[1, 2]);
        check(Arc::<[u8]>::from([1, 2]), &[1, 2]);
        check(String::from("text"), b"text");
        check("text", b"text");
        check(b"text", b"text");
        check(&b"text"[..], b"text");
        check("", b"");
    }

    #[cfg(feature = "bytes")]
    #[test]
    fn the_types_of_the_crate_bytes_are_memory() {
        use bytes::{Bytes, BytesMut};
        let whole = Bytes::from(vec![1, 2, 3, 4]);
        assert_eq!(written_from(whole.slice(1..3)), (vec![2, 3], whole.slice(1..3)));
        let mut first = BytesMut::with_capacity(32);
        first.extend_from_slice(b"headbody");
        let second = first.split_off(4);
        let (_, second) = read_into(second, b"BO");
        assert_eq!((&first[..], &second[..]), (&b"head"[..], &b"BO"[..]));
        let (room, first) = read_into(first, b"HEAD");
        assert_eq!((room, &first[..], &second[..]), (4, &b"HEAD"[..], &b"BO"[..]));
    }

    #[test]
    fn a_buffer_is_its_own_memory() {
        let buffer = Buffer::copy_of(&[7; 4096]);
        let address = buffer.pointer();
        let lent = buffer.lend_for_read().unwrap();
        let lent = Buffer::take_back(lent, 1).lend_for_write().unwrap();
        let back = Buffer::take_back(lent, 0);
        assert_eq!((back.pointer(), back.len()), (address, 4096));
    }

    #[test]
    fn memory_that_is_only_read_refuses_a_write() {
        let mut buffer = b"static".lend_for_write().unwrap();
        assert_eq!(&buffer[..], b"static");
        let written = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| buffer[0] = 0));
        assert!(written.is_err());
        assert_eq!(&buffer[..], b"static");
    }

    #[test]
    fn parts_join_before_the_value_comes_back() {
        let mut head = vec![1, 2, 3, 4].lend_for_read().unwrap();
        let mut tail = head.split_off(1);
        tail.fill(9);
        head.join(tail).unwrap();
        assert_eq!(Vec::take_back(head, 3), [1, 9, 9]);
        // A part that a request still has after it was given up keeps the memory.
        let mut head = vec![1, 2, 3, 4].lend_for_read().unwrap();
        let tail = head.split_off(2);
        assert_eq!(Vec::<u8>::take_back(head, 2), []);
        assert_eq!(&tail[..], [3, 4]);
    }

    #[test]
    fn several_values_get_their_part_of_a_read() {
        let values = [vec![0; 4], vec![0; 4], vec![0; 4]];
        let buffers = values.map(|value| value.lend_for_read().unwrap()).into();
        let values: Vec<Vec<u8>> = OpMemory::from_buffers(buffers, 6);
        assert_eq!(values, [vec![0; 4], vec![0; 2], vec![]]);
    }

    /// A value whose drop others see.
    struct Counted {
        _alive: Arc<()>,
    }

    // SAFETY: static bytes.
    unsafe impl IoBuf for Counted {
        fn io_bytes(&self) -> &[u8] {
            b"bytes"
        }

        fn lost() -> Counted {
            Counted { _alive: Arc::default() }
        }
    }

    #[test]
    fn the_value_is_dropped_with_its_last_part() {
        let alive = Arc::new(());
        let mut head = Counted { _alive: alive.clone() }.lend_for_write().unwrap();
        let tail = head.split_off(2);
        drop(head);
        assert_eq!(Arc::strong_count(&alive), 2);
        drop(tail);
        assert_eq!(Arc::strong_count(&alive), 1);
    }

    #[test]
    fn a_value_over_the_limit_comes_back_unused() {
        // The kernel backs the zeros by no memory.
        let long = vec![0; MAX_LENGTH + 1];
        let Err(TooLong(buffer)) = long.lend_for_write() else { panic!("it is over the limit") };
        assert!(buffer.is_empty());
        assert_eq!(Vec::<u8>::take_back(buffer, 0).len(), MAX_LENGTH + 1);
        assert_eq!(vec![0; MAX_LENGTH].lend_for_write().unwrap().len(), MAX_LENGTH);
    }
}

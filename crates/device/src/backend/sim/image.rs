//! The bytes of a simulated device at one moment. A copy shares all pages with
//! its original until one of them is written (copy-on-write): copying a device for
//! a crash costs one pointer for each MiB with written bytes.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hasher};
use std::sync::{Arc, OnceLock};

/// The size in bytes of the unit inside which a write never tears.
pub(super) const SECTOR: usize = 512;

const PAGE: usize = 4096;
const PAGES_PER_CHUNK: usize = 256;
const CHUNK: u64 = (PAGE * PAGES_PER_CHUNK) as u64;

#[derive(Clone)]
struct Page {
    bytes: [u8; PAGE],
    /// The cached digest of the bytes; 0 for zeros.
    digest: OnceLock<u64>,
}

impl Page {
    fn zeros() -> Page {
        Page { bytes: [0; PAGE], digest: OnceLock::new() }
    }

    fn bytes_mut(&mut self) -> &mut [u8; PAGE] {
        self.digest.take();
        &mut self.bytes
    }

    fn digest(&self) -> u64 {
        let of_bytes = || match self.bytes.iter().all(|byte| *byte == 0) {
            true => 0,
            false => digest_of(&self.bytes),
        };
        *self.digest.get_or_init(of_bytes)
    }
}

fn digest_of(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(bytes);
    hasher.finish()
}

/// The pages of one MiB; `None` for pages of zeros.
#[derive(Clone)]
struct Chunk([Option<Arc<Page>>; PAGES_PER_CHUNK]);

/// All bytes of a device; missing chunks are zeros.
#[derive(Clone, Default)]
pub(super) struct Image {
    chunks: BTreeMap<u64, Arc<Chunk>>,
}

/// Splits `address..address + length` at pages. Yields chunk, page, start in the page, and length.
fn split_at_pages(address: u64, length: u64) -> impl Iterator<Item = (u64, usize, usize, usize)> {
    let mut at = address;
    let end = address + length;
    std::iter::from_fn(move || {
        if at == end {
            return None;
        }
        let start = (at % PAGE as u64) as usize;
        let bytes = (end - at).min((PAGE - start) as u64) as usize;
        let part = (at / CHUNK, (at % CHUNK) as usize / PAGE, start, bytes);
        at += bytes as u64;
        Some(part)
    })
}

impl Image {
    pub(super) fn read(&self, address: u64, mut bytes: &mut [u8]) {
        for (chunk, page, start, length) in split_at_pages(address, bytes.len() as u64) {
            let (head, tail) = bytes.split_at_mut(length);
            match self.chunks.get(&chunk).and_then(|chunk| chunk.0[page].as_ref()) {
                Some(page) => head.copy_from_slice(&page.bytes[start..start + length]),
                None => head.fill(0),
            }
            bytes = tail;
        }
    }

    pub(super) fn write(&mut self, address: u64, mut bytes: &[u8]) {
        for (chunk, page, start, length) in split_at_pages(address, bytes.len() as u64) {
            let (head, tail) = bytes.split_at(length);
            let chunk = self
                .chunks
                .entry(chunk)
                .or_insert_with(|| Arc::new(Chunk([const { None }; PAGES_PER_CHUNK])));
            let page = Arc::make_mut(chunk).0[page].get_or_insert_with(|| Arc::new(Page::zeros()));
            Arc::make_mut(page).bytes_mut()[start..start + length].copy_from_slice(head);
            bytes = tail;
        }
    }

    pub(super) fn clear(&mut self, address: u64, length: u64) {
        let mut at = address;
        let end = address + length;
        while at < end {
            let whole = at.is_multiple_of(CHUNK) && end - at >= CHUNK;
            let stop = end.min((at / CHUNK + 1) * CHUNK);
            if whole {
                self.chunks.remove(&(at / CHUNK));
            } else if let Some(chunk) = self.chunks.get_mut(&(at / CHUNK)) {
                let chunk = Arc::make_mut(chunk);
                for (_, page, start, length) in split_at_pages(at, stop - at) {
                    if length == PAGE {
                        chunk.0[page] = None;
                    } else if let Some(page) = &mut chunk.0[page] {
                        Arc::make_mut(page).bytes_mut()[start..start + length].fill(0);
                    }
                }
            }
            at = stop;
        }
    }

    /// A digest of the content: unwritten bytes equal written zeros. Pages cache their digest, so pages that are
    /// shared with an already digested copy are not read again.
    pub(super) fn digest(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        for (number, chunk) in &self.chunks {
            for (page, digest) in chunk.0.iter().enumerate() {
                let digest = digest.as_ref().map_or(0, |page| page.digest());
                if digest != 0 {
                    hasher.write_u64(number * PAGES_PER_CHUNK as u64 + page as u64);
                    hasher.write_u64(digest);
                }
            }
        }
        hasher.finish()
    }

    pub(super) fn flip_bit(&mut self, address: u64, bit: u32) {
        let mut byte = [0];
        self.read(address, &mut byte);
        self.write(address, &[byte[0] ^ (1 << (bit % 8))]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(image: &Image, address: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0xee; length];
        image.read(address, &mut bytes);
        bytes
    }

    #[test]
    fn a_copy_does_not_see_later_writes() {
        let mut image = Image::default();
        image.write(CHUNK - 100, &[1; 200]);
        let copy = image.clone();
        image.write(CHUNK - 50, &[2; 100]);
        assert_eq!(read(&copy, CHUNK - 100, 200), [1; 200]);
        assert_eq!(read(&image, CHUNK - 50, 100), [2; 100]);
        assert_eq!(read(&image, CHUNK - 101, 2), [0, 1]);
    }

    #[test]
    fn clearing_leaves_neighbours_intact() {
        let mut image = Image::default();
        image.write(0, &vec![7; 3 * CHUNK as usize]);
        image.clear(CHUNK - 5000, CHUNK + 10_000);
        assert_eq!(read(&image, CHUNK - 5001, 2), [7, 0]);
        assert_eq!(read(&image, 2 * CHUNK + 4999, 2), [0, 7]);
        assert!(!image.chunks.contains_key(&1));
    }

    #[test]
    fn the_digest_depends_only_on_the_bytes() {
        let mut image = Image::default();
        let empty = image.digest();
        image.write(5000, &[7; 10_000]);
        let (written, copy) = (image.digest(), image.clone());
        assert_ne!(written, empty);
        image.write(6000, &[8]);
        assert_ne!(image.digest(), written);
        assert_eq!(copy.digest(), written);
        image.write(6000, &[7]);
        assert_eq!(image.digest(), written);
        image.write(5000, &[0; 10_000]);
        assert_eq!(image.digest(), empty);
        // The same bytes at another address are a different content.
        image.write(5000 + PAGE as u64, &[7; 10_000]);
        assert_ne!(image.digest(), written);
    }

    #[test]
    fn a_flipped_bit_flips_back() {
        let mut image = Image::default();
        image.flip_bit(10, 3);
        assert_eq!(read(&image, 10, 1), [8]);
        image.flip_bit(10, 3);
        assert_eq!(read(&image, 10, 1), [0]);
    }
}

//! The ghost: the keys of recently evicted folios, so that a folio that comes back soon is recognized.
//!
//! A table of 32-bit entries, sixteen to a bucket, which is a cache line. An entry is 16 bits of the key and the time
//! at which it was remembered. The clock counts remembered keys, not seconds, so old entries expire without a search.
//! The ghost may recognize a key that it never saw (about once in five thousand). It forgets the oldest entry of a
//! bucket early when unusually many keys fall into that bucket. Either error puts one folio into the wrong queue.

/// Entries in a bucket: one cache line.
const ENTRIES: usize = 16;

/// Ticks for which a key is remembered. The clock has 2^16 ticks, so an expired entry looks young again only if it
/// stays in its bucket for 255 further lifetimes.
const LIFETIME: u16 = 256;

#[derive(Debug)]
pub(super) struct Ghost {
    /// A power of two; the low bits of the key select one.
    buckets: Vec<Bucket>,
    /// A key is forgotten when this many keys have been remembered after it.
    length: u32,
    now: u16,
    /// The fraction of a tick, in units of 1/`length`.
    tick_fraction: u32,
}

/// An entry is 0 if empty. Else its high half is the key's top 16 bits (with 0 stored as 1), and its low half a time.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct Bucket([u32; ENTRIES]);

impl Ghost {
    /// A ghost that remembers a single key.
    pub(super) fn new() -> Ghost {
        Ghost { buckets: vec![Bucket([0; ENTRIES])], length: 1, now: 0, tick_fraction: 0 }
    }

    /// Grows the ghost to this many keys.
    pub(super) fn grow(&mut self, length: u32) {
        assert!(length >= self.length, "the ghost only grows");
        self.length = length;
        // An entry lacks the bit of the key that selects one of the two new buckets, so it is copied to both. The copy
        // that no look-up reaches expires.
        while self.buckets.len() * ENTRIES < length as usize {
            self.buckets.extend_from_within(..);
        }
    }

    /// Remembers the key of an evicted folio.
    pub(super) fn remember(&mut self, key: u64) {
        self.tick_fraction += u32::from(LIFETIME);
        self.now = self.now.wrapping_add((self.tick_fraction / self.length) as u16);
        self.tick_fraction %= self.length;

        let now = self.now;
        let bucket = self.bucket(key);
        // By age, empty ones first, and by index, in one word each: a loop without branches.
        let rank = |(index, entry): (usize, &u32)| {
            let age = u32::from(age(*entry, now)) | u32::from(*entry == 0) << 16;
            age * ENTRIES as u32 + index as u32
        };
        let oldest = bucket.iter().enumerate().map(rank).fold(0, u32::max);
        bucket[oldest as usize % ENTRIES] = fingerprint(key) << 16 | u32::from(now);
    }

    /// Whether this key is remembered. It is forgotten by this call.
    pub(super) fn recall(&mut self, key: u64) -> bool {
        let now = self.now;
        let (bucket, fingerprint) = (self.bucket(key), fingerprint(key));
        // Without a branch for each, as it is seldom there.
        if !bucket.iter().fold(false, |any, entry| any | (*entry >> 16 == fingerprint)) {
            return false;
        }
        let mut known = false;
        for entry in bucket {
            if *entry >> 16 == fingerprint {
                known |= age(*entry, now) < LIFETIME;
                *entry = 0;
            }
        }
        known
    }

    fn bucket(&mut self, key: u64) -> &mut [u32; ENTRIES] {
        let index = key as usize & (self.buckets.len() - 1);
        &mut self.buckets[index].0
    }
}

fn fingerprint(key: u64) -> u32 {
    ((key >> 48) as u32).max(1)
}

fn age(entry: u32, now: u16) -> u16 {
    now.wrapping_sub(entry as u16)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eviction::tests::hash;

    fn ghost(length: u32) -> Ghost {
        let mut ghost = Ghost::new();
        ghost.grow(length);
        ghost
    }

    #[test]
    fn a_key_is_recalled_once_and_only_within_the_length() {
        for length in [1, 2, 3, 7, 14, 16] {
            for after in 0..2 * u64::from(length) {
                let mut ghost = ghost(length);
                assert!(!ghost.recall(hash(0)));
                (0..=after).for_each(|key| ghost.remember(hash(key)));
                assert_eq!(ghost.recall(hash(0)), after < length.into(), "{after} of {length}");
                assert!(!ghost.recall(hash(0)), "the key was recalled before");
            }
        }
    }

    #[test]
    fn a_long_ghost_recalls_almost_all_keys_and_few_others() {
        const LENGTH: u64 = 100_000;
        let mut ghost = ghost(LENGTH as u32);
        (0..3 * LENGTH).for_each(|key| ghost.remember(hash(key)));
        let mut known =
            |keys: std::ops::Range<u64>| keys.filter(|key| ghost.recall(hash(*key))).count();
        let half = LENGTH / 2;
        assert!(known(5 * half..6 * half) > 49_900, "too many keys of the younger half are gone");
        assert!(known(4 * half..5 * half) > 45_000, "too many keys of the older half are gone");
        assert!(known(0..3 * half) < 100, "too many false hits");
    }

    #[test]
    fn growing_forgets_nothing() {
        let mut ghost = ghost(14);
        (0..14).for_each(|key| ghost.remember(hash(key)));
        for length in [15, 17, 100, 5000] {
            ghost.grow(length);
        }
        assert!((0..14).all(|key| ghost.recall(hash(key))));
        assert!((0..14).all(|key| !ghost.recall(hash(key))));
    }

    /// The worst length is one more than the table had entries.
    #[test]
    fn a_key_costs_at_most_eight_bytes() {
        for length in [16, 17, 1000, 4096, 4097, 1 << 20] {
            assert!(size_of_val(&*ghost(length).buckets) <= 8 * length as usize, "{length}");
        }
    }
}

//! The ghost: the keys of folios that have left, for a while, so that one that comes back soon is known.
//!
//! A table of 32-bit entries, sixteen to a bucket, which is a cache line. An entry is 16 bits of the key and
//! the time at which it was remembered, counted not in seconds but in what has been remembered since: so
//! old ones need not be sought and taken out. It may take a stranger for one it knows (about once in five
//! thousand), and it forgets the oldest of a bucket early when more of its keys than usual fall into it:
//! either costs one folio a place in the wrong queue.

/// Entries to a bucket: as many as fill a cache line.
const ENTRIES: usize = 16;

/// The ghost's time from when a key is remembered until it is forgotten. Of 2^16, so that a key whose bucket
/// never filled up in 255 times as long would be needed for one to look young again.
const LIFE: u16 = 256;

#[derive(Debug)]
pub(super) struct Ghost {
    /// A power of two of them; the low bits of the key say which.
    buckets: Vec<Bucket>,
    /// Each key is forgotten when so many have been remembered after it.
    length: u32,
    now: u16,
    /// What is left of the time that did not make a whole tick: of `length`.
    rest: u32,
}

/// Each entry is empty (0), or the key's top 16 bits (0 stands as 1), and in the low half a time.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct Bucket([u32; ENTRIES]);

impl Ghost {
    /// One that remembers a single key.
    pub(super) fn new() -> Ghost {
        Ghost { buckets: vec![Bucket([0; ENTRIES])], length: 1, now: 0, rest: 0 }
    }

    /// Makes it remember this many keys.
    pub(super) fn grow(&mut self, length: u32) {
        assert!(length >= self.length, "the ghost only grows");
        self.length = length;
        // Entries do not say which of two buckets they would be in had there been twice as many, so they come
        // to be in both. The copy that nobody will ask for is forgotten in its time.
        while self.buckets.len() * ENTRIES < length as usize {
            self.buckets.extend_from_within(..);
        }
    }

    /// Remembers the key of a folio that leaves.
    pub(super) fn remember(&mut self, key: u64) {
        self.rest += u32::from(LIFE);
        self.now = self.now.wrapping_add((self.rest / self.length) as u16);
        self.rest %= self.length;

        let now = self.now;
        let age = |entry: u32| if entry == 0 { u32::MAX } else { age(entry, now).into() };
        let bucket = self.bucket(key);
        let oldest = (0..ENTRIES).max_by_key(|place| age(bucket[*place]));
        bucket[oldest.expect("a bucket has entries")] = fingerprint(key) << 16 | u32::from(now);
    }

    /// Whether this key is remembered; then it is no longer.
    pub(super) fn recall(&mut self, key: u64) -> bool {
        let now = self.now;
        let mut known = false;
        for entry in self.bucket(key) {
            if *entry >> 16 == fingerprint(key) {
                known |= age(*entry, now) < LIFE;
                *entry = 0;
            }
        }
        known
    }

    fn bucket(&mut self, key: u64) -> &mut [u32; ENTRIES] {
        let place = key as usize & (self.buckets.len() - 1);
        &mut self.buckets[place].0
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
    fn a_key_is_known_once_until_as_many_others_have_left_as_the_ghost_is_long() {
        for length in [1, 2, 3, 7, 14, 16] {
            for after in 0..2 * u64::from(length) {
                let mut ghost = ghost(length);
                assert!(!ghost.recall(hash(0)));
                (0..=after).for_each(|key| ghost.remember(hash(key)));
                assert_eq!(ghost.recall(hash(0)), after < length.into(), "{after} of {length}");
                assert!(!ghost.recall(hash(0)), "it was recalled before");
            }
        }
    }

    #[test]
    fn a_long_ghost_knows_almost_all_of_its_length_and_nothing_else() {
        const LENGTH: u64 = 100_000;
        let mut ghost = ghost(LENGTH as u32);
        (0..3 * LENGTH).for_each(|key| ghost.remember(hash(key)));
        let mut known =
            |keys: std::ops::Range<u64>| keys.filter(|key| ghost.recall(hash(*key))).count();
        let half = LENGTH / 2;
        assert!(known(5 * half..6 * half) > 49_900, "of the younger half hardly any is gone");
        assert!(
            known(4 * half..5 * half) > 45_000,
            "of the older half a few were pushed out early"
        );
        assert!(known(0..3 * half) < 100, "strangers that look alike");
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

    /// At worst: one key more than the table had entries.
    #[test]
    fn a_key_costs_at_most_eight_bytes() {
        for length in [16, 17, 1000, 4096, 4097, 1 << 20] {
            assert!(size_of_val(&*ghost(length).buckets) <= 8 * length as usize, "{length}");
        }
    }
}

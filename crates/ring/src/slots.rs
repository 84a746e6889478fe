//! The table of what is in flight. A slot is named by its place and a
//! generation, and is free again only when its completion has been taken.

/// What a completion's `user_data` says it belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    Transfer = 0,
    Wait = 1,
    /// Answers to cancels and to messages sent: nobody waits for them.
    Internal = 2,
    /// A message from another ring.
    Message = 3,
}

const GENERATION_BITS: u32 = 30;
const GENERATION_MASK: u32 = (1 << GENERATION_BITS) - 1;

/// Names one use of one slot: 2 bits of kind, 30 of generation, 32 of place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Name(pub u64);

impl Name {
    pub(crate) const INTERNAL: Name = Name((Kind::Internal as u64) << 62);
    pub(crate) const MESSAGE: Name = Name((Kind::Message as u64) << 62);

    #[inline]
    fn new(kind: Kind, generation: u32, place: u32) -> Name {
        Name((kind as u64) << 62 | ((generation & GENERATION_MASK) as u64) << 32 | place as u64)
    }

    #[inline]
    pub(crate) fn kind(self) -> Kind {
        match self.0 >> 62 {
            0 => Kind::Transfer,
            1 => Kind::Wait,
            2 => Kind::Internal,
            _ => Kind::Message,
        }
    }

    #[inline]
    fn place(self) -> usize {
        self.0 as u32 as usize
    }
}

/// A fixed number of slots of one kind.
pub(crate) struct Slots<T> {
    kind: Kind,
    held: Box<[Option<T>]>,
    generations: Box<[u32]>,
    free: Vec<u32>,
}

impl<T> Slots<T> {
    pub(crate) fn new(kind: Kind, count: u32) -> Slots<T> {
        Slots {
            kind,
            held: (0..count).map(|_| None).collect(),
            generations: vec![0; count as usize].into_boxed_slice(),
            free: (0..count).rev().collect(),
        }
    }

    #[inline]
    pub(crate) fn in_flight(&self) -> usize {
        self.held.len() - self.free.len()
    }

    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.free.is_empty()
    }

    /// Moves `held` into a free slot; the reference stays where it is until [`Self::take`].
    #[inline]
    pub(crate) fn put(&mut self, held: T) -> Result<(Name, &T), T> {
        let Some(place) = self.free.pop() else { return Err(held) };
        let name = Name::new(self.kind, self.generations[place as usize], place);
        Ok((name, self.held[place as usize].insert(held)))
    }

    /// Moves what `name` holds out, and frees its slot.
    ///
    /// # Panics
    /// When `name` does not name what is in flight: the kernel answered twice
    /// or something else wrote our table.
    #[inline]
    pub(crate) fn take(&mut self, name: Name) -> T {
        let place = name.place();
        let generation = self.generations[place];
        assert!(
            Name::new(self.kind, generation, place as u32) == name,
            "a completion for a slot that is not in flight"
        );
        self.generations[place] = generation.wrapping_add(1);
        self.free.push(place as u32);
        self.held[place].take().expect("the generation says it is in flight")
    }

    /// What is in flight, with its names.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (Name, &mut T)> {
        let (kind, generations) = (self.kind, &self.generations);
        self.held.iter_mut().enumerate().filter_map(move |(place, held)| {
            Some((Name::new(kind, generations[place], place as u32), held.as_mut()?))
        })
    }

    /// What `name` holds, if it is still in flight.
    pub(crate) fn get_mut(&mut self, name: Name) -> Option<&mut T> {
        let place = name.place();
        let current = Name::new(self.kind, *self.generations.get(place)?, place as u32);
        if current == name { self.held[place].as_mut() } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_used_again_has_another_name() {
        let mut slots = Slots::new(Kind::Transfer, 1);
        let (first, _) = slots.put('a').unwrap();
        assert!(slots.put('b').is_err());
        assert_eq!(slots.take(first), 'a');
        let (second, _) = slots.put('b').unwrap();
        assert_ne!(first, second);
        assert!(slots.get_mut(first).is_none());
        assert_eq!(slots.get_mut(second), Some(&mut 'b'));
    }

    #[test]
    #[should_panic(expected = "not in flight")]
    fn a_completion_is_taken_once() {
        let mut slots = Slots::new(Kind::Wait, 2);
        let (name, _) = slots.put(1).unwrap();
        slots.take(name);
        slots.take(name);
    }

    #[test]
    fn kinds_are_told_apart() {
        let mut slots = Slots::new(Kind::Wait, 1);
        let (name, _) = slots.put(()).unwrap();
        assert_eq!(name.kind(), Kind::Wait);
        assert_eq!(Name::INTERNAL.kind(), Kind::Internal);
        assert_eq!(Name::MESSAGE.kind(), Kind::Message);
    }
}

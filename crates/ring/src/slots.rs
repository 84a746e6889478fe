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

const KIND_SHIFT: u32 = 32;
/// The next generation of a name; it wraps around at the top.
const GENERATION: u64 = 1 << 34;

/// Names one use of one slot: 30 bits of generation, 2 of kind, 32 of place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Name(pub u64);

impl Name {
    pub(crate) const INTERNAL: Name = Name((Kind::Internal as u64) << KIND_SHIFT);
    pub(crate) const MESSAGE: Name = Name((Kind::Message as u64) << KIND_SHIFT);

    #[inline]
    pub(crate) fn kind(self) -> Kind {
        match self.0 >> KIND_SHIFT & 3 {
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
    held: Box<[Option<T>]>,
    /// What each slot is called now, or will be when it is next used.
    names: Box<[Name]>,
    /// The free slots: the first `free_count`, the last used on top.
    free: Box<[u32]>,
    free_count: usize,
}

impl<T> Slots<T> {
    pub(crate) fn new(kind: Kind, count: u32) -> Slots<T> {
        let name = |place| Name((kind as u64) << KIND_SHIFT | place as u64);
        Slots {
            held: (0..count).map(|_| None).collect(),
            names: (0..count).map(name).collect(),
            free: (0..count).rev().collect(),
            free_count: count as usize,
        }
    }

    #[inline]
    pub(crate) fn in_flight(&self) -> usize {
        self.held.len() - self.free_count
    }

    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.free_count == 0
    }

    /// Moves `held` into a free slot, where it stays until [`Self::take`].
    ///
    /// # Panics
    /// When no slot is free.
    #[inline(always)]
    pub(crate) fn put(&mut self, held: T) -> (Name, &mut T) {
        self.free_count -= 1;
        let place = self.free[self.free_count] as usize;
        (self.names[place], self.held[place].insert(held))
    }

    /// Moves what `name` holds out, and frees its slot.
    ///
    /// # Panics
    /// When `name` does not name what is in flight: the kernel answered twice
    /// or something else wrote our table.
    #[inline(always)]
    pub(crate) fn take(&mut self, name: Name) -> T {
        let place = name.place();
        assert!(self.names[place] == name, "a completion for a slot that is not in flight");
        self.names[place] = Name(name.0.wrapping_add(GENERATION));
        self.free[self.free_count] = place as u32;
        self.free_count += 1;
        self.held[place].take().expect("its name says that it is in flight")
    }

    /// What is in flight, with its names.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (Name, &mut T)> {
        let named = self.names.iter().zip(self.held.iter_mut());
        named.filter_map(|(name, held)| Some((*name, held.as_mut()?)))
    }

    /// What `name` holds, if it is still in flight.
    pub(crate) fn get_mut(&mut self, name: Name) -> Option<&mut T> {
        let place = name.place();
        if *self.names.get(place)? == name { self.held[place].as_mut() } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_used_again_has_another_name() {
        let mut slots = Slots::new(Kind::Transfer, 1);
        let (first, _) = slots.put('a');
        assert!(slots.is_full());
        assert_eq!(slots.take(first), 'a');
        let (second, _) = slots.put('b');
        assert_ne!(first, second);
        assert!(slots.get_mut(first).is_none());
        assert_eq!(slots.get_mut(second), Some(&mut 'b'));
    }

    #[test]
    #[should_panic(expected = "not in flight")]
    fn a_completion_is_taken_once() {
        let mut slots = Slots::new(Kind::Wait, 2);
        let (name, _) = slots.put(1);
        slots.take(name);
        slots.take(name);
    }

    #[test]
    fn generations_wrap_around_and_leave_kind_and_place_alone() {
        let mut slots = Slots::new(Kind::Wait, 3);
        slots.names[2] = Name(u64::MAX << 34 | (Kind::Wait as u64) << 32 | 2);
        let (name, _) = slots.put('a');
        let (_, _) = slots.put('b');
        let (last, _) = slots.put('c');
        assert_eq!((name.kind(), name.place()), (Kind::Wait, 0));
        assert_eq!(slots.take(last), 'c');
        assert_eq!(slots.names[2], Name((Kind::Wait as u64) << 32 | 2));
    }

    #[test]
    fn kinds_are_told_apart() {
        let mut slots = Slots::new(Kind::Wait, 1);
        let (name, _) = slots.put(());
        assert_eq!(name.kind(), Kind::Wait);
        assert_eq!(Name::INTERNAL.kind(), Kind::Internal);
        assert_eq!(Name::MESSAGE.kind(), Kind::Message);
    }
}

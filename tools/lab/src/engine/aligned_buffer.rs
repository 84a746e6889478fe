//! A buffer for O_DIRECT without unsafe code: a vector with room to begin at a page boundary.

/// Enough for the O_DIRECT of all devices.
const ALIGNMENT: usize = 4096;

/// Memory that begins at a page boundary.
#[derive(Debug, Default)]
pub struct AlignedBuffer {
    memory: Vec<u8>,
    begin: usize,
    length: usize,
}

impl AlignedBuffer {
    /// Zeroed memory.
    pub fn new(length: usize) -> Self {
        let memory = vec![0; length + ALIGNMENT];
        // The memory of a vector does not move while the vector does not grow.
        let begin = memory.as_ptr().addr().next_multiple_of(ALIGNMENT) - memory.as_ptr().addr();
        Self { memory, begin, length }
    }

    /// The bytes; they begin at a page boundary.
    pub fn bytes(&mut self) -> &mut [u8] {
        &mut self.memory[self.begin..self.begin + self.length]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moved_buffer_is_still_aligned() {
        let slots: Vec<AlignedBuffer> = (1..20).map(|n| AlignedBuffer::new(n * 512)).collect();
        for mut slot in slots {
            assert_eq!(slot.bytes().as_ptr().addr() % ALIGNMENT, 0);
        }
    }
}

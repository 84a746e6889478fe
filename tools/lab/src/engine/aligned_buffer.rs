//! Buffers fit for O_DIRECT without a line of unsafe: ordinary memory with room to begin at a
//! page boundary.

/// Enough for every device's O_DIRECT.
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
        // A vector's memory stays where it is as long as the vector does not grow.
        let begin = memory.as_ptr().addr().next_multiple_of(ALIGNMENT) - memory.as_ptr().addr();
        Self { memory, begin, length }
    }

    /// The memory.
    pub fn bytes(&mut self) -> &mut [u8] {
        &mut self.memory[self.begin..self.begin + self.length]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_begins_at_a_page_also_after_a_move() {
        let slots: Vec<AlignedBuffer> = (1..20).map(|n| AlignedBuffer::new(n * 512)).collect();
        for mut slot in slots {
            assert_eq!(slot.bytes().as_ptr().addr() % ALIGNMENT, 0);
        }
    }
}

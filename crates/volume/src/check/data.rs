//! Pass: reads the bytes of files. It finds blocks that cannot be read; file data has no checksums, so only the
//! owner can tell whether the bytes are right.

use super::findings::FindingTarget;
use super::reader::{RecordIter, extent_of};
use super::report::CheckStep;
use super::round::Round;
use crate::blocks::BLOCK;
use crate::catalog::Table;
use crate::error::Error;
use crate::space::extent::{Extent, ExtentState};

/// Blocks in one read: 1 MiB.
const READ_BLOCKS: u64 = 256;

impl Round<'_> {
    /// Reads every written block of every file.
    pub(super) fn read_data(&mut self) -> Result<(), Error> {
        for found in RecordIter::new(self.catalog, Table::Extents) {
            let Some((number, extent)) = extent_of(&found?, self.total) else { continue };
            if extent.state == ExtentState::Unwritten {
                continue;
            }
            let mut offset = extent.offset;
            while let Some(piece) =
                extent.intersection(&(offset..offset.saturating_add(READ_BLOCKS)))
            {
                self.read_piece(number, &piece);
                offset = piece.end();
                self.report.read_blocks += piece.length;
                (self.progress)(CheckStep::Data, self.report.read_blocks);
            }
        }
        Ok(())
    }

    /// Reads a part of an extent; if that fails, block by block.
    fn read_piece(&mut self, number: u64, piece: &Extent) {
        if self.blocks.read(piece.start, (piece.length * BLOCK) as usize).is_ok() {
            return;
        }
        for block in 0..piece.length {
            if let Err(errno) = self.blocks.read(piece.start + block, BLOCK as usize) {
                let what = format!(
                    "{BLOCK} bytes from byte {} on cannot be read (block {}): {errno}",
                    (piece.offset + block).saturating_mul(BLOCK),
                    piece.start + block
                );
                self.findings.unfixable(FindingTarget::Inode(number), what);
            }
        }
    }
}

//! Pass: reads the bytes of files. It finds blocks that cannot be read; file data has no checksums, so only the
//! owner can tell whether the bytes are right.

use super::findings::{FindingTarget, Findings};
use super::reader::{RecordIter, extent_of};
use super::report::CheckStep;
use super::round::{Progress, Round};
use crate::blocks::{BLOCK, BlockIo};
use crate::catalog::Table;
use crate::error::Error;
use crate::space::extent::{Extent, ExtentState};

/// Blocks in one read: 1 MiB.
const READ_BLOCKS: u64 = 256;

/// A block of a file that cannot be read.
pub(super) struct UnreadBlock {
    pub(super) inode: u64,
    /// In the file, in blocks.
    pub(super) offset: u64,
    /// On the device.
    pub(super) block: u64,
}

/// Reads the blocks of files.
pub(super) struct DataReader<'r> {
    pub(super) blocks: &'r BlockIo,
    pub(super) findings: &'r mut Findings,
    pub(super) read_blocks: &'r mut u64,
    pub(super) progress: Progress<'r>,
}

impl Round<'_> {
    /// Reads every written block of every file.
    pub(super) fn read_data(&mut self) -> Result<(), Error> {
        let mut reader = DataReader {
            blocks: self.blocks,
            findings: &mut self.findings,
            read_blocks: &mut self.report.read_blocks,
            progress: self.progress,
        };
        for found in RecordIter::new(self.catalog, Table::Extents) {
            if let Some((inode, extent)) = extent_of(&found?, self.total) {
                reader.read(inode, &extent, |_| Ok(true))?;
            }
        }
        Ok(())
    }
}

impl DataReader<'_> {
    /// Reads an extent, unless it is unwritten. Reports each block that cannot be read, if `is_in_use` says so.
    pub(super) fn read(
        &mut self,
        inode: u64,
        extent: &Extent,
        is_in_use: impl Fn(&UnreadBlock) -> Result<bool, Error>,
    ) -> Result<(), Error> {
        if extent.state == ExtentState::Unwritten {
            return Ok(());
        }
        let mut offset = extent.offset;
        while let Some(piece) = extent.intersection(&(offset..offset.saturating_add(READ_BLOCKS))) {
            self.read_piece(inode, &piece, &is_in_use)?;
            offset = piece.end();
            *self.read_blocks += piece.length;
            (self.progress)(CheckStep::Data, *self.read_blocks)?;
        }
        Ok(())
    }

    /// Reads a part of an extent; if that fails, block by block.
    fn read_piece(
        &mut self,
        inode: u64,
        piece: &Extent,
        is_in_use: impl Fn(&UnreadBlock) -> Result<bool, Error>,
    ) -> Result<(), Error> {
        if self.blocks.read(piece.start, (piece.length * BLOCK) as usize).is_ok() {
            return Ok(());
        }
        for index in 0..piece.length {
            let (offset, block) = (piece.offset + index, piece.start + index);
            let Err(errno) = self.blocks.read(block, BLOCK as usize) else { continue };
            if is_in_use(&UnreadBlock { inode, offset, block })? {
                let what = format!(
                    "{BLOCK} bytes from byte {} on cannot be read (block {block}): {errno}",
                    offset.saturating_mul(BLOCK)
                );
                self.findings.unfixable(FindingTarget::Inode(inode), what);
            }
        }
        Ok(())
    }
}

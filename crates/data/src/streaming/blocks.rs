//! The blocks of a source, and their order in each epoch.

use std::ops::Range;

use super::position::ReadPosition;
use crate::corpus::{Corpus, Cursor, FilePart};
use crate::order;

/// The blocks of a source: parts of the files that can be divided, and the other files as a whole.
pub(super) struct BlockOrder {
    blocks: Vec<Block>,
    seed: u64,
}

/// A block: a part of the file with this index in the corpus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Block {
    pub(super) file: usize,
    pub(super) part: FilePart,
}

impl BlockOrder {
    /// The blocks of these files of `corpus`, of about `block_bytes` bytes each, in the order that `seed` draws.
    pub(super) fn new(corpus: &Corpus, files: Range<usize>, block_bytes: u64, seed: u64) -> BlockOrder {
        let mut blocks = Vec::new();
        for file in files {
            let corpus_file = &corpus.files[file];
            let of = match corpus_file.can_be_divided() {
                true => corpus_file.stamp.size.div_ceil(block_bytes.max(1)).max(1),
                false => 1,
            };
            blocks.extend((0..of).map(|index| Block { file, part: FilePart { index, of } }));
        }
        BlockOrder { blocks, seed }
    }

    /// The block of a position.
    pub(super) fn at(&self, position: ReadPosition) -> Block {
        let count = self.blocks.len() as u64;
        self.blocks[order::sequence_at(self.seed, position.epoch * count + position.block, count) as usize]
    }

    /// The beginning of the block after a position.
    pub(super) fn after(&self, position: ReadPosition) -> ReadPosition {
        match position.block + 1 {
            block if block < self.blocks.len() as u64 => {
                ReadPosition { block, epoch: position.epoch, ..ReadPosition::default() }
            }
            _ => ReadPosition { epoch: position.epoch + 1, ..ReadPosition::default() },
        }
    }

    /// The position at which reading resumes at `cursor` within the block of `position`. A cursor in another file means
    /// the end of the block.
    pub(super) fn resume_at(&self, position: ReadPosition, cursor: Cursor) -> ReadPosition {
        if cursor.file != self.at(position).file {
            return self.after(position);
        }
        ReadPosition { offset: cursor.offset, record: cursor.record, ..position }
    }
}

//! The blocks of a source, their order in each epoch, and the sample of their texts on which a tokenizer is trained.

use std::ops::Range;

use super::position::ReadPosition;
use crate::config::{DataConfig, Streaming};
use crate::corpus::{Content, Corpus, Cursor, FilePart, SplitPoints};
use crate::error::DataError;
use crate::order;

/// The blocks of a source. A file that can be divided has several blocks, and any other file is one block.
pub(super) struct BlockOrder {
    blocks: Vec<Block>,
    seed: u64,
}

/// A part of the file with the index `file` in the corpus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Block {
    pub(super) file: usize,
    pub(super) part: FilePart,
}

impl BlockOrder {
    /// Returns the blocks of `files`, of about `block_bytes` bytes each, in an order that `seed` determines.
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

    /// Returns the block of a position.
    pub(super) fn at(&self, position: ReadPosition) -> Block {
        let count = self.blocks.len() as u64;
        self.blocks[order::sequence_at(self.seed, position.epoch * count + position.block, count) as usize]
    }

    /// Returns the beginning of the block after the block of a position.
    pub(super) fn after(&self, position: ReadPosition) -> ReadPosition {
        match position.block + 1 {
            block if block < self.blocks.len() as u64 => {
                ReadPosition { block, epoch: position.epoch, ..ReadPosition::default() }
            }
            _ => ReadPosition { epoch: position.epoch + 1, ..ReadPosition::default() },
        }
    }

    /// Converts `cursor`, from which reading resumes in the block of `position`, to a position. A cursor in another
    /// file means the end of the block.
    pub(super) fn resume_at(&self, position: ReadPosition, cursor: Cursor) -> ReadPosition {
        if cursor.file != self.at(position).file {
            return self.after(position);
        }
        ReadPosition { offset: cursor.offset, record: cursor.record, ..position }
    }
}

/// Passes the texts of the source with the index `source` to `on_text`, in the order of the first epoch. The function
/// ends when the texts have `max_bytes` bytes or when the epoch ends.
///
/// # Errors
/// Fails if the source can't be read.
pub(crate) fn sample(
    config: &DataConfig,
    streaming: &Streaming,
    (corpus, source): (&Corpus, usize),
    max_bytes: u64,
    on_text: &mut dyn FnMut(&str),
) -> Result<(), DataError> {
    let seed = order::seed_of_source(config.seed, source);
    let blocks = BlockOrder::new(corpus, corpus.files_of(source), streaming.block_bytes, seed);
    let (mut at, mut bytes) = (ReadPosition::default(), 0);
    while at.epoch == 0 && bytes < max_bytes {
        let block = blocks.at(at);
        let read = corpus.read_part(at.cursor(block.file), block.part, SplitPoints::BeforeWhitespace, &mut |piece| {
            if let Content::Text(text) = piece.content {
                bytes += text.len() as u64;
                on_text(text);
            }
            if bytes < max_bytes { Ok(()) } else { Err(DataError::WaitEnded) }
        });
        if bytes < max_bytes {
            read?;
        }
        at = blocks.after(at);
    }
    Ok(())
}

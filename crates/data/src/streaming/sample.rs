//! The beginning of a stream as text, on which a tokenizer is trained.

use super::blocks::BlockOrder;
use super::position::ReadPosition;
use crate::config::{DataConfig, Streaming};
use crate::corpus::{Content, Corpus, Split};
use crate::error::DataError;
use crate::order;

/// Passes the texts of the source with the index `source` to `on_text`, in the order of the first epoch, until they
/// have `max_bytes` or the epoch ends.
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
        let read = corpus.read_part(at.cursor(block.file), block.part, Split::BeforeWhitespace, &mut |piece| {
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

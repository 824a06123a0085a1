//! Training while the corpus is read. A source is read block by block, in an order drawn by the seed and the epoch. Its
//! documents, one after another, are a stream of tokens, which is cut into windows of a fixed number of sequences.
//! Stage 0 writes the windows to the volume, one ahead of training, and every stage that needs tokens maps them. The
//! position at which a window begins determines its tokens, so a resumed job reads no more than its current window
//! again.

mod batch;
mod blocks;
mod buffer;
mod document_id;
mod maker;
mod position;
mod reader;
mod sample;
mod source_stream;
mod window;

pub(crate) use document_id::DocumentId;
pub(crate) use maker::WindowMaker;
pub(crate) use position::DocumentCounts;
pub use position::StreamPosition;
pub(crate) use reader::WindowReader;
pub(crate) use sample::sample;
pub(crate) use source_stream::SourceStream;
pub(crate) use window::{WindowStore, write_tokens};

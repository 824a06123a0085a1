//! Reads a corpus while training runs. The leader of the group reads a source block by block, in an order that the seed
//! and the epoch determine. The documents of the source, one after another, are a stream of tokens, which is cut into
//! windows of a fixed number of sequences. The leader writes the windows to the volume, one window ahead of training.
//! Every stage that needs tokens maps the windows. The position at which a window begins determines its tokens, so a
//! resumed job reads only its current window again.

mod batch;
mod blocks;
mod buffer;
mod maker;
mod position;
mod reader;
mod source_stream;
mod window;

pub(crate) use blocks::sample;
pub(crate) use maker::WindowMaker;
pub use position::StreamPosition;
pub(crate) use position::{DocumentCounts, DocumentId};
pub(crate) use reader::WindowReader;
pub(crate) use source_stream::SourceStream;
pub(crate) use window::{WindowStore, write_tokens};

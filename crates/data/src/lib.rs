//! The data pipeline: from text files to batches of token ids. `prepare` finds the corpus, trains or reads the
//! tokenizer, and fills the token cache. In a group, only the leader calls `prepare`. `Dataset` maps the cache into
//! memory, and returns the token ids of each microbatch of each step. No result depends on the order of a folder's
//! entries, on threads or on time. The crate uses no tensors.

#![deny(unsafe_code)]

mod atomic_file;
mod cache;
mod catch_panic;
mod chat_template;
mod config;
mod conversations;
mod corpus;
mod dataset;
mod document_hashes;
mod document_tokens;
mod documents;
mod error;
#[cfg(test)]
#[path = "../tests/data/common/examples.rs"]
mod examples;
mod findings;
mod held_out;
mod loss_mask;
mod map_file;
mod mapped;
mod mixture;
mod model_files;
mod named_tokens;
mod order;
mod prepared;
mod sequences;
mod shown_documents;
mod source;
mod stream;
mod streaming;
mod surroundings;
mod template_parts;
mod text_batch;
mod texts;
mod tokenizer;
mod tokenizer_training;
mod without_documents;

pub use cache::{check_sources, prepare};
pub use catch_panic::hide_caught_panics;
pub use chat_template::{has_chat_template, read_chat};
pub use config::{
    ConversationConfig, CorpusSource, DataConfig, DocumentFormat, HeldOut, HeldOutFiles, OnBadRecord,
    OnLongConversation, PrepareProgress, Streaming, TokenizerSource,
};
pub use corpus::{Compression, FORMATS, Format, document_numbers, text_formats};
pub use dataset::{
    BatchPlan, Dataset, DocumentPart, HeldOutSet, IGNORE_INDEX, Microbatch, MicrobatchLayout, RowSource,
};
pub use documents::{DocumentName, PartText, document_indices, part_texts};
pub use error::DataError;
pub use findings::Findings;
pub use model_files::{TOKENIZER_FILES, tokenizer_files};
pub use named_tokens::NamedTokens;
pub use prepared::{PreparedCorpus, PreparedSource};
pub use shown_documents::{ShownDocument, ShownToken, show_documents};
pub use source::hub_client;
pub use streaming::StreamPosition;
pub use surroundings::{EnvironmentVariables, OnWait};
pub use template_parts::TemplateParts;
pub use texts::{RecordForm, Texts, find_texts};
pub use tokenizer::{SpecialTokenIds, Tokenizer};

//! The data room: text files in, batches of token ids out.
//! `prepare` finds the corpus, trains or reads the tokenizer and fills the token cache (stage 0 alone); `Dataset` maps the
//! cache and says which ids each microbatch of each step holds. Nothing depends on folder order, threads or time; no tensors.

#![deny(unsafe_code)]

mod cache;
mod corpus;
mod dataset;
mod error;
mod map;
mod order;
mod sequences;
mod settings;
mod tokenizer;
mod train;

pub use cache::{Prepared, prepare};
pub use dataset::{Dataset, IGNORED, Layout, Microbatch, StepPlan};
pub use error::DataError;
pub use settings::{Progress, Settings, TokenizerSource};
pub use tokenizer::Tokenizer;

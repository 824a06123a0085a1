//! Tests the public API: from corpus files to batches of token ids.
#![allow(unreachable_pub, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod bad_files;
mod bad_input;
mod bad_records;
mod batches;
mod common;
mod conversation_tables;
mod conversations;
mod documents;
mod families;
mod formats;
mod held_out;
mod hub;
mod mixtures;
mod named_tokens;
mod objects;
mod streaming;
mod tokenizer;
mod tokenizer_keys;

//! Tests the encoding of conversations as token ids and masks, with templates and small tokenizers of seven families.
#![allow(unreachable_pub, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;
mod forgery;
mod masks;
mod properties;
mod records;
mod templates;
mod tokenizers;
mod transformers;
mod wanted;

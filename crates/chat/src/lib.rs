//! Conversations as token ids with a loss mask. A Hugging Face chat template renders a conversation as transformers
//! does. Special tokens come from the template alone: what a conversation spells stays text. A mask is proven, or the
//! conversation is refused.
//!
//! The crate is pure: it knows no files, no clock and no network.

#![forbid(unsafe_code)]

mod chat;
mod conversation;
mod error;
mod generation;
mod json;
mod marks;
mod mask;
mod python;
mod repr;
mod shield;
mod template;
mod vocabulary;

pub use chat::{Chat, Tokens, Wanted};
pub use conversation::{Conversation, KNOWN_ROLES};
pub use error::{ConversationError, ReservedCharacter, SetupError, Turn};
pub use template::{ChatTemplate, Settings};
pub use vocabulary::Vocabulary;

//! Encodes conversations as token ids with a loss mask. This crate renders a Hugging Face chat template as transformers
//! does. Only the template can write special tokens: a special token that a message spells stays text. The crate proves
//! the mask of a conversation, or refuses the conversation.
//!
//! The crate is pure: it uses no files, no clock and no network.

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

pub use chat::{Chat, RequestedTokens, Tokens};
pub use conversation::{Conversation, KNOWN_ROLES};
pub use error::{ConversationError, MessageRef, ReservedCharacter, SetupError};
pub use template::{ChatTemplate, TemplateSettings};
pub use vocabulary::Vocabulary;

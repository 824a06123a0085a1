//! Records that hold a conversation, records that hold no document, and the reasons why a record holds no document.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use stagecoach_chat::Conversation;

use crate::error::DataError;

/// A conversation of the corpus, and its position in a file.
#[derive(Clone, Debug)]
pub(crate) struct ConversationRecord {
    pub(crate) conversation: Conversation,
    /// The index of the file in the corpus.
    pub(crate) file: usize,
    pub(crate) path: PathBuf,
    /// The unit in which the file's records are numbered.
    pub(crate) unit: &'static str,
    /// The number of the record in the file.
    pub(crate) number: u64,
    /// The size of the record in bytes.
    pub(crate) bytes: usize,
}

/// A record that holds no document.
#[derive(Debug)]
pub(crate) struct BadRecord {
    /// The index of the file in the corpus.
    pub(crate) file: usize,
    pub(crate) reason: BadRecordReason,
    /// The error with which a job fails if its settings don't leave out bad records.
    pub(crate) error: DataError,
}

/// The reason why a record holds no document. Token caches store the name of the variant.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "camelCase")]
pub(crate) enum BadRecordReason {
    /// The text is null.
    Null,
    /// The record lacks the field of the text.
    NoField,
    /// The field holds another type than text, such as a number.
    NotText,
    /// The record is not JSON.
    NotJson,
    /// The record is not UTF-8. A file of plain text is one record.
    NotUtf8,
    /// The record does not have the form of a conversation.
    NoConversation,
    /// The chat template refuses the conversation.
    RefusedByTemplate,
    /// The conversation spells a special token as text, so that the encoder can't distinguish the text from the token.
    SpellsSpecialTokens,
    /// The encoder can't prove which tokens are to be trained on.
    Unproven,
    /// No message has the role assistant.
    NoAssistant,
    /// No token is trained on.
    NothingTrained,
    /// The conversation is longer than a sequence.
    TooLong,
}

impl BadRecordReason {
    /// Returns the reason as a phrase that follows the number of records in a note.
    pub(crate) fn description(self) -> &'static str {
        match self {
            BadRecordReason::Null => "with null for text",
            BadRecordReason::NoField => "without the field",
            BadRecordReason::NotText => "with something other than text",
            BadRecordReason::NotJson => "in invalid JSON",
            BadRecordReason::NotUtf8 => "in invalid UTF-8",
            BadRecordReason::NoConversation => "without a conversation",
            BadRecordReason::RefusedByTemplate => "refused by the chat template",
            BadRecordReason::SpellsSpecialTokens => "with a special token spelled as text",
            BadRecordReason::Unproven => "without a proof of the tokens to train on",
            BadRecordReason::NoAssistant => "without a message of the role assistant",
            BadRecordReason::NothingTrained => "without a token to train on",
            BadRecordReason::TooLong => "longer than data.sequenceLength",
        }
    }

    /// Returns the remedy for a corpus whose records are all left out.
    pub(crate) fn remedy(self) -> &'static str {
        match self {
            BadRecordReason::NoAssistant => "give the messages to train on the role assistant",
            BadRecordReason::NothingTrained => {
                "check that the assistant's messages have texts, and that the chat template writes them in its generation blocks"
            }
            BadRecordReason::TooLong => {
                "raise data.sequenceLength, or set data.onLongConversation to Fail to see the first of them"
            }
            _ => "set data.onBadRecord to Fail to see the first of them",
        }
    }
}

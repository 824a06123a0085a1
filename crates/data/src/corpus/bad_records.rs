//! Records that hold no document.

use serde::{Deserialize, Serialize};

use crate::error::DataError;

/// A record that holds no document.
#[derive(Debug)]
pub(crate) struct BadRecord {
    /// Index of the file in the corpus.
    pub(crate) file: usize,
    pub(crate) reason: BadRecordReason,
    /// The error of a job that does not leave such records out.
    pub(crate) error: DataError,
}

/// The reason why a record holds no document. Token caches store its name.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "camelCase")]
pub(crate) enum BadRecordReason {
    /// The text is null.
    Null,
    /// The record lacks the field of the text.
    NoField,
    /// The field holds something else, such as a number.
    NotText,
    /// The record is not JSON.
    NotJson,
    /// The record, which is the whole file for plain text, is not UTF-8.
    NotUtf8,
    /// The record is no conversation.
    NoConversation,
    /// The chat template refuses the conversation.
    RefusedByTemplate,
    /// The template looks into special tokens that the conversation spells, so that their origin is unknown.
    SpellsSpecialTokens,
    /// The tokens to train on can't be proven.
    Unproven,
    /// No message is the assistant's.
    NoAssistant,
    /// No token is trained on.
    NothingTrained,
    /// The conversation is longer than a sequence.
    TooLong,
}

impl BadRecordReason {
    /// The reason for people, after a number of records.
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

    /// The remedy for a corpus without any other record.
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

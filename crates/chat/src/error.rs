//! The errors of templates, tokenizers and conversations. Each message names the problem, its place and the remedy.

use std::fmt;

/// A template, a setting or a conversation contains a private-use character that this crate reserves for marks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{place} contains {}: characters from U+100000 on mark text while a template is rendered, so remove it",
    code_point(*character)
)]
pub struct ReservedCharacter {
    /// The template, the setting, the token, the field or the message that contains the character.
    pub place: String,
    /// The character.
    pub character: char,
}

/// The reason why no conversation can be encoded.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// The template is not valid Jinja.
    #[error("the chat template can't be compiled: {problem}: correct it, or give another with data.chatTemplate")]
    Template {
        /// The message of the compiler, with the line.
        problem: String,
    },
    /// The template or a setting contains a reserved character.
    #[error(transparent)]
    Mark(#[from] ReservedCharacter),
    /// The tokenizer has a special token whose places in a text this crate can't determine.
    #[error("the tokenizer's special token {token:?} {problem}")]
    SpecialToken {
        /// The text of the token.
        token: String,
        /// The property of the token, and the remedy.
        problem: String,
    },
    /// The tokenizers library refuses the tokenizer.
    #[error(
        "the tokenizer can't be used for conversations: {problem}: use the tokenizer.json that belongs to the model"
    )]
    Tokenizer {
        /// The message of the library.
        problem: String,
    },
}

/// A message of a conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MessageRef {
    /// The number of the message, from 1.
    pub number: usize,
    /// The message's role, such as `assistant`.
    pub role: String,
}

impl fmt::Display for MessageRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "message {} ({})", self.number, self.role)
    }
}

/// The reason why one conversation can't be encoded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConversationError {
    /// The record is not a conversation.
    #[error("{place} {problem}")]
    Malformed {
        /// The field or the message.
        place: String,
        /// The problem, and the expected value.
        problem: String,
    },
    /// The conversation contains a reserved character.
    #[error(transparent)]
    Mark(#[from] ReservedCharacter),
    /// The conversation needs a template, and the chat has none.
    #[error(
        "the tokenizer has no chat template: add chat_template.jinja beside it, or give one with data.chatTemplate"
    )]
    NoTemplate,
    /// The template writes the current date, and the job sets no date.
    #[error("the chat template writes the date (strftime_now): give one with data.chatDate")]
    NoDate,
    /// The template refuses the conversation.
    #[error("the chat template refuses the conversation: {problem}")]
    Template {
        /// The message of `raise_exception`, or of the template engine.
        problem: String,
    },
    /// The template treats special tokens in messages differently from other text.
    #[error(
        "the chat template inspects or changes text with {token:?}, a special token that the conversation spells as text, \
         so that the text and the token can't be distinguished: remove it from the messages"
    )]
    Inspected {
        /// A special token of which the conversation contains at least a part.
        token: String,
    },
    /// The tokenizer's model encodes ordinary text as a special token.
    #[error(
        "the tokenizer encodes the text {text:?} as the special token {token:?}: remove the text from the messages"
    )]
    Forged {
        /// The text in a message.
        text: String,
        /// The special token.
        token: String,
    },
    /// The tokenizer failed.
    #[error("the tokenizer can't encode the conversation: {problem}")]
    Tokenizer {
        /// The message of the library.
        problem: String,
    },
    /// The mask of a turn, which selects the tokens to train on, can't be proven.
    #[error("{turn}: {problem}")]
    Unproven {
        /// The turn at which the proof fails.
        turn: MessageRef,
        /// The problem, and the remedy if there is one.
        problem: String,
    },
    /// The mask of a text that a generation block writes can't be proven.
    #[error("generation block {number} of the chat template: {problem}")]
    Block {
        /// The number of the block in the rendered conversation, from 1.
        number: usize,
        /// The problem.
        problem: String,
    },
    /// No token would be trained on.
    #[error("the conversation has no token of an assistant to train on: leave it out, or add an assistant's message")]
    NothingTrained,
}

fn code_point(character: char) -> String {
    format!("the character U+{:X}", u32::from(character))
}

//! A batch of a stream's pieces, in order. The texts of a batch are tokenised together.

use super::position::{DocumentId, ReadPosition};
use crate::conversations::EncodedConversation;
use crate::corpus::{BadRecordReason, ConversationRecord};
use crate::error::DataError;
use crate::findings::Findings;
use crate::text_batch::{ENCODE_BATCH_BYTES, has_text};
use crate::tokenizer::Tokenizer;

/// The ids of a text, and its findings.
type EncodedText = (Vec<u32>, Findings);

/// A tokenised batch.
pub(super) struct Tokenised {
    pub(super) items: Vec<Item>,
    pub(super) texts: Vec<EncodedText>,
    /// Each conversation, and its tokens. The tokens are `None` after the reader has used them.
    pub(super) conversations: Vec<(ConversationRecord, Option<Result<EncodedConversation, DataError>>)>,
}

/// A piece of a stream, or a record that is left out.
pub(super) enum Item {
    /// A piece of a document's text.
    Text {
        /// The index of the text in the batch.
        index: usize,
        document: DocumentId,
        has_text: bool,
        is_last: bool,
    },
    /// A whole conversation, with its index in the batch.
    Conversation {
        index: usize,
        document: DocumentId,
    },
    BadRecord {
        file: usize,
        reason: BadRecordReason,
    },
    LoneSurrogates(u64),
    /// A position at which reading can resume. Only the tokenisation shows whether the position is within a document.
    Point(ReadPosition),
}

/// The largest number of items, which bounds the memory of records without text.
const MAX_ITEMS: usize = 1 << 14;

/// Items whose texts are still to be tokenised.
#[derive(Default)]
pub(super) struct Batch {
    items: Vec<Item>,
    texts: Vec<String>,
    conversations: Vec<ConversationRecord>,
    bytes: usize,
}

impl Batch {
    pub(super) fn push(&mut self, item: Item) {
        self.items.push(item);
    }

    pub(super) fn push_text(&mut self, document: DocumentId, text: &str, is_last: bool) {
        self.items.push(Item::Text { index: self.texts.len(), document, has_text: has_text(text), is_last });
        self.bytes += text.len();
        self.texts.push(text.to_owned());
    }

    pub(super) fn push_conversation(&mut self, document: DocumentId, record: &ConversationRecord) {
        self.items.push(Item::Conversation { index: self.conversations.len(), document });
        self.bytes += record.bytes;
        self.conversations.push(record.clone());
    }

    pub(super) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    pub(super) fn is_full(&self) -> bool {
        self.bytes >= ENCODE_BATCH_BYTES || self.items.len() >= MAX_ITEMS
    }

    /// Empties the batch, and returns its contents with the tokens of the texts and conversations.
    ///
    /// # Errors
    /// Fails if the tokenizer fails.
    pub(super) fn tokenise(&mut self, tokenizer: &Tokenizer) -> Result<Tokenised, DataError> {
        let Batch { items, texts, conversations, .. } = std::mem::take(self);
        let encoded = tokenizer.conversations.as_ref().map(|encoder| encoder.encode_all(&conversations));
        let conversations = conversations.into_iter().zip(encoded.into_iter().flatten().map(Some)).collect();
        Ok(Tokenised { items, texts: tokenizer.encode_all(texts)?, conversations })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_without_text_fill_a_batch_too() {
        let mut batch = Batch::default();
        for _ in 0..MAX_ITEMS {
            assert!(!batch.is_full());
            batch.push(Item::LoneSurrogates(1));
        }
        assert!(batch.is_full());
    }
}

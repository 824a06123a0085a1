//! A batch of texts that is tokenised on all processors.

use crate::corpus::{Content, ConversationRecord, Piece};
use crate::document_tokens::DocumentTokens;
use crate::error::DataError;

/// The number of bytes of text that are tokenised together. A tokenizer's working memory is about a hundred times the
/// size of its text.
pub(crate) const ENCODE_BATCH_BYTES: usize = 1 << 20;

/// Whether a text has characters other than white space.
pub(crate) fn has_text(text: &str) -> bool {
    text.contains(|character: char| !character.is_whitespace())
}

/// Texts or conversations to tokenise together. Each text has a flag for whether the text ends its document. No source
/// has both texts and conversations.
#[derive(Default)]
pub(crate) struct TextBatch {
    texts: Vec<String>,
    is_last: Vec<bool>,
    conversations: Vec<ConversationRecord>,
    bytes: usize,
}

impl TextBatch {
    /// Adds a piece of the corpus. A text or a conversation waits for [`TextBatch::flush`]. Token ids are moved into
    /// `documents` at once, after the tokens of the batch. Findings about the texts are counted in `documents`.
    ///
    /// # Errors
    /// Fails like [`TextBatch::flush`] and [`DocumentTokens::push_token_ids`].
    pub(crate) fn add(&mut self, piece: &Piece, documents: &mut DocumentTokens) -> Result<(), DataError> {
        match &piece.content {
            Content::Text(text) => {
                self.bytes += text.len();
                self.texts.push((*text).to_owned());
                self.is_last.push(piece.is_last);
            }
            Content::Conversation(record) => {
                self.bytes += record.bytes;
                self.conversations.push((*record).clone());
            }
            Content::LoneSurrogates(count) => documents.findings.lone_surrogates += count,
            Content::BadRecord(bad) => documents.findings.bad_record(bad.file, bad.reason),
            Content::Ids { .. } => {
                self.flush(documents)?;
                documents.push_token_ids(piece)?;
            }
        }
        Ok(())
    }

    /// Returns the size of the texts and conversations in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Tokenises the texts and conversations, and moves the tokens into `documents`.
    ///
    /// # Errors
    /// Fails if the tokenizer fails, or if the job refuses a conversation.
    pub(crate) fn flush(&mut self, documents: &mut DocumentTokens) -> Result<(), DataError> {
        let batch = std::mem::take(self);
        if let Some(encoder) = &documents.tokenizer().conversations {
            let encoded = encoder.encode_all(&batch.conversations);
            for (record, encoded) in batch.conversations.iter().zip(encoded) {
                documents.push_conversation(record, encoded)?;
            }
        }
        let has_text: Vec<bool> = batch.texts.iter().map(|text| has_text(text)).collect();
        let encoded = documents.tokenizer().encode_all(batch.texts)?;
        for (((ids, findings), has_text), is_last) in encoded.iter().zip(has_text).zip(batch.is_last) {
            documents.findings.add(findings);
            documents.push_text(ids, has_text);
            if is_last {
                documents.end_document();
            }
        }
        Ok(())
    }
}

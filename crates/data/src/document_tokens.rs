//! Builds documents as token ids, with the tokens that begin and end the documents.

use crate::conversations::EncodedConversation;
use crate::corpus::{Content, ConversationRecord, Piece};
use crate::error::DataError;
use crate::findings::Findings;
use crate::mapped::TokenForm;
use crate::tokenizer::Tokenizer;

/// Returns the form in which the tokens of a tokenizer are stored.
pub(crate) fn token_form(tokenizer: &Tokenizer) -> TokenForm {
    let id_bytes = if tokenizer.vocab_size() <= 1 << 16 { 2 } else { 4 };
    TokenForm { id_bytes, has_mask: tokenizer.conversations.is_some() }
}

/// Builds documents from the ids of their pieces.
pub(crate) struct DocumentTokens<'a> {
    tokenizer: &'a Tokenizer,
    eos_token_id: u32,
    /// Whether a document has begun and not ended.
    inside: bool,
    /// Whether a piece of the current document had characters other than white space.
    has_text: bool,
    /// The token ids. A bit of each id marks whether the token is trained on, see [`crate::loss_mask`].
    pub(crate) ids: Vec<u32>,
    /// The positions in `ids` at which documents start.
    pub(crate) starts: Vec<u64>,
    /// The number of documents without tokens, which are left out.
    pub(crate) empty: u64,
    pub(crate) findings: Findings,
}

impl<'a> DocumentTokens<'a> {
    /// Returns a builder without tokens. If `inside` is true, the first piece continues a document.
    ///
    /// # Errors
    /// Fails if the tokenizer has no end-of-text token.
    pub(crate) fn new(tokenizer: &'a Tokenizer, inside: bool) -> Result<DocumentTokens<'a>, DataError> {
        Ok(DocumentTokens {
            tokenizer,
            eos_token_id: tokenizer.require_eos_token()?,
            inside,
            has_text: false,
            ids: Vec::new(),
            starts: Vec::new(),
            empty: 0,
            findings: Findings::default(),
        })
    }

    /// Returns the tokenizer that made the ids.
    pub(crate) fn tokenizer(&self) -> &'a Tokenizer {
        self.tokenizer
    }

    /// Whether a document has begun and not ended.
    pub(crate) fn is_inside(&self) -> bool {
        self.inside
    }

    /// Adds all ids of a piece of a document's text. `has_text` is true if the piece has characters other than white
    /// space.
    pub(crate) fn push_text(&mut self, ids: &[u32], has_text: bool) {
        self.has_text |= has_text;
        self.push(ids);
    }

    /// Adds ids to the open document. If no document is open, a new document begins.
    fn push(&mut self, ids: &[u32]) {
        if !self.inside && !ids.is_empty() {
            self.inside = true;
            self.starts.push(self.ids.len() as u64);
            self.ids.extend(self.tokenizer.bos_before(ids));
        }
        self.ids.extend(ids);
    }

    /// Ends the document. A document without tokens is only counted.
    pub(crate) fn end_document(&mut self) {
        let has_text = std::mem::take(&mut self.has_text);
        if self.inside {
            self.end_open_document(self.eos_token_id);
        } else {
            self.empty += 1;
            self.findings.without_tokens += u64::from(has_text);
        }
    }

    /// Adds a conversation, which is a whole document. A conversation that is left out is only counted.
    ///
    /// # Errors
    /// Fails if the job refuses the conversation.
    pub(crate) fn push_conversation(
        &mut self,
        record: &ConversationRecord,
        encoded: Result<EncodedConversation, DataError>,
    ) -> Result<(), DataError> {
        match encoded? {
            EncodedConversation::Tokens { tokens, findings } => {
                self.starts.push(self.ids.len() as u64);
                self.ids.extend(tokens);
                self.findings.add(&findings);
            }
            EncodedConversation::LeftOut(reason) => self.findings.bad_record(record.file, reason),
        }
        Ok(())
    }

    /// Adds a piece of a token file. A document ends after an end-of-text token, which is kept, or before a
    /// begin-of-text token. The last document of the file may lack its end-of-text token.
    ///
    /// # Errors
    /// Fails with `IdOutOfRange` for an id that the tokenizer does not have.
    pub(crate) fn push_token_ids(&mut self, piece: &Piece) -> Result<(), DataError> {
        let Content::Ids { ids, file, first_index, .. } = &piece.content else { return Ok(()) };
        let vocab_size = self.tokenizer.vocab_size();
        for (index, &id) in (*first_index..).zip(*ids) {
            if id as usize >= vocab_size {
                return Err(DataError::IdOutOfRange { path: file.path.clone(), index, id, vocab_size });
            }
            let special = self.tokenizer.special_tokens();
            match id {
                _ if special.eos.contains(&id) => self.end_open_document(id),
                _ if special.bos == Some(id) => self.end_open_document(self.eos_token_id),
                _ => self.push(&[id]),
            }
        }
        if piece.is_last {
            self.end_open_document(self.eos_token_id);
        }
        Ok(())
    }

    /// Ends the open document, if there is one. The function adds the end-of-text token `eos`, unless the document
    /// already ends with such a token.
    fn end_open_document(&mut self, eos: u32) {
        if std::mem::take(&mut self.inside) && !self.tokenizer.is_ended_by(self.ids.last()) {
            self.ids.push(eos);
        }
    }
}

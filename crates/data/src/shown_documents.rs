//! Shows documents as training reads them, with the tokens that are trained on.

use crate::cache::corpus_and_tokenizer;
use crate::config::DataConfig;
use crate::corpus::{Content, Cursor, Format, Piece};
use crate::document_tokens::DocumentTokens;
use crate::documents::DocumentName;
use crate::error::DataError;
use crate::loss_mask::{id_of, is_trained};
use crate::text_batch::TextBatch;
use crate::tokenizer::Tokenizer;

/// A document as training reads it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShownDocument {
    /// The number of the document among the documents of the corpus that have tokens, from 1.
    pub number: u64,
    /// The file and the record of the document.
    pub name: DocumentName,
    /// All tokens, including the tokens that begin and end the document.
    pub tokens: Vec<ShownToken>,
}

/// A token of a document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShownToken {
    /// The id of the token.
    pub id: u32,
    /// The text that the token adds. The text is empty for a token that ends within a character.
    pub text: String,
    /// Whether the token is trained on, as the target of the token before it.
    pub is_trained: bool,
}

/// Calls `on_document` with the documents from number `first` on, in the order of the corpus's files, until
/// `on_document` returns false. The function reads no further documents. Returns the number of documents that were
/// read.
///
/// # Errors
/// Fails like [`prepare`](crate::prepare), for the part of the corpus that is read.
pub fn show_documents(
    config: &DataConfig,
    first: u64,
    on_document: &mut dyn FnMut(ShownDocument) -> bool,
) -> Result<u64, DataError> {
    let (corpus, tokenizer) = corpus_and_tokenizer(config)?;
    let mut number = 0;
    for (index, file) in corpus.files.iter().enumerate() {
        let mut open =
            OpenDocuments { documents: DocumentTokens::new(&tokenizer, false)?, numbers: Vec::new(), of_file: 0 };
        let from = Cursor { file: index, ..Cursor::default() };
        let read = corpus.read_file(from, tokenizer.split(), &mut |piece| {
            open.add(&piece, file.format)?;
            while let Some((record, tokens)) = open.take_closed() {
                number += 1;
                let name = DocumentName { file: file.name.clone(), number: record };
                let shown = || ShownDocument { number, name, tokens: shown(&tokenizer, &tokens) };
                if number >= first && !on_document(shown()) {
                    return Err(DataError::WaitEnded);
                }
            }
            Ok(())
        });
        match read {
            Err(DataError::WaitEnded) => break,
            read => read?,
        }
    }
    Ok(number)
}

/// The documents of a file that [`OpenDocuments::take_closed`] has not returned.
struct OpenDocuments<'a> {
    documents: DocumentTokens<'a>,
    /// The number of each of these documents in the file.
    numbers: Vec<u64>,
    /// The number of documents of the file that have begun.
    of_file: u64,
}

impl OpenDocuments<'_> {
    fn add(&mut self, piece: &Piece, format: &Format) -> Result<(), DataError> {
        let mut batch = TextBatch::default();
        batch.add(piece, &mut self.documents)?;
        batch.flush(&mut self.documents)?;
        while self.numbers.len() < self.documents.starts.len() {
            self.of_file += 1;
            let is_of_ids = matches!(piece.content, Content::Ids { .. });
            self.numbers.push(if is_of_ids { self.of_file } else { format.number_of(piece.record) });
        }
        Ok(())
    }

    /// Removes the first document if it is complete. Returns the document's number in the file, and its tokens.
    fn take_closed(&mut self) -> Option<(u64, Vec<u32>)> {
        let documents = &mut self.documents;
        let is_closed = documents.starts.len() > 1 || !documents.is_inside();
        if documents.starts.is_empty() || !is_closed {
            return None;
        }
        let end = documents.starts.get(1).map_or(documents.ids.len(), |&start| start as usize);
        let tokens = documents.ids.drain(..end).collect();
        documents.starts.remove(0);
        documents.starts.iter_mut().for_each(|start| *start -= end as u64);
        Some((self.numbers.remove(0), tokens))
    }
}

fn shown(tokenizer: &Tokenizer, tokens: &[u32]) -> Vec<ShownToken> {
    let texts = tokenizer.texts_of(tokens.iter().map(|&token| id_of(token)));
    let shown = tokens.iter().zip(texts).enumerate();
    // the first token of a document is no target, because no token is before it
    let token = |(index, (&token, text)): (usize, (&u32, String))| ShownToken {
        id: id_of(token),
        text,
        is_trained: index > 0 && is_trained(token),
    };
    shown.map(token).collect()
}

//! The error of a corpus, or a source, none of whose records is a document to train on.

use std::ops::Range;

use crate::config::DocumentFormat;
use crate::corpus::Corpus;
use crate::error::DataError;
use crate::findings::Findings;

/// The error of these files of a corpus. It has the most frequent reason if they hold conversations.
pub(crate) fn without_documents(corpus: &Corpus, files: Range<usize>, findings: &Findings) -> DataError {
    let first = corpus.files.get(files.start).filter(|file| file.documents != DocumentFormat::Text);
    match (first, findings.most_frequent_reason()) {
        (Some(first), Some((reason, records))) => {
            let (file, remedy) = (first.name.clone(), reason.remedy());
            DataError::NoConversations { file, records, reason: reason.description(), remedy }
        }
        _ => DataError::Empty { files: files.len(), notes: findings.notes(&corpus.file_names()) },
    }
}

//! The error for a corpus or a source without any document to train on.

use std::ops::Range;

use crate::config::DocumentFormat;
use crate::corpus::Corpus;
use crate::error::DataError;
use crate::findings::Findings;

/// Returns the error for the given files of a corpus. If the files hold conversations, the error names the most
/// frequent reason why records are left out.
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

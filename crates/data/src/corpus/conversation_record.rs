//! Records that hold a conversation.

use std::path::PathBuf;

use stagecoach_chat::Conversation;

/// A conversation of a corpus, and its place.
#[derive(Clone, Debug)]
pub(crate) struct ConversationRecord {
    pub(crate) conversation: Conversation,
    /// Index of the file in the corpus.
    pub(crate) file: usize,
    pub(crate) path: PathBuf,
    /// The unit in which the file's records are numbered.
    pub(crate) unit: &'static str,
    /// The number of the record in the file.
    pub(crate) number: u64,
    /// Bytes of the record.
    pub(crate) bytes: usize,
}

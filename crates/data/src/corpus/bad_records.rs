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
    /// The record has no field of the text's name.
    NoField,
    /// The field holds something else, such as a number.
    NotText,
    /// The record is not JSON.
    NotJson,
    /// The record, which is the whole file for plain text, is not UTF-8.
    NotUtf8,
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
        }
    }
}

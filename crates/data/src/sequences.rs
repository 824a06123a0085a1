//! How the token stream is cut into sequences, and which of them are held out.

use crate::error::DataError;
use crate::map::Documents;
use crate::settings::Settings;

/// The inputs `start..start + length` of the token stream; each one's target is the token after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) start: u64,
    pub(crate) length: usize,
}

/// All sequences of the corpus: those to train on first, the held-out ones at the end.
pub(crate) struct Sequences {
    cut: Cut,
    pub(crate) training: u64,
    pub(crate) held_out: u64,
}

enum Cut {
    /// Sequence i takes the inputs i x length onwards; what is left at the end is too short and never seen.
    Packed { length: usize },
    /// A document's windows follow each other. Its last token is no input: nothing comes after it.
    Unpacked {
        length: usize,
        /// Per document, the windows in the documents before it; at the end, all of them.
        windows_before: Vec<u64>,
    },
}

impl Sequences {
    /// Cuts `documents` as `settings` says.
    ///
    /// # Errors
    /// `TooShort` if no sequence is left to train on; `Invalid` for a length of 0 or a fraction outside 0..1.
    pub(crate) fn new(settings: &Settings, documents: &Documents) -> Result<Sequences, DataError> {
        let (length, fraction) = (settings.sequence_length, settings.evaluation_fraction);
        if length == 0 {
            return Err(DataError::Invalid { problem: "data.sequenceLength is 0: it must be at least 1".into() });
        }
        if !(0.0..1.0).contains(&fraction) {
            return Err(DataError::Invalid {
                problem: format!("data.evaluation.fraction is {fraction}: it must be at least 0 and below 1"),
            });
        }
        let tokens = documents.start(documents.count());
        let cut = if settings.packing { Cut::Packed { length } } else { unpacked(length, documents) };
        let sequences = match &cut {
            Cut::Packed { length } => tokens.saturating_sub(1) / *length as u64,
            Cut::Unpacked { windows_before, .. } => windows_before.last().copied().unwrap_or(0),
        };
        let held_out = if fraction > 0.0 { ((sequences as f64 * fraction) as u64).max(1) } else { 0 };
        if sequences <= held_out {
            return Err(DataError::TooShort {
                tokens,
                documents: documents.count(),
                sequences,
                sequence_length: length,
                held_out: held_out.min(sequences),
            });
        }
        Ok(Sequences { cut, training: sequences - held_out, held_out })
    }

    /// Where sequence `index` lies in the token stream.
    pub(crate) fn span(&self, index: u64, documents: &Documents) -> Span {
        match &self.cut {
            Cut::Packed { length } => Span { start: index * *length as u64, length: *length },
            Cut::Unpacked { length, windows_before } => {
                // The last document with at most `index` windows before it: those without any are passed over.
                let document = windows_before.partition_point(|&before| before <= index) - 1;
                let start = documents.start(document as u64) + (index - windows_before[document]) * *length as u64;
                let last = documents.start(document as u64 + 1) - 1;
                Span { start, length: ((last - start) as usize).min(*length) }
            }
        }
    }
}

fn unpacked(length: usize, documents: &Documents) -> Cut {
    let mut windows_before = Vec::with_capacity(documents.count() as usize + 1);
    let mut windows = 0;
    let mut start = documents.start(0);
    for document in 0..documents.count() {
        windows_before.push(windows);
        let next = documents.start(document + 1);
        windows += (next - start).saturating_sub(1).div_ceil(length as u64);
        start = next;
    }
    windows_before.push(windows);
    Cut::Unpacked { length, windows_before }
}

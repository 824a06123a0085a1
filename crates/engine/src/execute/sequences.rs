//! The sequences of a microbatch. Only tokens of the same sequence attend to each other.

use stagecoach_data::MicrobatchLayout;

/// Returns the bounds of the sequences of a microbatch (`cu_seqlens`): the offset of the first token of each sequence,
/// and the number of all tokens. Each document of each row is a sequence.
pub(super) fn sequence_bounds(layout: &MicrobatchLayout) -> Vec<i64> {
    let row_starts = (0..layout.rows).map(|row| (row * layout.length) as i64);
    let starts = row_starts.zip(&layout.document_starts).flat_map(|(row_start, document_starts)| {
        std::iter::once(row_start).chain(document_starts.iter().map(move |&start| row_start + i64::from(start)))
    });
    starts.chain([(layout.rows * layout.length) as i64]).collect()
}

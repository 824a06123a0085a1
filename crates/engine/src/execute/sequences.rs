//! The sequences of a microbatch. Only tokens of the same sequence attend to each other.

use stagecoach_data::MicrobatchLayout;

/// Returns the bounds of the sequences of a microbatch: one sequence for each document of each row.
pub(super) fn sequence_bounds(layout: &MicrobatchLayout) -> Vec<i64> {
    let row_starts = (0..layout.rows).map(|row| (row * layout.length) as i64);
    let starts = row_starts.zip(&layout.document_starts).flat_map(|(row_start, document_starts)| {
        std::iter::once(row_start).chain(document_starts.iter().map(move |&start| row_start + i64::from(start)))
    });
    starts.chain([(layout.rows * layout.length) as i64]).collect()
}

//! The attention mask of rows that hold several documents.

use stagecoach_data::MicrobatchLayout;
use tch::{Kind, Tensor};

/// Attention mask for packed rows, `bool[rows, 1, length, length]`, true where a query may attend to a key: causal, and
/// within one document. `None` if every row holds one document.
pub(super) fn document_mask(layout: &MicrobatchLayout) -> Option<Tensor> {
    if layout.document_starts.iter().all(Vec::is_empty) {
        return None;
    }
    let document_ids: Vec<i64> = layout
        .document_starts
        .iter()
        .flat_map(|starts| {
            (0..layout.length as u32).map(|position| starts.partition_point(|&start| start <= position) as i64)
        })
        .collect();
    let (rows, length) = (layout.rows as i64, layout.length as i64);
    let document_ids = Tensor::from_slice(&document_ids).view([rows, length]);
    let same_document = document_ids.unsqueeze(2).eq_tensor(&document_ids.unsqueeze(1));
    let causal = Tensor::ones([length, length], (Kind::Bool, tch::Device::Cpu)).tril(0);
    Some(same_document.logical_and(&causal).unsqueeze(1))
}

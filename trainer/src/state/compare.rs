//! A checkpoint's tensors against a model's parameters.

use std::collections::BTreeMap;

use stagecoach_checkpoint::{Dtype, Manifest};

use super::{FIRST_MOMENT, SECOND_MOMENT};
use crate::model::ParameterSpec;

/// The first tensor, by name, that a checkpoint of `model` has and this one hasn't, or the other way round, or has in
/// another shape or type; with both.
pub fn first_difference(model: &[ParameterSpec], manifest: &Manifest) -> Option<String> {
    let mut tensors: BTreeMap<String, [Option<String>; 2]> = BTreeMap::new();
    for spec in model {
        let form = form(Dtype::F32, &spec.shape);
        for suffix in ["", FIRST_MOMENT, SECOND_MOMENT] {
            tensors.entry(format!("{}{suffix}", spec.name)).or_default()[0] = Some(form.clone());
        }
    }
    for tensor in &manifest.tensors {
        tensors.entry(tensor.name.clone()).or_default()[1] = Some(form(tensor.dtype, &tensor.shape));
    }
    let (name, [ours, theirs]) = tensors.into_iter().find(|(_, [ours, theirs])| ours != theirs)?;
    let [ours, theirs] = [ours, theirs].map(|form| form.unwrap_or_else(|| "absent".to_owned()));
    Some(format!("the parameter {name} is {ours} here and {theirs} in the checkpoint"))
}

/// For example `F32[300, 32]`.
fn form<T: std::fmt::Debug>(dtype: Dtype, shape: &[T]) -> String {
    format!("{dtype:?}{shape:?}")
}

#[cfg(test)]
mod tests {
    use stagecoach_checkpoint::{CheckpointMetadata, FORMAT_VERSION, TensorEntry};

    use super::*;
    use crate::model::Initial;

    fn checkpoint(tensors: &[(&str, Dtype, [usize; 2])]) -> Manifest {
        let entry = |(name, dtype, shape): &(&str, Dtype, [usize; 2])| TensorEntry {
            name: (*name).to_owned(),
            file: String::new(),
            dtype: *dtype,
            shape: shape.to_vec(),
            offset: 0,
            bytes: 0,
            blake3: String::new(),
        };
        Manifest {
            format_version: FORMAT_VERSION,
            step: 1,
            fence: 1,
            holder: String::new(),
            metadata: CheckpointMetadata::default(),
            files: Vec::new(),
            tensors: tensors.iter().map(entry).collect(),
        }
    }

    #[test]
    fn the_first_by_name_is_told_with_both_forms() {
        let initial = Initial::Ones;
        let model = [ParameterSpec { name: "b.weight".into(), shape: vec![4, 8], initial, decay: true }];
        let whole = |dtype, shape| {
            [("b.weight", dtype, shape), ("b.weight.exp_avg", dtype, shape), ("b.weight.exp_avg_sq", dtype, shape)]
        };
        let same = whole(Dtype::F32, [4, 8]);
        let told = |tensors: &[_]| first_difference(&model, &checkpoint(tensors)).unwrap_or_default();
        assert_eq!(told(&same), "");
        assert_eq!(
            told(&whole(Dtype::F32, [4, 9])),
            "the parameter b.weight is F32[4, 8] here and F32[4, 9] in the checkpoint"
        );
        assert!(told(&whole(Dtype::F16, [4, 8])).contains("F32[4, 8] here and F16[4, 8] in"));
        assert!(told(&same[..2]).contains("b.weight.exp_avg_sq is F32[4, 8] here and absent in"));
        let more = [&same[..], &[("a.bias", Dtype::F32, [1, 8])]].concat();
        assert!(told(&more).contains("a.bias is absent here and F32[1, 8] in"));
    }
}

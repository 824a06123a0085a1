//! Compares a checkpoint's tensors with a model's parameters.

use std::collections::BTreeMap;

use stagecoach_checkpoint::{Dtype, Manifest};
use stagecoach_model::ParameterSpec;

use super::tensors::{FIRST_MOMENT, SECOND_MOMENT};

/// Describes the first tensor, by name, whose presence, shape or dtype differs between the model and the checkpoint;
/// `None` if no tensor differs.
pub fn first_difference(model: &[ParameterSpec], manifest: &Manifest) -> Option<String> {
    let mut tensors: BTreeMap<String, [Option<String>; 2]> = BTreeMap::new();
    for spec in model {
        let dtype_and_shape = dtype_and_shape(Dtype::F32, &spec.shape);
        for suffix in ["", FIRST_MOMENT, SECOND_MOMENT] {
            tensors.entry(format!("{}{suffix}", spec.name)).or_default()[0] = Some(dtype_and_shape.clone());
        }
    }
    for tensor in &manifest.tensors {
        tensors.entry(tensor.name.clone()).or_default()[1] = Some(dtype_and_shape(tensor.dtype, &tensor.shape));
    }
    let (name, [own, recorded]) = tensors.into_iter().find(|(_, [own, recorded])| own != recorded)?;
    let [own, recorded] = [own, recorded].map(|tensor| tensor.unwrap_or_else(|| "absent".to_owned()));
    Some(format!("the parameter {name} is {own} here and {recorded} in the checkpoint"))
}

/// Returns the text of a dtype and shape, for example `F32[300, 32]`.
fn dtype_and_shape<T: std::fmt::Debug>(dtype: Dtype, shape: &[T]) -> String {
    format!("{dtype:?}{shape:?}")
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use stagecoach_checkpoint::FORMAT_VERSION;

    use super::*;
    use stagecoach_model::{Initializer, WeightRole};

    fn checkpoint(tensors: &[(&str, Dtype, [usize; 2])]) -> Manifest {
        let entry = |(name, dtype, shape): &(&str, Dtype, [usize; 2])| json!({"name": name, "file": "", "dtype": dtype, "shape": shape, "offset": 0, "bytes": 0, "blake3": ""});
        let manifest = json!({
            "format_version": FORMAT_VERSION, "step": 1, "fence": 1, "holder": "",
            "attempt": 1, "identity": null, "plan": null, "environment": null, "progress": null, "job": null,
            "files": [], "tensors": tensors.iter().map(entry).collect::<Vec<_>>(),
        });
        serde_json::from_value(manifest).unwrap()
    }

    #[test]
    fn the_first_difference_by_name_is_described_on_both_sides() {
        let (initializer, has_weight_decay) = (Initializer::Ones, true);
        let (name, shape) = ("b.weight".into(), vec![4, 8]);
        let model = [ParameterSpec {
            name,
            shape,
            initializer,
            has_weight_decay,
            adjacent_to_previous: false,
            role: WeightRole::Trained,
        }];
        let whole = |dtype, shape| {
            [("b.weight", dtype, shape), ("b.weight.exp_avg", dtype, shape), ("b.weight.exp_avg_sq", dtype, shape)]
        };
        let same = whole(Dtype::F32, [4, 8]);
        let difference = |tensors: &[_]| first_difference(&model, &checkpoint(tensors)).unwrap_or_default();
        assert_eq!(difference(&same), "");
        assert_eq!(
            difference(&whole(Dtype::F32, [4, 9])),
            "the parameter b.weight is F32[4, 8] here and F32[4, 9] in the checkpoint"
        );
        assert!(difference(&whole(Dtype::F16, [4, 8])).contains("F32[4, 8] here and F16[4, 8] in"));
        assert!(difference(&same[..2]).contains("b.weight.exp_avg_sq is F32[4, 8] here and absent in"));
        let more = [&same[..], &[("a.bias", Dtype::F32, [1, 8])]].concat();
        assert!(difference(&more).contains("a.bias is absent here and F32[1, 8] in"));
    }
}

//! Finds the point at which two runs diverge. Bisection finds the first checkpoint that differs. Within a step, a
//! comparison in the order of computation finds the first tensor that differs.

use std::collections::BTreeMap;
use std::fmt;

use stagecoach_checkpoint::Manifest;
use tch::{Kind, Tensor};

/// Returns the first of the ascending `steps` at which two runs differ, or `None` if they are equal at the last step.
/// Two runs that have diverged stay different, so bisection finds the step.
pub fn first_divergence(steps: &[u64], mut is_equal: impl FnMut(u64) -> bool) -> Option<u64> {
    steps.get(steps.partition_point(|step| is_equal(*step))).copied()
}

/// A tensor that differs between two runs, or that the second run lacks.
#[derive(Clone, Debug, PartialEq)]
pub struct DivergentTensor {
    /// The name of the tensor.
    pub name: String,
    /// The description of the difference.
    what: String,
}

impl fmt::Display for DivergentTensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {}", self.name, self.what)
    }
}

/// Returns the first tensor that is not bit-identical in both runs or that `others` lacks, in the order of computation.
pub fn first_divergent_tensor(ones: &[(String, Tensor)], others: &[(String, Tensor)]) -> Option<DivergentTensor> {
    let others: BTreeMap<&str, &Tensor> = others.iter().map(|(name, tensor)| (&**name, tensor)).collect();
    let mut ones: Vec<&(String, Tensor)> = ones.iter().collect();
    ones.sort_by_key(|(name, _)| moment(name));
    ones.into_iter().find_map(|(name, one)| {
        let what = match others.get(&**name) {
            None => "which the other run lacks".to_owned(),
            Some(other) => difference(one, other)?,
        };
        Some(DivergentTensor { name: name.clone(), what })
    })
}

/// Returns the position of a tensor in the order of computation: first the weights, then the outputs of the layers from
/// first to last, then the gradients of the outputs from last to first, then the gradients of the weights.
fn moment(name: &str) -> (u8, i64, String) {
    let layer = |last: i64| match name.strip_prefix("layer.") {
        Some(rest) => rest.split('.').next().and_then(|number| number.parse().ok()).unwrap_or(last),
        None => last,
    };
    let phase = match name {
        _ if name.ends_with(".value") => (0, 0),
        _ if name.ends_with(".output") => (1, layer(i64::MAX)),
        _ if name.ends_with(".output.gradient") => (2, -layer(i64::MAX)),
        _ => (3, 0),
    };
    (phase.0, phase.1, name.to_owned())
}

/// Describes the difference between two tensors: their types and shapes, or the number of values that differ and the
/// first pair of such values. Returns `None` if the tensors are equal.
fn difference(one: &Tensor, other: &Tensor) -> Option<String> {
    if one.size() != other.size() || one.kind() != other.kind() {
        return Some(format!("{:?}{:?} and {:?}{:?}", one.kind(), one.size(), other.kind(), other.size()));
    }
    // 32 bits represent every 16-bit value exactly
    let values = |tensor: &Tensor| Vec::<f32>::try_from(tensor.to_kind(Kind::Float).flatten(0, -1)).unwrap_or_default();
    let (ones, others) = (values(one), values(other));
    let mut parted = (0..ones.len()).filter(|at| ones[*at].to_bits() != others[*at].to_bits());
    let first = parted.next()?;
    let bits = (ones[first].to_bits() ^ others[first].to_bits()).count_ones();
    Some(format!(
        "{} of {} values differ; the first pair is {} and {}, {bits} bit{} apart",
        1 + parted.count(),
        ones.len(),
        ones[first],
        others[first],
        if bits == 1 { "" } else { "s" },
    ))
}

/// Returns the stage that held the layer or the weight of a dumped tensor when the run saved the checkpoint.
pub fn stage_of<'m>(manifest: &'m Manifest, tensor: &str) -> Option<&'m str> {
    let weight = match tensor.strip_prefix("layer.").and_then(|rest| rest.split('.').next()) {
        Some(layer) => format!("model.layers.{layer}."),
        None => {
            tensor.trim_end_matches(".output.gradient").trim_end_matches(".gradient").trim_end_matches(".value").into()
        }
    };
    let entry = manifest.tensors.iter().find(|entry| entry.name.starts_with(&weight))?;
    entry.file.strip_prefix("stage-")?.split('.').next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bisection_finds_the_first_step_that_differs() {
        let steps: Vec<u64> = (1..=100).map(|n| 10 * n).collect();
        for parted in [1, 10, 11, 500, 999, 1000, 1001] {
            let mut asked = 0;
            let found = first_divergence(&steps, |step| {
                asked += 1;
                step < parted
            });
            assert_eq!(found, steps.iter().copied().find(|step| *step >= parted), "{parted}");
            assert!(asked <= 8, "{asked} comparisons");
        }
        assert_eq!(first_divergence(&[], |_| true), None);
    }

    #[test]
    fn tensors_are_compared_in_the_order_of_their_computation() {
        let tensor = |value: f32| Tensor::from_slice(&[1.0, value]);
        let names = [
            "model.norm.weight.gradient",
            "layer.0.output.gradient",
            "layer.1.output.gradient",
            "norm.output.gradient",
            "norm.output",
            "layer.10.output",
            "layer.2.output",
            "model.norm.weight.value",
        ];
        let all = |value: f32| names.map(|name| (name.to_owned(), tensor(value)));
        let (ones, mut others) = (all(2.0), all(f32::from_bits(2.0f32.to_bits() + 1)));
        for expected in names.iter().rev() {
            let found = first_divergent_tensor(&ones, &others).unwrap();
            assert_eq!(&found.name, expected);
            assert!(
                found.to_string().ends_with(", 1 of 2 values differ; the first pair is 2 and 2.0000002, 1 bit apart"),
                "{found}"
            );
            others.iter_mut().find(|(name, _)| name == expected).unwrap().1 = tensor(2.0);
        }
        assert_eq!(first_divergent_tensor(&ones, &others), None);
    }
}

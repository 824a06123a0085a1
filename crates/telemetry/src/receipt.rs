//! The receipt of a run: a hash chain over the inputs and the results of every step. The receipt depends only on the
//! job's identity and steps, and not on stages, schedules, attempts or checkpoints. Equal runs therefore have equal
//! receipts.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::json_paths::json_by_path;

/// The prefix of the hashed data. With this prefix, a receipt differs from any other hash of the same bytes.
const DOMAIN: &[u8] = b"stagecoach receipt 1";

/// The field of the identity that may change when a job gets more steps. The receipt leaves the field out, because the
/// chain contains the effect of the field: the learning rate of each step.
const EXTENDED: &str = "training.learningRate.decaySteps";

/// The hash chain up to a step.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Receipt {
    /// The number of steps before the first covered step. The number is above 0 if a version of Stagecoach without
    /// receipts trained these steps.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub after: u64,
    /// The BLAKE3 hash, in hex, of the identity and every covered step. The text is empty if there is no receipt.
    pub head: String,
}

/// The facts about a step that the chain contains.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepFacts {
    /// The step, from 1.
    pub step: u64,
    /// The number of sequences of a step. The number of sequences and the step determine the positions of the step's
    /// data.
    pub sequences: u64,
    /// The learning rate.
    pub learning_rate: f64,
    /// The loss in nats per token; `None` if it is not finite.
    pub loss: Option<f32>,
    /// The gradient's norm before clipping; `None` if it is not finite.
    pub gradient_norm: Option<f64>,
    /// Whether the update was skipped.
    pub skipped: bool,
}

impl Receipt {
    /// Returns the receipt of a run of `identity` whose first `after` steps are not covered.
    pub fn begin(identity: &Value, after: u64) -> Receipt {
        let mut hasher = blake3::Hasher::new();
        hasher.update(DOMAIN).update(&after.to_le_bytes());
        for (path, value) in json_by_path(identity).iter().filter(|(path, _)| *path != EXTENDED) {
            for text in [path, value] {
                hasher.update(&(text.len() as u64).to_le_bytes()).update(text.as_bytes());
            }
        }
        Receipt { after, head: hasher.finalize().to_hex().to_string() }
    }

    /// Whether there is no receipt, because a version without receipts wrote the checkpoint.
    pub fn is_missing(&self) -> bool {
        self.head.is_empty()
    }

    /// Adds the next step.
    pub fn add(&mut self, facts: &StepFacts) {
        let StepFacts { step, sequences, learning_rate, loss, gradient_norm, skipped } = *facts;
        // all non-finite numbers hash to one value, because they have many bit patterns and no form in JSON
        let loss = loss.map_or(u32::MAX, f32::to_bits);
        let norm = gradient_norm.map_or(u64::MAX, f64::to_bits);
        let first_sequence = step.saturating_sub(1) * sequences;
        let mut hasher = blake3::Hasher::new();
        hasher.update(self.head.as_bytes());
        for number in [step, first_sequence, sequences, learning_rate.to_bits(), u64::from(loss), norm, skipped.into()]
        {
            hasher.update(&number.to_le_bytes());
        }
        self.head = hasher.finalize().to_hex().to_string();
    }
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn facts(step: u64) -> StepFacts {
        StepFacts {
            step,
            sequences: 32,
            learning_rate: 1e-3 / step as f64,
            loss: Some(3.5 - step as f32 / 64.0),
            gradient_norm: Some(0.7),
            skipped: false,
        }
    }

    fn chain(identity: &Value, steps: &[StepFacts]) -> String {
        let mut receipt = Receipt::begin(identity, 0);
        steps.iter().for_each(|facts| receipt.add(facts));
        receipt.head
    }

    proptest! {
        #[test]
        fn every_bit_of_every_step_and_their_order_change_the_head(
            at in 0usize..20, field in 0..5, bit in 0u32..32, other in 0usize..20,
        ) {
            let identity = json!({"training": {"seed": 1}});
            let steps: Vec<StepFacts> = (1..=20).map(facts).collect();
            let head = chain(&identity, &steps);
            let mut changed = steps.clone();
            let step = &mut changed[at];
            match field {
                0 => step.loss = step.loss.map(|loss| f32::from_bits(loss.to_bits() ^ 1 << bit)),
                1 => step.gradient_norm = step.gradient_norm.map(|norm| f64::from_bits(norm.to_bits() ^ 1 << bit)),
                2 => step.learning_rate = f64::from_bits(step.learning_rate.to_bits() ^ 1 << bit),
                3 => step.skipped = true,
                _ => step.sequences ^= 1 << bit,
            }
            prop_assert_ne!(&chain(&identity, &changed), &head);
            let mut swapped = steps.clone();
            swapped.swap(at, other);
            prop_assert_eq!(chain(&identity, &swapped) == head, at == other);
            prop_assert_ne!(&chain(&identity, &steps[..at]), &head);
            prop_assert_eq!(chain(&identity, &steps), head);
        }
    }

    #[test]
    fn the_identity_decides_where_it_begins_and_the_order_of_its_fields_does_not() {
        let head = |identity: Value| Receipt::begin(&identity, 0).head;
        let one = head(json!({"training": {"seed": 1, "learningRate": {"peak": 1e-3, "decaySteps": 7}}, "data": "c"}));
        assert_eq!(head(json!({"data": "c", "training": {"learningRate": {"peak": 1e-3}, "seed": 1}})), one);
        for other in [
            json!({"training": {"seed": 2, "learningRate": {"peak": 1e-3}}, "data": "c"}),
            json!({"training": {"seed": 1, "learningRate": {"peak": 2e-3}}, "data": "c"}),
            json!({"training": {"seed": 1, "learningRate": {"peak": 1e-3}}, "data": "d"}),
            json!({"training": {"seed": 1, "learningRate": {"peak": 1e-3}}}),
        ] {
            assert_ne!(head(other.clone()), one, "{other}");
        }
        assert_ne!(Receipt::begin(&json!({}), 0), Receipt::begin(&json!({}), 5));
    }

    #[test]
    fn a_number_that_is_not_finite_changes_the_head() {
        let head = |facts: StepFacts| chain(&json!({}), &[facts]);
        let finite = head(facts(1));
        let (no_loss, no_norm) =
            (head(StepFacts { loss: None, ..facts(1) }), head(StepFacts { gradient_norm: None, ..facts(1) }));
        assert!(no_loss != finite && no_norm != finite && no_loss != no_norm);
    }
}

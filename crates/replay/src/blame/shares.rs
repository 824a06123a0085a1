//! Ranks the documents of a step by their contributions to the loss or the gradient.

use clap::ValueEnum;
use serde::Serialize;
use stagecoach_data::{DocumentPart, PartText};

use super::StepGradients;

/// The key by which documents are ranked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum RankBy {
    /// The amount by which a document raises the step's loss.
    #[default]
    Excess,
    /// The document's share of the loss.
    Loss,
    /// The document's share of the gradient's norm.
    Norm,
}

/// A step, and the contributions of its documents.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct StepBlame {
    /// The step, from 1.
    pub step: u64,
    /// The recorded loss of the step, in nats per target; null if it is not finite.
    pub loss: Option<f32>,
    /// The recorded norm of the step's gradient, before clipping; null if it is not finite.
    pub gradient_norm: Option<f64>,
    /// The number of the step's targets.
    pub targets: u64,
    /// The sum of the documents' losses, in nats per target. It is the step's loss, except for the rounding of sums.
    pub sum_of_losses: f64,
    /// The sum of the documents' shares of the gradient's norm. It is 1, except for the rounding of sums.
    pub sum_of_norm_shares: f64,
    /// The number of documents in the step.
    pub document_count: usize,
    /// The documents with the largest shares, the largest first.
    pub documents: Vec<DocumentBlame>,
}

/// The contribution of a document to a step. A number that is not finite is null in JSON.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DocumentBlame {
    /// The name of the document, `FILE:DOC`.
    pub document: String,
    /// The parts of the document in the step.
    pub parts: Vec<PartBlame>,
    /// The number of tokens of the whole document, including the tokens that begin and end it.
    pub tokens: u64,
    /// The number of the document's targets in the step.
    pub targets: u64,
    /// The loss of the document, in nats per target of the document.
    pub loss: f64,
    /// The sum of the document's cross-entropies, divided by the sum of the cross-entropies of all documents, from 0 to
    /// 1.
    pub loss_share: f64,
    /// The amount by which the document raises the step's loss, in nats per target: the step's loss minus the mean over
    /// the targets of all other documents.
    pub excess: f64,
    /// The norm of the document's contribution to the step's gradient, which is the gradient of the mean over all
    /// targets.
    pub gradient_norm: f64,
    /// The dot product of the document's gradient and the step's gradient, divided by the square of the norm of the
    /// step's gradient. It is negative if the document's gradient points against the step's gradient.
    pub norm_share: f64,
}

/// A part of a document in a row of the step.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PartBlame {
    /// The number of bytes of the document's text before this part.
    pub offset: u64,
    /// The index of the part's first input among the document's tokens, from 0.
    pub first_token: u64,
    /// The number of the part's inputs.
    pub tokens: u64,
    /// The text of the part.
    pub text: String,
}

impl StepBlame {
    /// Ranks the documents of a step. `parts` are the parts of documents in the step. `texts` has the text of each part
    /// and the position of the part in its document.
    pub fn new(
        (step, loss, gradient_norm): (u64, Option<f32>, Option<f64>),
        gradients: &StepGradients,
        (parts, texts): (&[DocumentPart], &[PartText]),
        by: RankBy,
    ) -> StepBlame {
        let sum: f64 = gradients.documents.iter().map(|document| document.loss).sum();
        let targets = gradients.targets as f64;
        let blame = |document: &super::DocumentGradient| DocumentBlame {
            document: document.parts.first().map(|&part| texts[part].name.to_string()).unwrap_or_default(),
            parts: document.parts.iter().map(|&part| PartBlame::new(&parts[part], &texts[part])).collect(),
            tokens: document.parts.first().map_or(0, |&part| texts[part].document_tokens),
            targets: document.targets,
            loss: document.loss / document.targets as f64,
            loss_share: document.loss / sum,
            excess: sum / targets - (sum - document.loss) / (targets - document.targets as f64),
            gradient_norm: document.squared_norm.sqrt(),
            norm_share: document.projection / gradients.squared_norm,
        };
        let mut documents: Vec<DocumentBlame> = gradients.documents.iter().map(blame).collect();
        documents.sort_by(|a, b| by.key(b).total_cmp(&by.key(a)));
        StepBlame {
            step,
            loss,
            gradient_norm,
            targets: gradients.targets,
            sum_of_losses: sum / targets,
            sum_of_norm_shares: documents.iter().map(|document| document.norm_share).sum(),
            document_count: documents.len(),
            documents,
        }
    }
}

impl PartBlame {
    fn new(part: &DocumentPart, text: &PartText) -> PartBlame {
        PartBlame {
            offset: text.offset,
            first_token: part.tokens.start,
            tokens: part.inputs.len() as u64,
            text: text.text.clone(),
        }
    }
}

impl RankBy {
    /// Returns the sort key: a larger key ranks earlier. A document whose loss or gradient is not finite ranks first,
    /// because it makes the loss or gradient of the step non-finite.
    fn key(self, document: &DocumentBlame) -> f64 {
        if !document.loss.is_finite() || !document.gradient_norm.is_finite() {
            return f64::INFINITY;
        }
        let key = match self {
            RankBy::Excess => document.excess,
            RankBy::Loss => document.loss_share,
            RankBy::Norm => document.norm_share,
        };
        // if the step's value is not finite, the values of the other documents carry no information
        if key.is_finite() { key } else { f64::NEG_INFINITY }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blame::DocumentGradient;
    use proptest::prelude::*;
    use stagecoach_data::DocumentName;

    fn step(documents: &[(f64, f64)], squared_norm: f64, by: RankBy) -> StepBlame {
        let gradients = StepGradients {
            documents: documents
                .iter()
                .enumerate()
                .map(|(index, &(loss, projection))| DocumentGradient {
                    document: index as u64,
                    parts: vec![index],
                    targets: 1 + index as u64,
                    loss,
                    squared_norm: projection * projection,
                    projection,
                })
                .collect(),
            targets: (1..=documents.len() as u64).sum(),
            squared_norm,
        };
        let document = |index: usize| {
            let part =
                DocumentPart { document: index as u64, tokens: 0..1, position: 0, inputs: vec![0], targets: vec![0] };
            let name = DocumentName { file: "a".into(), number: index as u64 };
            (part, PartText { name, offset: 0, text: String::new(), document_tokens: 9 })
        };
        let (parts, texts): (Vec<_>, Vec<_>) = (0..documents.len()).map(document).unzip();
        StepBlame::new((7, None, None), &gradients, (&parts, &texts), by)
    }

    fn names(step: &StepBlame) -> Vec<&str> {
        step.documents.iter().map(|document| &*document.document).collect()
    }

    #[test]
    fn documents_are_ranked_by_what_is_asked_for() {
        let documents = [(5.0, -0.5), (6.0, 2.0), (3.0, 0.5)];
        assert_eq!(names(&step(&documents, 2.0, RankBy::Norm)), ["a:1", "a:2", "a:0"]);
        assert_eq!(names(&step(&documents, 2.0, RankBy::Loss)), ["a:1", "a:0", "a:2"]);
        // the documents have 5, 3 and 1 nats per target
        let ranked = step(&documents, 2.0, RankBy::Excess);
        assert_eq!(names(&ranked), ["a:0", "a:1", "a:2"]);
        assert_eq!(ranked.documents[0].excess, 14.0 / 6.0 - 9.0 / 5.0);
        assert_eq!(step(&documents, 2.0, RankBy::Norm).documents[2].norm_share, -0.25);
    }

    #[test]
    fn a_document_that_is_not_finite_comes_first() {
        for by in [RankBy::Norm, RankBy::Loss, RankBy::Excess] {
            let step = step(&[(9.0, 9.0), (f64::NAN, f64::NAN), (1.0, 1.0)], f64::NAN, by);
            assert_eq!(names(&step)[0], "a:1", "{by:?}");
            let json = serde_json::to_value(&step).unwrap();
            assert!(json["documents"][0]["loss"].is_null(), "{json}");
        }
    }

    proptest! {
        #[test]
        fn shares_add_up_and_fall(documents in prop::collection::vec((0.01..50f64, -3.0..9f64), 1..40)) {
            let squared_norm: f64 = documents.iter().map(|document| document.1).sum();
            prop_assume!(squared_norm.abs() > 0.1);
            let step = step(&documents, squared_norm, RankBy::Norm);
            let losses: f64 = step.documents.iter().map(|document| document.loss_share).sum();
            prop_assert!((losses - 1.0).abs() < 1e-9 && (step.sum_of_norm_shares - 1.0).abs() < 1e-9);
            prop_assert!(step.documents.is_sorted_by(|a, b| a.norm_share >= b.norm_share));
        }
    }
}

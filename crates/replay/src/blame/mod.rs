//! The contribution of each document to a step's loss and gradient. `subject` is the job with its documents, and
//! `gradients` computes the loss and gradient of each document. `shares` and `spikes` are pure: `shares` ranks the
//! documents, and `spikes` selects the steps to explain.
//!
//! The loss of a step is the mean of the cross-entropies of its N targets. A document's share of the loss is the sum of
//! the cross-entropies of the document's targets, divided by the sum of all cross-entropies. These shares add up to 1.
//! The gradient g of the step is the sum of the gradients g_d of the documents. Each g_d is the gradient of the sum of
//! the document's cross-entropies, divided by N. A document's share of the gradient's norm is g_d . g / |g|^2. These
//! shares also add up to 1. The share is negative if the document's gradient points against the step's gradient.
//!
//! A document raises the loss by the difference between the mean over all targets and the mean over the targets of all
//! other documents.

mod gradients;
mod shares;
mod spikes;
mod subject;
mod windows;

pub use gradients::{DocumentGradient, StepGradients, TENSORS, document_gradients};
pub use shares::{DocumentBlame, PartBlame, RankBy, StepBlame};
pub use spikes::{Spike, SpikeRule, find_spikes};
pub use subject::BlamedJob;

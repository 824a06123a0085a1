//! Which documents made a step's loss and its gradient. `subject` is the job with its documents, `gradients` computes what each
//! document adds to a step; `shares` and `spikes` are pure: the documents in their order, and the steps worth asking about.
//!
//! The loss of a step is the mean of the cross-entropies of its N targets. A document's share of it is the sum of the
//! cross-entropies of its own targets over the sum of all: the shares add up to 1. The gradient g of the step is the sum of the
//! gradients g_d of the documents, each that of the sum of its cross-entropies over N. A document's share of the gradient's norm
//! is g_d . g / |g|^2: the shares add up to 1, and that of a document which pulls against the others is negative.
//!
//! A document raises the loss by the difference between the mean over all targets and the mean over those of all other documents.

mod gradients;
mod shares;
mod spikes;
mod subject;

pub(crate) use gradients::{DocumentGradient, StepGradients, TENSORS, document_gradients};
pub(crate) use shares::{DocumentBlame, PartBlame, RankBy, StepBlame};
pub(crate) use spikes::{Spike, SpikeRule, find_spikes};
pub(crate) use subject::Subject;

//! A weight that embedding and head share, whose gradients come from both ends of the pipeline.

use stagecoach_model::{Parameters, names};
use stagecoach_pipeline::Placement;
use stagecoach_transport::LinkId;
use tch::{Kind, Tensor};

use super::{Executor, StepError};

/// A tied embedding weight on this stage. Embedding and head accumulate into separate gradients, even when both are on
/// one stage.
#[derive(Debug)]
pub struct TiedEmbedding {
    /// The index of the weight in this stage's parameters. The weight's accumulator receives the embedding's gradient
    /// if this rank holds the embedding, otherwise the head's gradient.
    pub parameter: usize,
    /// The gradient of the other end of the pipeline: the head's local accumulator if both ends are on this rank,
    /// otherwise the gradient that the peer has sent.
    pub peer_gradient: Tensor,
    /// The stage of the other end; `None` if both ends are on this stage.
    pub(crate) peer: Option<usize>,
    /// Whether this rank holds the head. Only that rank reports the weight's norm and saves it.
    pub(crate) has_head: bool,
}

impl TiedEmbedding {
    /// Returns the tied embedding of a stage; `None` if the stage has neither embedding nor head, or the weight is
    /// frozen.
    pub(super) fn of_stage(index: usize, placement: &Placement, parameters: &Parameters) -> Option<TiedEmbedding> {
        let (first, last) = (placement.first_rank(), placement.last_rank());
        if index != first && index != last {
            return None;
        }
        let parameter = parameters.find(names::EMBEDDING)?;
        let peer_gradient = parameters[parameter].gradient.zeros_like();
        let peer = (first != last).then_some(if index == first { last } else { first });
        Some(TiedEmbedding { parameter, peer_gradient, peer, has_head: index == last })
    }
}

impl Executor<'_, '_> {
    /// Adds up the embedding's and the head's gradient of a tied weight, so that the stages of the embedding and of the
    /// head both hold the sum.
    pub(super) fn reduce_tied(&mut self) -> Result<(), StepError> {
        let (index, replica, stages) = (self.stage.index, self.stage.replica, self.placement.ranks());
        let Some(tied) = self.stage.tied_embedding.as_ref().filter(|tied| self.stage.owns(tied.parameter)) else {
            return Ok(());
        };
        if let Some(peer) = tied.peer {
            self.stage.set_activity(self.activity, "REDUCE_TIED", Some(replica.rank(peer, stages)));
        }
        let Some(tied) = self.stage.tied_embedding.as_mut() else { return Ok(()) };
        let own_gradient = &self.stage.parameters[tied.parameter].gradient;
        if let Some(peer) = tied.peer {
            let link = |from, to| LinkId::tied(from, to).in_replica(replica, stages);
            let (to_peer, from_peer) = (link(index, peer), link(peer, index));
            self.links.receiver(from_peer)?.post(0, &own_gradient.size(), Kind::Float);
            // a copy, because the sum below overwrites the gradient while the link may still read it
            self.links.sender(to_peer)?.send(0, own_gradient.copy())?;
            tied.peer_gradient = self.links.receiver(from_peer)?.wait(0)?;
        }
        let _ = own_gradient.shallow_clone().g_add_(&tied.peer_gradient);
        Ok(())
    }
}

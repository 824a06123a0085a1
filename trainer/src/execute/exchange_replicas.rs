//! What the replicas of a stage send each other: sums of gradients to the owner of each parameter, new weights from it.

use stagecoach_pipeline::{Replica, ReplicaBlocks, Subtree};
use tch::{Kind, Tensor, no_grad};

use super::executor::no_link;
use super::{Executor, Stage, StepError};
use crate::links::{LinkError, LinkId, Links};

impl Executor<'_> {
    /// Sends the sums of this replica to the owners of their parameters, and adds those of all replicas for its own parameters,
    /// as the tree of all blocks has it.
    pub(super) fn reduce(&mut self, blocks: &ReplicaBlocks) -> Result<(), StepError> {
        let Stage { replica, owners, gradient_sums, .. } = &*self.stage;
        let subtrees = |index| blocks.all().of_replica(index, replica.count).subtrees();
        let own_subtrees = subtrees(replica.index);
        let own = gradient_sums.of_replica(&own_subtrees);
        let mut peers = Peers::of(self.stage, self.links, self.placement.ranks());
        // every receive is posted before anything is sent: no replica waits for another that waits for it
        for index in replica.others() {
            let mut message = 0;
            for sums in own.iter().filter(|sums| owners[sums.parameter] == replica.index) {
                for _ in &subtrees(index) {
                    peers.post(index, message, Tensor::empty_like(sums.accumulator))?;
                    message += 1;
                }
            }
        }
        for index in replica.others() {
            self.activity.set("REDUCE", Some(peers.rank(index)));
            let sent = own.iter().filter(|sums| owners[sums.parameter] == index);
            for (message, tensor) in sent.flat_map(|sums| &sums.sums).enumerate() {
                peers.send(index, message, tensor)?;
            }
        }
        let owned: Vec<_> = own.iter().filter(|sums| owners[sums.parameter] == replica.index).collect();
        let mut received: Vec<Vec<(Subtree, Tensor)>> = owned.iter().map(|_| Vec::new()).collect();
        for index in 0..replica.count {
            let of_replica = subtrees(index);
            for (at, sums) in owned.iter().enumerate() {
                for (nth, &subtree) in of_replica.iter().enumerate() {
                    let tensor = match index == replica.index {
                        true => sums.sums[nth].shallow_clone(),
                        false => peers.wait(index, at * of_replica.len() + nth)?,
                    };
                    received[at].push((subtree, tensor));
                }
            }
        }
        for (sums, received) in owned.into_iter().zip(received) {
            let total = add_up(received);
            if let Some(total) = total.filter(|total| total.data_ptr() != sums.accumulator.data_ptr()) {
                no_grad(|| sums.accumulator.shallow_clone().copy_(&total));
            }
        }
        Ok(())
    }

    /// Sends the weights of this replica's own parameters to the others, as their layers read them, and receives theirs.
    pub(super) fn gather(&mut self) -> Result<(), StepError> {
        gather_weights(self.stage, self.links, self.placement.ranks(), &mut |peer| {
            self.activity.set("GATHER", peer);
        })?;
        Ok(())
    }
}

/// As [`Executor::gather`], of a stage in a pipeline of `stages`; `on_peer` gets the rank that is waited for.
pub(crate) fn gather_weights(
    stage: &Stage,
    links: &mut Links,
    stages: usize,
    on_peer: &mut dyn FnMut(Option<usize>),
) -> Result<(), LinkError> {
    let Stage { replica, owners, parameters, .. } = stage;
    let owned_by = |owner: usize| (0..parameters.len()).filter(move |&parameter| owners[parameter] == owner);
    let mut peers = Peers::of(stage, links, stages);
    for index in replica.others() {
        for parameter in owned_by(index) {
            peers.post(index, parameter, parameters[parameter].as_read().shallow_clone())?;
        }
    }
    for index in replica.others() {
        on_peer(Some(peers.rank(index)));
        for parameter in owned_by(replica.index) {
            peers.send(index, parameter, parameters[parameter].as_read())?;
        }
    }
    for index in replica.others() {
        on_peer(Some(peers.rank(index)));
        for parameter in owned_by(index) {
            drop(peers.wait(index, parameter)?);
        }
    }
    on_peer(None);
    Ok(())
}

/// The links to the same stage of other replicas.
struct Peers<'a> {
    stage: &'a Stage,
    links: &'a mut Links,
    stages: usize,
}

impl<'a> Peers<'a> {
    fn of(stage: &'a Stage, links: &'a mut Links, stages: usize) -> Peers<'a> {
        Peers { stage, links, stages }
    }

    fn rank(&self, replica: usize) -> usize {
        Replica { index: replica, ..self.stage.replica }.rank(self.stage.rank, self.stages)
    }

    fn own_rank(&self) -> usize {
        self.rank(self.stage.replica.index)
    }

    fn post(&mut self, from: usize, message: usize, tensor: Tensor) -> Result<(), LinkError> {
        let link = LinkId::replicas(self.rank(from), self.own_rank());
        self.links.receivers.get_mut(&link).ok_or_else(|| no_link(link))?.post_into(message, tensor);
        Ok(())
    }

    fn send(&mut self, to: usize, message: usize, tensor: &Tensor) -> Result<(), LinkError> {
        let link = LinkId::replicas(self.own_rank(), self.rank(to));
        let sender = self.links.senders.get(&link).ok_or_else(|| no_link(link))?;
        sender.send(message, tensor.shallow_clone())
    }

    fn wait(&mut self, from: usize, message: usize) -> Result<Tensor, LinkError> {
        let link = LinkId::replicas(self.rank(from), self.own_rank());
        self.links.receivers.get_mut(&link).ok_or_else(|| no_link(link))?.wait(message)
    }
}

/// The sum of all blocks, from sums in the order of their blocks. It is in the memory of one of them.
fn add_up(sums: Vec<(Subtree, Tensor)>) -> Option<Tensor> {
    let mut waiting: Vec<(Subtree, Tensor)> = Vec::new();
    for (mut subtree, mut sum) in sums {
        debug_assert_eq!(sum.kind(), Kind::Float);
        while let Some((_, left)) = waiting.pop_if(|(other, _)| *other == subtree.sibling()) {
            sum = left.shallow_clone().g_add_(&sum);
            subtree = subtree.parent();
        }
        waiting.push((subtree, sum));
    }
    waiting.pop().map(|(_, total)| total)
}

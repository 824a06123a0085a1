//! REDUCE and GATHER (reduce-scatter and all-gather, as in ZeRO-1). Each parameter of a stage has an owner, the replica
//! that updates it. In REDUCE, the replicas send their gradient sums to the owners. In GATHER, the owners send the new
//! weights to the other replicas. Both actions run chunk by chunk, concurrently with the computations.

use stagecoach_group::Activity;
use stagecoach_kernels::device::Timestamp;
use stagecoach_pipeline::{Action, Replica, ReplicaBlocks, Subtree};
use stagecoach_transport::{LinkError, LinkId, Links};
use tch::{Kind, Tensor, no_grad};

use super::executor::StepState;
use super::gradients::ReplicaSums;
use super::{Executor, Stage, StepError, StepInputs};

impl Executor<'_, '_> {
    /// Starts to send this replica's gradient sums of a chunk to the owners of the parameters, and to receive the other
    /// replicas' sums for the parameters that this replica owns.
    pub(super) fn begin_reduction(&mut self, chunk: usize, blocks: &ReplicaBlocks) -> Result<(), StepError> {
        let replica = self.stage.replica;
        let own_subtrees = subtrees(blocks, replica);
        let sums = sums_of(self.stage, chunk, &own_subtrees);
        let mut peers = ReplicaPeers::of(self.stage, self.links, self.placement.ranks());
        for index in replica.others() {
            let count = subtrees(blocks, Replica { index, ..replica }).len();
            for sums in owned_by(self.stage, &sums, replica.index) {
                for nth in 0..count {
                    peers.post(index, sums.index * count + nth, &Tensor::empty_like(sums.accumulator))?;
                }
            }
        }
        for index in replica.others() {
            for sums in owned_by(self.stage, &sums, index) {
                for (nth, sum) in sums.sums.iter().enumerate() {
                    peers.send(index, sums.index * own_subtrees.len() + nth, sum)?;
                }
            }
        }
        Ok(())
    }

    /// Waits for the gradient sums of the parameters that this replica owns in a chunk, and adds up these sums in the
    /// order of the tree of blocks. Returns the arrival time of each sum from another replica.
    fn finish_reduction(&mut self, chunk: usize, blocks: &ReplicaBlocks) -> Result<Vec<Timestamp>, StepError> {
        let replica = self.stage.replica;
        let sums = sums_of(self.stage, chunk, &subtrees(blocks, replica));
        let owned: Vec<&ReplicaSums> = owned_by(self.stage, &sums, replica.index).collect();
        let mut peers = ReplicaPeers::of(self.stage, self.links, self.placement.ranks());
        let mut received: Vec<Vec<(Subtree, Tensor)>> = owned.iter().map(|_| Vec::new()).collect();
        let mut arrived = Vec::new();
        for index in 0..replica.count {
            if index != replica.index {
                peers.stage.set_activity(self.activity, "REDUCE", Some(peers.rank(index)));
            }
            let replica_subtrees = subtrees(blocks, Replica { index, ..replica });
            for (received, sums) in received.iter_mut().zip(&owned) {
                for (nth, &subtree) in replica_subtrees.iter().enumerate() {
                    let tensor = if index == replica.index {
                        sums.sums[nth].shallow_clone()
                    } else {
                        let (tensor, at) = peers.wait(index, sums.index * replica_subtrees.len() + nth)?;
                        arrived.push(at);
                        tensor
                    };
                    received.push((subtree, tensor));
                }
            }
        }
        for (sums, received) in owned.into_iter().zip(received) {
            let total = add_up(received);
            if let Some(total) = total.filter(|total| total.data_ptr() != sums.accumulator.data_ptr()) {
                no_grad(|| sums.accumulator.shallow_clone().copy_(&total));
            }
        }
        Ok(arrived)
    }

    /// Waits until the gradients of all chunks are reduced.
    pub(super) fn finish_reductions(&mut self, inputs: &StepInputs, state: &mut StepState) -> Result<(), StepError> {
        for (chunk, began) in std::mem::take(&mut state.reductions) {
            let arrived = self.finish_reduction(chunk, inputs.blocks)?;
            state.timer.record(Action::Reduce(chunk), began, arrived);
        }
        Ok(())
    }

    /// Starts to send the weights that this replica owns in a chunk to the other replicas, in the dtype that layers
    /// read. Starts to receive the weights that the other replicas own.
    pub(super) fn begin_gather(&mut self, chunk: usize) -> Result<(), StepError> {
        Ok(begin_gather(self.stage, self.links, self.placement.ranks(), chunk)?)
    }

    /// Waits for the weights of a chunk. Returns the start time of their gather and the arrival time of each weight, or
    /// `None` if no gather of the chunk is in progress.
    pub(super) fn finish_gather(&mut self, chunk: usize) -> Result<Option<(Timestamp, Vec<Timestamp>)>, StepError> {
        Ok(finish_gather(self.stage, self.links, self.placement.ranks(), chunk, self.activity)?)
    }
}

/// Returns the subtrees whose sums a replica holds after its last microbatch.
fn subtrees(blocks: &ReplicaBlocks, replica: Replica) -> Vec<Subtree> {
    blocks.all().of_replica(replica.index, replica.count).subtrees()
}

/// Returns this replica's gradient sums of a chunk.
fn sums_of<'a>(stage: &'a Stage, chunk: usize, subtrees: &[Subtree]) -> Vec<ReplicaSums<'a>> {
    let has_head = stage.chunks.get(&chunk).is_some_and(|chunk| chunk.head.is_some());
    stage.gradients.sums.of_chunk(chunk, has_head, subtrees)
}

/// Returns the sums of the parameters that a replica owns.
fn owned_by<'a>(
    stage: &'a Stage,
    sums: &'a [ReplicaSums<'a>],
    owner: usize,
) -> impl Iterator<Item = &'a ReplicaSums<'a>> {
    sums.iter().filter(move |sums| stage.sharding.owners[sums.parameter] == owner)
}

/// Gathers the weights of all chunks of a stage in a pipeline of `stages` stages, as after an update. Each replica must
/// have loaded the parameters that it owns.
pub fn gather_weights(
    stage: &mut Stage,
    links: &mut Links,
    stages: usize,
    activity: &Activity,
) -> Result<(), LinkError> {
    let chunks: Vec<usize> = stage.chunks.keys().copied().collect();
    chunks.into_iter().try_for_each(|chunk| begin_gather(stage, links, stages, chunk))?;
    finish_gathers(stage, links, stages, activity)
}

/// Waits for all gathers in progress. The caller uses this function after a group's last step, because the executor
/// waits for a chunk's weights only before the chunk's next forward pass.
pub fn finish_gathers(
    stage: &mut Stage,
    links: &mut Links,
    stages: usize,
    activity: &Activity,
) -> Result<(), LinkError> {
    let chunks: Vec<usize> = stage.sharding.gathers.keys().copied().collect();
    chunks.into_iter().try_for_each(|chunk| finish_gather(stage, links, stages, chunk, activity).map(drop))
}

fn begin_gather(stage: &mut Stage, links: &mut Links, stages: usize, chunk: usize) -> Result<(), LinkError> {
    let replica = stage.replica;
    let mut peers = ReplicaPeers::of(stage, links, stages);
    for index in replica.others() {
        for parameter in stage.sharding.gathered(chunk, index) {
            // no computation reads these weights before they have arrived
            peers.post(index, parameter, stage.parameters[parameter].as_read())?;
        }
    }
    for index in replica.others() {
        for parameter in stage.sharding.gathered(chunk, replica.index) {
            // the weights stay unchanged while they are sent: the next update follows the next verdict, and no replica
            // can vote before it has these weights
            peers.send(index, parameter, stage.parameters[parameter].as_read())?;
        }
    }
    stage.sharding.gathers.insert(chunk, stage.timestamp());
    Ok(())
}

fn finish_gather(
    stage: &mut Stage,
    links: &mut Links,
    stages: usize,
    chunk: usize,
    activity: &Activity,
) -> Result<Option<(Timestamp, Vec<Timestamp>)>, LinkError> {
    let Some(begun) = stage.sharding.gathers.get(&chunk).cloned() else { return Ok(None) };
    let mut peers = ReplicaPeers::of(stage, links, stages);
    let mut arrived = Vec::new();
    for index in stage.replica.others() {
        stage.set_activity(activity, "GATHER", Some(peers.rank(index)));
        for parameter in stage.sharding.gathered(chunk, index) {
            arrived.push(peers.wait(index, parameter)?.1);
        }
    }
    stage.sharding.gathers.remove(&chunk);
    Ok(Some((begun, arrived)))
}

/// The links to the same stage of other replicas.
struct ReplicaPeers<'a> {
    stage: &'a Stage,
    links: &'a mut Links,
    stages: usize,
}

impl<'a> ReplicaPeers<'a> {
    fn of(stage: &'a Stage, links: &'a mut Links, stages: usize) -> ReplicaPeers<'a> {
        ReplicaPeers { stage, links, stages }
    }

    fn rank(&self, replica: usize) -> usize {
        Replica { index: replica, ..self.stage.replica }.rank(self.stage.index, self.stages)
    }

    fn own_rank(&self) -> usize {
        self.rank(self.stage.replica.index)
    }

    fn post(&mut self, from: usize, message: usize, tensor: &Tensor) -> Result<(), LinkError> {
        let link = LinkId::replicas(self.rank(from), self.own_rank());
        self.links.receiver(link)?.post_into(message, tensor.shallow_clone());
        Ok(())
    }

    fn send(&mut self, to: usize, message: usize, tensor: &Tensor) -> Result<(), LinkError> {
        let link = LinkId::replicas(self.own_rank(), self.rank(to));
        self.links.sender(link)?.send(message, tensor.shallow_clone())
    }

    fn wait(&mut self, from: usize, message: usize) -> Result<(Tensor, Timestamp), LinkError> {
        let link = LinkId::replicas(self.rank(from), self.own_rank());
        self.links.receiver(link)?.wait_for_arrival(message)
    }
}

/// Adds up the sums of all blocks, in the order of the blocks. The result reuses the memory of one of the sums.
fn add_up(sums: Vec<(Subtree, Tensor)>) -> Option<Tensor> {
    let mut waiting: Vec<(Subtree, Tensor)> = Vec::new();
    for (subtree, sum) in sums {
        debug_assert_eq!(sum.kind(), Kind::Float);
        subtree.push(sum, &mut waiting, |left, right| left.shallow_clone().g_add_(&right));
    }
    waiting.pop().map(|(_, total)| total)
}

//! The division of a stage's parameters among the replicas that update them, as in ZeRO-1.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use stagecoach_kernels::device::Timestamp;
use stagecoach_model::{ParameterSpec, names};

/// The owner of each parameter of a stage, and the gathers of weights from their owners.
#[derive(Debug)]
pub struct Sharding {
    /// The replica that owns each parameter.
    pub owners: Vec<usize>,
    /// The chunk with which each parameter is gathered: the first chunk that reads the parameter.
    pub(super) chunk_of: Vec<usize>,
    /// The chunks with a GATHER in progress, each with its start time.
    pub(super) gathers: BTreeMap<usize, Timestamp>,
}

impl Sharding {
    /// Returns the parameters that `owner` sends for a chunk.
    pub(super) fn gathered(&self, chunk: usize, owner: usize) -> impl Iterator<Item = usize> {
        let Sharding { owners, chunk_of, .. } = self;
        (0..owners.len()).filter(move |&parameter| owners[parameter] == owner && chunk_of[parameter] == chunk)
    }
}

/// Returns, for each parameter of a stage, the replica that owns the parameter. The owner adds up the parameter's
/// gradients, updates the parameter, and sends the new weights to the other replicas. Each replica owns whole tensors,
/// and all replicas own about the same number of bytes. A weight that embedding and head share has the same owner on
/// the embedding's stage and on the head's stage.
pub fn owners(parameters: &[&ParameterSpec], replicas: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..parameters.len()).collect();
    order.sort_by_key(|&p| (parameters[p].name != names::EMBEDDING, Reverse(parameters[p].numel()), p));
    let (mut owners, mut numel) = (vec![0; parameters.len()], vec![0; replicas]);
    for parameter in order {
        // the first of the replicas with the fewest values
        let owner = (0..replicas).min_by_key(|&replica| numel[replica]).unwrap_or(0);
        numel[owner] += parameters[parameter].numel();
        owners[parameter] = owner;
    }
    owners
}

//! The assignment of parameters to the replicas that update them.

use std::cmp::Reverse;

use stagecoach_model::{ParameterSpec, names};

/// For each parameter of a stage, the replica that owns it (as in ZeRO-1). The owner adds up the parameter's gradients,
/// updates it, and sends the new weights to the other replicas. Each replica owns whole tensors, and all replicas own
/// about the same number of bytes. A weight that embedding and head share has the same owner on both of their stages.
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

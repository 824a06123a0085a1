//! Everything a rank holds: its chunks, their parameters and the optimizer's state.

use std::collections::BTreeMap;

use stagecoach_pipeline::{Partition, Placement};
use tch::{Device, Tensor};

use super::Chunk;
use crate::autograd::{Tape, WeightQueue};
use crate::model::{Architecture, Embedding, Head, Parameters, Part, names};
use crate::optimize::{AdamW, Hyper};

/// What a stage is built from, the same for all ranks.
#[derive(Debug)]
pub struct Shape<'a> {
    /// The model.
    pub architecture: &'a dyn Architecture,
    /// Which rank holds which chunk.
    pub placement: &'a Placement,
    /// Which chunk holds which layers.
    pub partition: &'a Partition,
    /// Keys the initial weights.
    pub seed: u64,
    /// AdamW's numbers.
    pub hyper: Hyper,
    /// Compute the layers' insides again in backward.
    pub recompute: bool,
    /// Where tensors live.
    pub device: Device,
}

/// This rank's part in a tied embedding, which has two accumulators, also on one stage.
#[derive(Debug)]
pub struct Tied {
    /// The weight, in this stage's parameters; its accumulator is the embedding's if this rank holds the embedding,
    /// else the head's.
    pub parameter: usize,
    /// The other accumulator: the head's own if both are here, else what the peer sends.
    pub other: Tensor,
    /// The rank with the other one; `None` if both are here.
    pub peer: Option<usize>,
    /// This rank holds the head: it alone votes the weight's norm and saves it.
    pub has_head: bool,
}

/// One rank's model and optimizer.
#[derive(Debug)]
pub struct Stage {
    /// The rank.
    pub rank: usize,
    /// By chunk index.
    pub chunks: BTreeMap<usize, Chunk>,
    /// Of all chunks.
    pub parameters: Parameters,
    /// Each parameter's index in the sorted list of all the model's names.
    pub global_index: Vec<u32>,
    /// Its moments.
    pub optimizer: AdamW,
    /// Set if the model is tied and this rank holds one of its ends.
    pub tied: Option<Tied>,
    /// Where backward leaves weight gradients.
    pub tape: Tape,
    /// Where they wait for their W.
    pub queue: WeightQueue,
    /// Width of boundary tensors.
    pub hidden: i64,
    /// Where tensors live.
    pub device: Device,
}

impl Stage {
    /// Builds rank `rank`, with initial weights.
    pub fn build(rank: usize, shape: &Shape) -> Stage {
        let Shape { architecture, placement, partition, device, .. } = *shape;
        let last = placement.chunks() - 1;
        let parts: Vec<(usize, Part)> = placement
            .chunks_of(rank)
            .map(|chunk| (chunk, Part { layers: partition.range(chunk), first: chunk == 0, last: chunk == last }))
            .collect();
        let specs = parts.iter().flat_map(|(_, part)| architecture.parameters(part)).collect();
        let parameters = Parameters::new(specs, shape.seed, device);
        let all = architecture.all_parameters();
        let index = |name: &str| all.binary_search_by(|spec| spec.name.as_str().cmp(name)).ok();
        let global_index = parameters.iter().filter_map(|p| index(&p.spec.name)).map(|i| i as u32);
        let chunk = |part: &Part| Chunk {
            embedding: part.first.then(|| Embedding::new(&parameters)),
            layers: architecture.build(part, &parameters),
            head: part.last.then(|| Head::new(architecture.tied(), &parameters)),
            recompute: shape.recompute,
        };
        let chunks = parts.iter().map(|(index, part)| (*index, chunk(part))).collect();
        let (first, last) = (placement.rank_of(0), placement.rank_of(last));
        let tied = (architecture.tied() && (rank == first || rank == last)).then(|| {
            let parameter = parameters.index(names::EMBEDDING);
            let peer = (first != last).then_some(if rank == first { last } else { first });
            Tied { parameter, other: parameters[parameter].gradient.zeros_like(), peer, has_head: rank == last }
        });
        Stage {
            rank,
            chunks,
            global_index: global_index.collect(),
            optimizer: AdamW::new(shape.hyper, &parameters),
            tied,
            tape: Tape::new(),
            queue: WeightQueue::default(),
            hidden: architecture.hidden() as i64,
            device,
            parameters,
        }
    }

    /// Whether this rank answers for `parameter` in norms, hashes and checkpoints: a tied weight is its head's.
    pub fn owns(&self, parameter: usize) -> bool {
        !self.tied.as_ref().is_some_and(|tied| tied.parameter == parameter && !tied.has_head)
    }

    /// The accumulator that `head` adds to.
    pub fn head_accumulator(&self, head: &Head) -> &Tensor {
        match &self.tied {
            Some(Tied { other, peer: None, .. }) => other,
            _ => &self.parameters[head.parameter].gradient,
        }
    }

    /// A step starts: every accumulator at zero.
    pub fn zero_gradients(&self) {
        self.parameters.zero_gradients();
        if let Some(tied) = &self.tied {
            let _ = tied.other.shallow_clone().zero_();
        }
    }

    /// Squared norm of each gradient that this rank answers for, f64, with its global index.
    pub fn squared_norms(&self) -> Vec<(u32, f64)> {
        let norm = |gradient: &Tensor| gradient.norm_scalaropt_dtype(2.0, tch::Kind::Double).double_value(&[]);
        (0..self.parameters.len())
            .filter(|&p| self.owns(p))
            .map(|p| (self.global_index[p], norm(&self.parameters[p].gradient).powi(2)))
            .collect()
    }
}

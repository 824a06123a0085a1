//! Defines the unit of work of a schedule.

/// One microbatch in one chunk. `chunk` is torch's `stage_index`: a virtual stage, counted over the whole pipeline.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WorkItem {
    /// The index of the chunk. Chunk 0 holds the embedding.
    pub chunk: usize,
    /// The index of the microbatch, from 0.
    pub microbatch: usize,
}

//! The unit of work of a schedule.

/// One microbatch in one chunk. `chunk` is torch's `stage_index`: a virtual stage, counted over the whole pipeline.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WorkItem {
    /// Chunk index, from 0 at the embedding.
    pub chunk: usize,
    /// Microbatch index, from 0.
    pub microbatch: usize,
}

use super::Schedule;

/// A schedule for any number of ranks and microbatches.
#[derive(Clone, Copy, Debug)]
pub struct ScheduleType {
    /// torch's name, by which a job chooses it.
    pub name: &'static str,
    /// One sentence for the author of a job.
    pub description: &'static str,
    /// The number of chunks of a rank.
    pub chunks: ChunkRule,
    /// Builds the schedule for a number of ranks, of chunks per rank, and of microbatches.
    pub(super) build: fn(usize, usize, usize) -> Schedule,
}

/// The number of chunks of a rank in a schedule. The order is from the simplest rule to the most complex.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ChunkRule {
    /// One chunk.
    One,
    /// One chunk or more.
    Any,
    /// Two chunks.
    Two,
}

impl ScheduleType {
    /// The schedule for at least one rank, chunk and microbatch. A fixed number of chunks replaces `chunks_per_rank`.
    pub fn schedule(&self, ranks: usize, chunks_per_rank: usize, microbatches: usize) -> Schedule {
        (self.build)(ranks, chunks_per_rank, microbatches)
    }
}

impl PartialEq for ScheduleType {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl ChunkRule {
    /// The number of chunks; `None` if several numbers are possible.
    pub const fn fixed(self) -> Option<usize> {
        match self {
            Self::One => Some(1),
            Self::Two => Some(2),
            Self::Any => None,
        }
    }

    /// Whether a rank may have `chunks` chunks.
    pub fn allows(self, chunks: usize) -> bool {
        self.fixed().map_or(chunks >= 1, |fixed| chunks == fixed)
    }
}

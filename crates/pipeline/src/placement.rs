//! Defines the placement of chunks (groups of consecutive layers) on ranks.

use crate::work_item::WorkItem;

/// The rank of every chunk. Chunks are numbered in the order of their layers.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Placement {
    rank_of: Vec<usize>,
    ranks: usize,
}

/// The reason why a list of ranks is not a placement.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlacementError {
    /// The list is empty.
    #[error("a placement needs at least one chunk, got an empty list")]
    Empty,
    /// A rank between rank 0 and the highest rank has no chunk.
    #[error("rank {rank} holds no chunk, yet ranks up to {highest} are used: number the ranks from 0 without gaps")]
    Gap {
        /// The rank without a chunk.
        rank: usize,
        /// The highest rank in the list.
        highest: usize,
    },
}

impl Placement {
    /// Creates the placement whose chunk `i` is on rank `rank_of[i]`.
    ///
    /// # Errors
    /// Returns an error if the list is empty, or if it skips a rank.
    pub fn new(rank_of: Vec<usize>) -> Result<Self, PlacementError> {
        let highest = *rank_of.iter().max().ok_or(PlacementError::Empty)?;
        let mut used: Vec<usize> = rank_of.clone();
        used.sort_unstable();
        used.dedup();
        if let Some((rank, _)) = used.iter().enumerate().find(|&(expected, &rank)| expected != rank) {
            return Err(PlacementError::Gap { rank, highest });
        }
        Ok(Placement { rank_of, ranks: used.len() })
    }

    /// Creates the placement over `ranks` ranks whose chunk `i` is on rank `rank_of[i]`. Every rank must have a chunk.
    pub(crate) fn of_ranks(rank_of: Vec<usize>, ranks: usize) -> Self {
        Placement { rank_of, ranks }
    }

    /// Creates a placement with one chunk per rank.
    pub fn linear(ranks: usize) -> Self {
        Self::looped(ranks, 1)
    }

    /// Creates a placement with several chunks per rank, interleaved: chunk `c` is on rank `c % ranks`.
    pub fn looped(ranks: usize, chunks_per_rank: usize) -> Self {
        let rank_of = (0..ranks * chunks_per_rank).map(|chunk| chunk % ranks).collect();
        Placement { rank_of, ranks }
    }

    /// Creates a V-shaped placement with two chunks per rank: the first and the last chunk are both on rank 0.
    pub fn v_shaped(ranks: usize) -> Self {
        Placement { rank_of: (0..ranks).chain((0..ranks).rev()).collect(), ranks }
    }

    /// Returns the number of ranks.
    pub fn ranks(&self) -> usize {
        self.ranks
    }

    /// Returns the number of chunks.
    pub fn chunks(&self) -> usize {
        self.rank_of.len()
    }

    /// Returns the rank that holds `chunk`, or `None` if the chunk does not exist.
    pub fn get_rank(&self, chunk: usize) -> Option<usize> {
        self.rank_of.get(chunk).copied()
    }

    /// Returns the rank that holds `chunk`.
    ///
    /// # Panics
    /// Panics if `chunk` is not less than [`chunks`](Self::chunks).
    pub fn rank_of(&self, chunk: usize) -> usize {
        self.rank_of[chunk]
    }

    /// Returns the rank of the first chunk, which holds the embedding.
    ///
    /// # Panics
    /// Panics if there is no chunk.
    pub fn first_rank(&self) -> usize {
        self.rank_of[0]
    }

    /// Returns the rank of the last chunk, which holds the head.
    ///
    /// # Panics
    /// Panics if there is no chunk.
    pub fn last_rank(&self) -> usize {
        self.rank_of[self.chunks() - 1]
    }

    /// Returns the chunks of `rank` in ascending order.
    pub fn chunks_of(&self, rank: usize) -> impl Iterator<Item = usize> + '_ {
        self.rank_of.iter().enumerate().filter(move |&(_, &owner)| owner == rank).map(|(chunk, _)| chunk)
    }

    /// Returns the rank of every chunk, in the form that [`new`](Self::new) accepts.
    pub fn as_slice(&self) -> &[usize] {
        &self.rank_of
    }

    /// Returns the work item that computes the input of `item`, or `None` on the first chunk.
    pub fn previous(&self, item: WorkItem) -> Option<WorkItem> {
        Some(WorkItem { chunk: item.chunk.checked_sub(1)?, ..item })
    }

    /// Returns the work item whose input is the output of `item`, or `None` on the last chunk.
    pub fn next(&self, item: WorkItem) -> Option<WorkItem> {
        (item.chunk + 1 < self.chunks()).then_some(WorkItem { chunk: item.chunk + 1, ..item })
    }

    /// Whether `chunk` is the first one, which holds the embedding.
    pub fn is_first(&self, chunk: usize) -> bool {
        chunk == 0
    }

    /// Whether `chunk` is the last one, which computes the loss.
    pub fn is_last(&self, chunk: usize) -> bool {
        chunk + 1 == self.chunks()
    }

    /// Whether both chunks exist and are on different ranks, so that data between them needs a message.
    pub(crate) fn crosses_ranks(&self, chunk: usize, neighbour: usize) -> bool {
        matches!((self.get_rank(chunk), self.get_rank(neighbour)), (Some(a), Some(b)) if a != b)
    }

    /// Returns the ranks of the first and the last chunk, which share a tied embedding. The list has one entry if both
    /// chunks are on one rank.
    pub fn first_and_last_ranks(&self) -> Vec<usize> {
        let mut ends: Vec<usize> = self.rank_of.first().into_iter().chain(self.rank_of.last()).copied().collect();
        ends.dedup();
        ends
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes() {
        assert_eq!(Placement::linear(3).as_slice(), [0, 1, 2]);
        assert_eq!(Placement::looped(2, 3).as_slice(), [0, 1, 0, 1, 0, 1]);
        assert_eq!(Placement::v_shaped(3).as_slice(), [0, 1, 2, 2, 1, 0]);
        assert_eq!(Placement::v_shaped(3).chunks_of(1).collect::<Vec<_>>(), [1, 4]);
        assert_eq!(Placement::v_shaped(3).first_and_last_ranks(), [0]);
        assert_eq!(Placement::linear(3).first_and_last_ranks(), [0, 2]);
        assert!(Placement::v_shaped(3).crosses_ranks(1, 2) && !Placement::v_shaped(3).crosses_ranks(2, 3));
    }

    #[test]
    fn a_list_with_gaps_is_refused() {
        assert_eq!(Placement::new(vec![]), Err(PlacementError::Empty));
        assert_eq!(Placement::new(vec![0, 2]), Err(PlacementError::Gap { rank: 1, highest: 2 }));
        assert_eq!(Placement::new(vec![1, 1]), Err(PlacementError::Gap { rank: 0, highest: 1 }));
        assert_eq!(Placement::new(vec![0, 1, 1, 0]), Ok(Placement::v_shaped(2)));
    }
}

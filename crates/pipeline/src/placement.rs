//! Which rank holds which chunk.

/// The rank of every chunk. Chunks are numbered in the order in which the layers follow each other.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Placement {
    rank_of: Vec<usize>,
    ranks: usize,
}

/// A list of ranks that is no placement.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlacementError {
    /// No chunk at all.
    #[error("a placement needs at least one chunk, got an empty list")]
    Empty,
    /// A rank between 0 and the highest holds nothing.
    #[error("rank {rank} holds no chunk, yet ranks up to {highest} are used: number the ranks from 0 without gaps")]
    Gap {
        /// The rank without a chunk.
        rank: usize,
        /// The highest rank in the list.
        highest: usize,
    },
}

impl Placement {
    /// The placement whose chunk `i` is on rank `rank_of[i]`.
    ///
    /// # Errors
    /// If the list is empty or leaves a rank without a chunk.
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

    /// One chunk a rank.
    pub fn linear(ranks: usize) -> Self {
        Self::looped(ranks, 1)
    }

    /// Several chunks a rank, dealt out in turn: chunk `c` is on rank `c % ranks`.
    pub fn looped(ranks: usize, chunks_per_rank: usize) -> Self {
        let rank_of = (0..ranks * chunks_per_rank).map(|chunk| chunk % ranks).collect();
        Placement { rank_of, ranks }
    }

    /// Two chunks a rank, down and up again: the first and the last chunk are both on rank 0.
    pub fn v(ranks: usize) -> Self {
        Placement { rank_of: (0..ranks).chain((0..ranks).rev()).collect(), ranks }
    }

    /// The number of ranks.
    pub fn ranks(&self) -> usize {
        self.ranks
    }

    /// The number of chunks.
    pub fn chunks(&self) -> usize {
        self.rank_of.len()
    }

    /// The rank that holds `chunk`; none if there is no such chunk.
    pub fn owner(&self, chunk: usize) -> Option<usize> {
        self.rank_of.get(chunk).copied()
    }

    /// The rank that holds `chunk`, which must be less than [`chunks`](Self::chunks).
    pub fn rank_of(&self, chunk: usize) -> usize {
        self.rank_of[chunk]
    }

    /// The chunks of `rank`, ascending.
    pub fn chunks_of(&self, rank: usize) -> impl Iterator<Item = usize> + '_ {
        self.rank_of.iter().enumerate().filter(move |&(_, &owner)| owner == rank).map(|(chunk, _)| chunk)
    }

    /// The rank of every chunk: what [`new`](Self::new) takes.
    pub fn as_slice(&self) -> &[usize] {
        &self.rank_of
    }

    /// Whether `chunk` is the one that computes the loss.
    pub fn is_last(&self, chunk: usize) -> bool {
        chunk + 1 == self.chunks()
    }

    /// Whether both chunks exist and are on different ranks, so that a message has to travel between them.
    pub fn crosses(&self, chunk: usize, neighbour: usize) -> bool {
        matches!((self.owner(chunk), self.owner(neighbour)), (Some(a), Some(b)) if a != b)
    }

    /// The ranks of the first and the last chunk: those that share a tied embedding. One entry where they coincide.
    pub fn ends(&self) -> Vec<usize> {
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
        assert_eq!(Placement::v(3).as_slice(), [0, 1, 2, 2, 1, 0]);
        assert_eq!(Placement::v(3).chunks_of(1).collect::<Vec<_>>(), [1, 4]);
        assert_eq!(Placement::v(3).ends(), [0]);
        assert_eq!(Placement::linear(3).ends(), [0, 2]);
        assert!(Placement::v(3).crosses(1, 2) && !Placement::v(3).crosses(2, 3));
    }

    #[test]
    fn a_list_with_gaps_is_refused() {
        assert_eq!(Placement::new(vec![]), Err(PlacementError::Empty));
        assert_eq!(Placement::new(vec![0, 2]), Err(PlacementError::Gap { rank: 1, highest: 2 }));
        assert_eq!(Placement::new(vec![1, 1]), Err(PlacementError::Gap { rank: 0, highest: 1 }));
        assert_eq!(Placement::new(vec![0, 1, 1, 0]), Ok(Placement::v(2)));
    }
}

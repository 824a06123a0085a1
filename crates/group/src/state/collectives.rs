//! Collective operations: votes and all-gathers, which complete once every member has contributed. This module is pure.
//! Ranks in this file are group ranks, which number the members of a group from 0.

use std::collections::BTreeMap;

use crate::StepVote;

/// The group's incomplete vote and its incomplete all-gathers, at most one per topic. Contributions are stored by group
/// rank.
#[derive(Debug)]
pub(crate) struct Collectives {
    votes: Vec<Option<StepVote>>,
    gathers: BTreeMap<u32, Vec<Option<Vec<u8>>>>,
}

/// The error of a member that contributes twice to one collective.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct DuplicateContribution;

impl Collectives {
    pub(crate) fn new(group_size: usize) -> Self {
        Collectives { votes: vec![None; group_size], gathers: BTreeMap::new() }
    }

    /// Adds a member's vote. Returns all votes by group rank once every member has voted.
    pub(crate) fn vote(
        &mut self,
        group_rank: usize,
        vote: StepVote,
    ) -> Result<Option<Vec<StepVote>>, DuplicateContribution> {
        fill_slot(&mut self.votes, group_rank, vote)
    }

    /// Adds a member's contribution to a topic. Returns all contributions by group rank once every member has
    /// contributed.
    pub(crate) fn gather(
        &mut self,
        topic: u32,
        group_rank: usize,
        part: Vec<u8>,
    ) -> Result<Option<Vec<Vec<u8>>>, DuplicateContribution> {
        let group_size = self.votes.len();
        let all = fill_slot(self.gathers.entry(topic).or_insert_with(|| vec![None; group_size]), group_rank, part)?;
        if all.is_some() {
            self.gathers.remove(&topic);
        }
        Ok(all)
    }

    /// Returns, for a member that has contributed, the collective that the member waits for and the first group rank
    /// that has not contributed.
    pub(crate) fn waiting_for(&self, group_rank: usize) -> Option<(String, usize)> {
        if let Some(vote) = &self.votes[group_rank] {
            let missing = self.votes.iter().position(Option::is_none)?;
            return Some((format!("the vote on step {}", vote.step), missing));
        }
        let waiting = self.gathers.values().find(|parts| parts[group_rank].is_some())?;
        Some(("the contributions to an all-gather".to_owned(), waiting.iter().position(Option::is_none)?))
    }
}

/// Fills a member's slot. Once every slot is filled, empties the slots and returns all values.
fn fill_slot<T>(slots: &mut [Option<T>], group_rank: usize, value: T) -> Result<Option<Vec<T>>, DuplicateContribution> {
    if slots[group_rank].is_some() {
        return Err(DuplicateContribution);
    }
    slots[group_rank] = Some(value);
    if slots.iter().any(Option::is_none) {
        return Ok(None);
    }
    Ok(Some(slots.iter_mut().filter_map(Option::take).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gather_completes_with_the_last_part_and_can_be_repeated() {
        let mut collectives = Collectives::new(2);
        for round in 0..3u8 {
            assert_eq!(collectives.gather(7, 1, vec![round, 1]), Ok(None));
            assert_eq!(collectives.waiting_for(1), Some(("the contributions to an all-gather".to_owned(), 0)));
            assert_eq!(collectives.gather(7, 1, vec![]), Err(DuplicateContribution));
            // topics are independent
            assert_eq!(collectives.gather(8, 1, vec![9]), Ok(None));
            assert_eq!(collectives.gather(7, 0, vec![round, 0]), Ok(Some(vec![vec![round, 0], vec![round, 1]])));
            assert_eq!(collectives.gather(8, 0, vec![8]), Ok(Some(vec![vec![8], vec![9]])));
            assert_eq!(collectives.waiting_for(1), None);
        }
    }
}

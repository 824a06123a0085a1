//! Collective operations that complete once every rank has contributed: votes and gathers. Pure.

use std::collections::BTreeMap;

use crate::verdict::decide_step;
use crate::{StepRules, StepVote, Verdict};

/// The group's incomplete vote and its incomplete gathers, one per topic.
#[derive(Debug)]
pub(crate) struct Exchange {
    rules: StepRules,
    votes: Vec<Option<StepVote>>,
    gathers: BTreeMap<u32, Vec<Option<Vec<u8>>>>,
}

/// A rank contributed twice to one collective.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct DuplicateContribution;

impl Exchange {
    pub(crate) fn new(world_size: usize, rules: StepRules) -> Self {
        Exchange { rules, votes: vec![None; world_size], gathers: BTreeMap::new() }
    }

    /// Adds a rank's vote; returns the verdict once all ranks have voted.
    pub(crate) fn vote(&mut self, rank: usize, vote: StepVote) -> Result<Option<Verdict>, DuplicateContribution> {
        Ok(fill_slot(&mut self.votes, rank, vote)?.map(|votes| decide_step(&votes, &self.rules)))
    }

    /// Adds a rank's contribution to a topic; returns all, by rank, once every rank has contributed.
    pub(crate) fn gather(
        &mut self,
        topic: u32,
        rank: usize,
        part: Vec<u8>,
    ) -> Result<Option<Vec<Vec<u8>>>, DuplicateContribution> {
        let world_size = self.votes.len();
        let all = fill_slot(self.gathers.entry(topic).or_insert_with(|| vec![None; world_size]), rank, part)?;
        if all.is_some() {
            self.gathers.remove(&topic);
        }
        Ok(all)
    }

    /// What `rank` waits for and the first rank that has not contributed, if `rank` itself has contributed.
    pub(crate) fn waiting_for(&self, rank: usize) -> Option<(String, usize)> {
        if let Some(vote) = &self.votes[rank] {
            let missing = self.votes.iter().position(Option::is_none)?;
            return Some((format!("the vote on step {}", vote.step), missing));
        }
        let waiting = self.gathers.values().find(|parts| parts[rank].is_some())?;
        Some(("its part of a gather".to_owned(), waiting.iter().position(Option::is_none)?))
    }
}

/// Fills a rank's slot; takes all values once every slot is filled.
fn fill_slot<T>(slots: &mut [Option<T>], rank: usize, value: T) -> Result<Option<Vec<T>>, DuplicateContribution> {
    if slots[rank].is_some() {
        return Err(DuplicateContribution);
    }
    slots[rank] = Some(value);
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
        let mut exchange = Exchange::new(2, StepRules::default());
        for round in 0..3u8 {
            assert_eq!(exchange.gather(7, 1, vec![round, 1]), Ok(None));
            assert_eq!(exchange.waiting_for(1), Some(("its part of a gather".to_owned(), 0)));
            assert_eq!(exchange.gather(7, 1, vec![]), Err(DuplicateContribution));
            // topics are independent
            assert_eq!(exchange.gather(8, 1, vec![9]), Ok(None));
            assert_eq!(exchange.gather(7, 0, vec![round, 0]), Ok(Some(vec![vec![round, 0], vec![round, 1]])));
            assert_eq!(exchange.gather(8, 0, vec![8]), Ok(Some(vec![vec![8], vec![9]])));
            assert_eq!(exchange.waiting_for(1), None);
        }
    }
}

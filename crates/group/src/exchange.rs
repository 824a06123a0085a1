//! What all ranks must bring before any of them gets an answer: votes and gathers. Pure.

use std::collections::BTreeMap;

use crate::verdict::verdict;
use crate::{Rules, StepVote, Verdict};

/// The open vote of a group, and its open gathers, one a topic.
#[derive(Debug)]
pub(crate) struct Exchange {
    rules: Rules,
    votes: Vec<Option<StepVote>>,
    gathers: BTreeMap<u32, Vec<Option<Vec<u8>>>>,
}

/// A rank brought a second one before the first was answered: a member waits for its answer.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Twice;

impl Exchange {
    pub(crate) fn new(world: usize, rules: Rules) -> Self {
        Exchange { rules, votes: vec![None; world], gathers: BTreeMap::new() }
    }

    /// Takes a vote; the last one brings the verdict.
    pub(crate) fn vote(&mut self, rank: usize, vote: StepVote) -> Result<Option<Verdict>, Twice> {
        Ok(put(&mut self.votes, rank, vote)?.map(|votes| verdict(&votes, &self.rules)))
    }

    /// Takes a rank's part of a topic; the last one brings all, by rank.
    pub(crate) fn gather(&mut self, topic: u32, rank: usize, part: Vec<u8>) -> Result<Option<Vec<Vec<u8>>>, Twice> {
        let world = self.votes.len();
        let all = put(self.gathers.entry(topic).or_insert_with(|| vec![None; world]), rank, part)?;
        if all.is_some() {
            self.gathers.remove(&topic);
        }
        Ok(all)
    }

    /// What `rank` waits for, and from whom, if it has brought its part of something that others have not.
    pub(crate) fn waits(&self, rank: usize) -> Option<(String, usize)> {
        if let Some(vote) = &self.votes[rank] {
            let missing = self.votes.iter().position(Option::is_none)?;
            return Some((format!("the vote on step {}", vote.step), missing));
        }
        let brought = self.gathers.values().find(|parts| parts[rank].is_some())?;
        Some(("its part of a gather".to_owned(), brought.iter().position(Option::is_none)?))
    }
}

/// Fills a rank's slot; the last one empties them all.
fn put<T>(slots: &mut [Option<T>], rank: usize, value: T) -> Result<Option<Vec<T>>, Twice> {
    if slots[rank].is_some() {
        return Err(Twice);
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
    fn a_gather_is_complete_with_the_last_part_and_then_starts_anew() {
        let mut exchange = Exchange::new(2, Rules::default());
        for round in 0..3u8 {
            assert_eq!(exchange.gather(7, 1, vec![round, 1]), Ok(None));
            assert_eq!(exchange.waits(1), Some(("its part of a gather".to_owned(), 0)));
            assert_eq!(exchange.gather(7, 1, vec![]), Err(Twice));
            // another topic is another gather
            assert_eq!(exchange.gather(8, 1, vec![9]), Ok(None));
            assert_eq!(exchange.gather(7, 0, vec![round, 0]), Ok(Some(vec![vec![round, 0], vec![round, 1]])));
            assert_eq!(exchange.gather(8, 0, vec![8]), Ok(Some(vec![vec![8], vec![9]])));
            assert_eq!(exchange.waits(1), None);
        }
    }
}

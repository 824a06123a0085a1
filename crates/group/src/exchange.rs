//! What all ranks must bring before any of them gets an answer: votes and gathers. Pure.

use crate::verdict::verdict;
use crate::{Rules, StepVote, Verdict};

/// The open vote and the open gather of a group.
#[derive(Debug)]
pub(crate) struct Exchange {
    rules: Rules,
    skips_in_a_row: u32,
    votes: Vec<Option<StepVote>>,
    parts: Vec<Option<Vec<u8>>>,
}

/// A rank brought a second one before the first was answered: a member waits for its answer.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Twice;

impl Exchange {
    pub(crate) fn new(world: usize, rules: Rules) -> Self {
        Exchange { skips_in_a_row: rules.skips_in_a_row, rules, votes: vec![None; world], parts: vec![None; world] }
    }

    /// Takes a vote; the last one brings the verdict.
    pub(crate) fn vote(&mut self, rank: usize, vote: StepVote) -> Result<Option<Verdict>, Twice> {
        let Some(votes) = put(&mut self.votes, rank, vote)? else {
            return Ok(None);
        };
        let decided = verdict(&votes, &self.rules, self.skips_in_a_row);
        self.skips_in_a_row = decided.skips_in_a_row;
        Ok(Some(decided))
    }

    /// Takes a rank's part; the last one brings all, by rank.
    pub(crate) fn gather(&mut self, rank: usize, part: Vec<u8>) -> Result<Option<Vec<Vec<u8>>>, Twice> {
        put(&mut self.parts, rank, part)
    }

    /// What `rank` waits for, and from whom, if it has brought its part of something that others have not.
    pub(crate) fn waits(&self, rank: usize) -> Option<(String, usize)> {
        if let Some(vote) = &self.votes[rank] {
            let missing = self.votes.iter().position(Option::is_none)?;
            return Some((format!("the vote on step {}", vote.step), missing));
        }
        self.parts[rank].as_ref()?;
        Some(("its part of a gather".to_owned(), self.parts.iter().position(Option::is_none)?))
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
            assert_eq!(exchange.gather(1, vec![round, 1]), Ok(None));
            assert_eq!(exchange.waits(1), Some(("its part of a gather".to_owned(), 0)));
            assert_eq!(exchange.gather(1, vec![]), Err(Twice));
            assert_eq!(exchange.gather(0, vec![round, 0]), Ok(Some(vec![vec![round, 0], vec![round, 1]])));
            assert_eq!(exchange.waits(1), None);
        }
    }

    #[test]
    fn skips_are_counted_from_where_the_checkpoint_left() {
        let rules = Rules { max_skips_in_a_row: 4, skips_in_a_row: 2, ..Rules::default() };
        let mut exchange = Exchange::new(1, rules);
        let bad = StepVote { loss: Some(f32::NAN), ..StepVote::default() };
        let skipped = exchange.vote(0, bad.clone()).unwrap().unwrap();
        assert_eq!((skipped.outcome, skipped.skips_in_a_row), (crate::Outcome::Skip, 3));
        let last = exchange.vote(0, bad).unwrap().unwrap();
        assert!(matches!(last.outcome, crate::Outcome::Abort { .. }));
    }
}

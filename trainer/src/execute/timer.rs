//! When the actions of a step began and ended on this stage.

use std::collections::BTreeMap;
use std::time::Instant;

use stagecoach_pipeline::Action;

/// Whether the time of an action is recorded: computations, REDUCE and GATHER, and what ends the step. Messages are sent and
/// received by other threads; UPDATE comes after the vote that carries the times.
pub(crate) fn is_timed(action: Action) -> bool {
    action.is_compute() || action.is_between_replicas() || matches!(action, Action::ReduceTied | Action::Exchange)
}

/// Records the timed actions of one step.
#[derive(Clone, Debug)]
pub(crate) struct StepTimer {
    origin: Instant,
    /// When this step's first action could begin.
    started: Instant,
    begin_seconds: f64,
    /// Of what this stage does itself, in the order of the program.
    spans: Vec<(f64, f64)>,
    /// Of what goes between replicas meanwhile: the REDUCEs of this step, and the GATHERs of the step before, which end in this one.
    replica_spans: BTreeMap<Action, (f64, f64)>,
    /// When the last of those ended.
    replicas_until: Instant,
}

impl StepTimer {
    /// Times count from `origin`.
    pub(crate) fn new(origin: Instant) -> StepTimer {
        let started = Instant::now();
        StepTimer {
            origin,
            started,
            begin_seconds: 0.0,
            spans: Vec::new(),
            replica_spans: BTreeMap::new(),
            replicas_until: started,
        }
    }

    /// An action begins: its input is there.
    pub(crate) fn begin(&mut self) {
        self.begin_seconds = self.seconds(Instant::now());
    }

    /// The action that began last ends.
    pub(crate) fn end(&mut self) {
        self.spans.push((self.begin_seconds, self.seconds(Instant::now())));
    }

    /// A REDUCE or GATHER that `began` then; one counts after the other, as they share their links. What began in the
    /// step before counts from the begin of this one. Nothing is recorded if it is not known when it ended.
    pub(crate) fn record(&mut self, action: Action, began: Instant, ended: Option<Instant>) {
        let Some(ended) = ended else { return };
        let begin = began.max(self.started).max(self.replicas_until);
        let end = ended.max(begin);
        self.replica_spans.insert(action, (self.seconds(begin), self.seconds(end)));
        self.replicas_until = end;
    }

    /// Begin and end of each timed action of `program` so far, in its order, in seconds. Of a REDUCE or GATHER of
    /// which nothing is known, and of one that was awaited before this step, the begin of the first computation is both.
    pub(crate) fn spans(&self, program: &[Action]) -> Vec<(f64, f64)> {
        let unknown = self.spans.first().map_or(0.0, |&(begin, _)| begin);
        let mut own = self.spans.iter().copied();
        let span = |action: &Action| match action.is_between_replicas() {
            true => Some(self.replica_spans.get(action).copied().unwrap_or((unknown, unknown))),
            false => own.next(),
        };
        program.iter().filter(|action| is_timed(**action)).map_while(span).collect()
    }

    fn seconds(&self, at: Instant) -> f64 {
        at.saturating_duration_since(self.origin).as_secs_f64()
    }
}

/// The index in `program` of the action before which a stage waited longest in a step, by the spans of its timed actions and the
/// second at which the step was decided: the wait for the verdict counts as one before EXCHANGE. None without spans.
pub(crate) fn longest_wait(program: &[Action], spans: &[(f64, f64)], decided: f64) -> Option<usize> {
    let timed = (0..program.len()).filter(|&index| is_timed(program[index])).zip(spans);
    // REDUCE and GATHER run beside what the stage does
    let (indices, spans): (Vec<usize>, Vec<(f64, f64)>) =
        timed.filter(|(index, _)| !program[*index].is_between_replicas()).unzip();
    let ends = std::iter::once(0.0).chain(spans.iter().map(|&(_, end)| end));
    let begins = spans.iter().map(|&(begin, _)| begin).chain([decided]);
    let last = indices.last().copied();
    let waits = ends.zip(begins).map(|(end, begin)| begin - end);
    let longest = indices.into_iter().chain(last).zip(waits).max_by(|(_, one), (_, other)| one.total_cmp(other));
    longest.map(|(index, _)| index)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_longest_wait_is_found_whatever_it_is_for() {
        let program: Vec<Action> = ["0F0", "0SEND_F0", "0RECV_B0", "0B0", "EXCHANGE", "UPDATE"]
            .into_iter()
            .map(|text| text.parse().unwrap())
            .collect();
        let found = |spans: &[(f64, f64)], decided| longest_wait(&program, spans, decided);
        assert_eq!(found(&[(0.1, 1.0), (3.0, 4.0), (4.0, 4.1)], 4.5), Some(3)); // for the gradient
        assert_eq!(found(&[(2.5, 3.0), (4.0, 5.0), (5.0, 5.1)], 5.5), Some(0)); // for the input
        assert_eq!(found(&[(0.1, 1.0), (2.0, 3.0), (3.0, 3.1)], 9.0), Some(4)); // for the verdict
        assert_eq!(found(&[], 1.0), None);
    }

    fn actions(text: &str) -> Vec<Action> {
        text.split_whitespace().map(|action| action.parse().unwrap()).collect()
    }

    #[test]
    fn what_replicas_exchange_is_no_wait() {
        let program = actions("0F0 0B0 0REDUCE EXCHANGE UPDATE 0GATHER SNAPSHOT");
        let spans = [(1.0, 2.0), (2.5, 4.0), (4.0, 4.5), (4.5, 4.6), (0.0, 0.5)];
        assert_eq!(longest_wait(&program, &spans, 5.0), Some(0));
        assert_eq!(longest_wait(&program, &spans, 9.0), Some(3));
    }

    #[test]
    fn an_exchange_is_recorded_where_the_program_has_it() {
        let program = actions("0F0 1F0 1B0 1REDUCE 0B0 0REDUCE EXCHANGE UPDATE 0GATHER 1GATHER SNAPSHOT");
        let origin = Instant::now();
        let mut timer = StepTimer::new(origin);
        let at = |seconds: u64| timer.started + Duration::from_secs(seconds);
        let (zero, one, two, three) = (at(0), at(1), at(2), at(3));
        for (begin, end) in [(1, 2), (2, 3), (3, 4), (4, 5), (6, 7)] {
            timer.spans.push((f64::from(begin), f64::from(end)));
        }
        // it began before the step, and the next one when that was done
        timer.record(Action::Gather(0), origin, Some(one));
        timer.record(Action::Gather(1), origin, Some(two));
        timer.record(Action::Reduce(1), zero, Some(three));
        timer.record(Action::Reduce(0), three, None);
        let spans = timer.spans(&program);
        let lengths: Vec<f64> = spans.iter().map(|(begin, end)| (end - begin).round()).collect();
        assert_eq!(lengths, [1.0, 1.0, 1.0, 1.0, 1.0, 0.0, 1.0, 1.0, 1.0]);
        assert_eq!(spans[5], (1.0, 1.0), "not known");
        assert_eq!((spans[7].1, spans[8].1), (spans[8].0, spans[3].0), "one after the other");
        assert_eq!(spans[7].0, timer.seconds(timer.started));
        // up to the vote
        timer.spans.truncate(2);
        assert_eq!(timer.spans(&program).len(), 2);
    }
}

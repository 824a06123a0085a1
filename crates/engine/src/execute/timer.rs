//! The begin and end times of a step's actions on this stage.

use std::collections::BTreeMap;
use std::time::Instant;

use stagecoach_kernels::device::{DeviceClock, Timestamp};
use stagecoach_pipeline::Action;

/// A recorder of the timed actions of one step.
#[derive(Clone, Debug)]
pub(crate) struct StepTimer {
    origin: Instant,
    /// The earliest time at which this step's first action could begin.
    started: Instant,
    /// The GPU's clock, if the stage computes on one.
    clock: Option<DeviceClock>,
    begun: Timestamp,
    /// The begin and end of the actions that do not run between replicas, in the order of the program.
    own: Vec<(Timestamp, Timestamp)>,
    /// Concurrent actions between replicas: the REDUCEs of this step, and the GATHERs of the previous step, which end
    /// in this step. Each has its start time and the arrival times of its parts.
    between_replicas: Vec<(Action, Timestamp, Vec<Timestamp>)>,
}

impl StepTimer {
    /// Creates a timer whose times count from `origin`.
    pub(crate) fn new(origin: Instant, clock: Option<DeviceClock>) -> StepTimer {
        let started = Instant::now();
        let (own, between_replicas) = (Vec::new(), Vec::new());
        StepTimer { origin, started, clock, begun: Timestamp::Host(started), own, between_replicas }
    }

    /// Records that an action begins, because its input has arrived.
    pub(crate) fn begin(&mut self, at: Timestamp) {
        self.begun = at;
    }

    /// Records the end of the action that began last.
    pub(crate) fn end(&mut self, at: Timestamp) {
        self.own.push((self.begun.clone(), at));
    }

    /// Records a REDUCE or GATHER with its start time and the arrival times of its parts. These actions share their
    /// links, so the span of each begins no earlier than the end of the previous one. The span of a GATHER of the
    /// previous step begins no earlier than this step. An action without parts is not recorded.
    pub(crate) fn record(&mut self, action: Action, began: Timestamp, arrived: Vec<Timestamp>) {
        self.between_replicas.push((action, began, arrived));
    }

    /// Returns the begin and end of each timed action of `program` so far, in program order, in seconds. A REDUCE or
    /// GATHER that this step has not recorded, for example because its wait ended before the step, has an empty span at
    /// the start of the first computation. The list ends before the first action that the GPU has not finished.
    pub(crate) fn spans(&self, program: &[Action]) -> Vec<(f64, f64)> {
        let instants = |(begin, end): &(Timestamp, Timestamp)| {
            let begin = self.instant(begin)?;
            // begin and end may come from different clocks
            Some((begin, self.instant(end)?.max(begin)))
        };
        let mut own = self.own.iter().map_while(instants).map(|(begin, end)| (self.seconds(begin), self.seconds(end)));
        let replica_spans = self.spans_of_replicas();
        let unknown = own.clone().next().map_or(0.0, |(begin, _)| begin);
        let span = |action: &Action| match action.is_between_replicas() {
            true => Some(replica_spans.get(action).copied().unwrap_or((unknown, unknown))),
            false => own.next(),
        };
        program.iter().filter(|action| action.is_timed()).map_while(span).collect()
    }

    fn spans_of_replicas(&self) -> BTreeMap<Action, (f64, f64)> {
        let mut spans = BTreeMap::new();
        let mut until = self.started;
        for (action, began, arrived) in &self.between_replicas {
            let ended: Option<Vec<Instant>> = arrived.iter().map(|at| self.instant(at)).collect();
            let (Some(began), Some(ended)) = (self.instant(began), ended.and_then(|ended| ended.into_iter().max()))
            else {
                continue;
            };
            let begin = began.max(until);
            until = ended.max(begin);
            spans.insert(*action, (self.seconds(begin), self.seconds(until)));
        }
        spans
    }

    fn instant(&self, at: &Timestamp) -> Option<Instant> {
        at.instant(self.clock.as_ref())
    }

    fn seconds(&self, at: Instant) -> f64 {
        at.saturating_duration_since(self.origin).as_secs_f64()
    }
}

/// Returns the index in `program` of the action before which a stage waited longest in a step; `None` without spans.
/// `spans` are the spans of the stage's timed actions, and `decided` is the time of the verdict in seconds. The wait
/// for the verdict counts as a wait before EXCHANGE.
pub fn longest_wait(program: &[Action], spans: &[(f64, f64)], decided: f64) -> Option<usize> {
    let timed = (0..program.len()).filter(|&index| program[index].is_timed()).zip(spans);
    // REDUCE and GATHER run concurrently with the other actions of the stage
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
        assert_eq!(found(&[(0.1, 1.0), (3.0, 4.0), (4.0, 4.1)], 4.5), Some(3)); // waits for the gradient
        assert_eq!(found(&[(2.5, 3.0), (4.0, 5.0), (5.0, 5.1)], 5.5), Some(0)); // waits for the input
        assert_eq!(found(&[(0.1, 1.0), (2.0, 3.0), (3.0, 3.1)], 9.0), Some(4)); // waits for the verdict
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
        let mut timer = StepTimer::new(origin, None);
        let at = |seconds: u64| Timestamp::Host(timer.started + Duration::from_secs(seconds));
        let times: Vec<Timestamp> = (0..=7).map(at).collect();
        let at = |seconds: usize| times[seconds].clone();
        for (begin, end) in [(1, 2), (2, 3), (3, 4), (4, 5), (6, 7)] {
            timer.begin(at(begin));
            timer.end(at(end));
        }
        // both gathers began before the step, and the span of the second one begins at the end of the first
        timer.record(Action::Gather(0), Timestamp::Host(origin), vec![at(1)]);
        timer.record(Action::Gather(1), Timestamp::Host(origin), vec![at(2), at(1)]);
        timer.record(Action::Reduce(1), at(0), vec![at(3)]);
        timer.record(Action::Reduce(0), at(3), vec![]);
        let spans = timer.spans(&program);
        let lengths: Vec<f64> = spans.iter().map(|(begin, end)| (end - begin).round()).collect();
        assert_eq!(lengths, [1.0, 1.0, 1.0, 1.0, 1.0, 0.0, 1.0, 1.0, 1.0]);
        assert_eq!(spans[5], (spans[0].0, spans[0].0), "not known");
        assert_eq!((spans[7].1, spans[8].1), (spans[8].0, spans[3].0), "one after the other");
        assert_eq!(spans[7].0, timer.seconds(timer.started));
        // only the first two actions have ended
        timer.own.truncate(2);
        assert_eq!(timer.spans(&program).len(), 2);
    }
}

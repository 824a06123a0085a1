//! Simulates the duration of a step and the memory of each rank from the costs of actions, by discrete events.
//! `simulate` returns the times. The verifier runs the same simulation to check that every rank finishes.
//!
//! Each time is a maximum of earlier times plus a cost. The result therefore does not depend on the order in which the
//! ranks are visited.

use rustc_hash::FxHashMap;

use crate::action::{Action, Edge};
use crate::activation_memory;
use crate::costs::Costs;
use crate::program::{ActionLocation, Programs};
use crate::timeline::{ActionSpan, Timeline};
use crate::work_item::WorkItem;

/// Simulates one step of the programs by discrete events. The step is one of many equal steps: the GATHERs of the
/// previous step are in progress when the step begins, and the first forward of a chunk waits for the chunk's GATHER.
/// The programs should pass [`verify`](crate::verify()). Other programs are simulated until no rank can proceed.
pub fn simulate(programs: &Programs, costs: &Costs) -> Timeline {
    let peak_bytes = activation_memory::peak_bytes(&programs.placement, &programs.ranks, costs);
    Timeline::new(run(programs, costs).spans, peak_bytes)
}

/// The result of a simulation.
pub(crate) struct SimulationResult {
    /// The spans of each rank, in program order.
    pub(crate) spans: Vec<Vec<ActionSpan>>,
    /// The action at which each unfinished rank waits. The list is empty if all ranks have finished.
    pub(crate) blocked: Vec<ActionLocation>,
}

/// The messages of a directed edge, in order. For each message, the lists have the times, in seconds, of its send, of
/// the post of its receive, and of its arrival.
#[derive(Default)]
struct MessageQueue {
    sent_at: Vec<f64>,
    posted_at: Vec<f64>,
    arrived_at: Vec<f64>,
}

impl MessageQueue {
    /// Delivers the messages that are both sent and posted, one after another.
    fn transfer(&mut self, link_seconds: f64) {
        let next = |queue: &Self| {
            Some((*queue.sent_at.get(queue.arrived_at.len())?, *queue.posted_at.get(queue.arrived_at.len())?))
        };
        while let Some((sent_at, posted_at)) = next(self) {
            let link_free_at = self.arrived_at.last().copied().unwrap_or(0.0);
            self.arrived_at.push(sent_at.max(posted_at).max(link_free_at) + link_seconds);
        }
    }
}

struct DiscreteEventSimulation<'a> {
    programs: &'a Programs,
    costs: &'a Costs,
    clock: Vec<f64>,
    spans: Vec<Vec<ActionSpan>>,
    queues: FxHashMap<Edge, MessageQueue>,
    /// The index of each posted receive in the queue of its edge.
    receive_index: FxHashMap<Action, usize>,
    /// The time at which all started reductions of each rank are complete.
    reduced_at: Vec<f64>,
    /// The times at which the gather of a chunk's weights begins and ends, for each chunk with a GATHER. The gather
    /// belongs to the previous step and is in progress when this step begins.
    gathered: FxHashMap<usize, (f64, f64)>,
}

/// Simulates the programs until every rank has finished or no rank can proceed.
pub(crate) fn run(programs: &Programs, costs: &Costs) -> SimulationResult {
    let mut simulation = DiscreteEventSimulation {
        programs,
        costs,
        clock: vec![0.0; programs.ranks.len()],
        spans: vec![Vec::new(); programs.ranks.len()],
        queues: FxHashMap::default(),
        receive_index: FxHashMap::default(),
        reduced_at: vec![0.0; programs.ranks.len()],
        gathered: gathered(programs, costs),
    };
    let all_ranks: Vec<usize> = (0..programs.ranks.len()).collect();
    loop {
        let before = simulation.executed();
        for rank in 0..programs.ranks.len() {
            while simulation.advance(rank) {}
        }
        simulation.rendezvous(Action::ReduceTied, &programs.placement.first_and_last_ranks(), costs.link_seconds);
        simulation.rendezvous(Action::Exchange, &all_ranks, costs.exchange_seconds);
        if simulation.executed() == before {
            return simulation.finish();
        }
    }
}

/// Returns the gather times of each chunk's weights at the beginning of a step. A rank gathers one chunk after another.
fn gathered(programs: &Programs, costs: &Costs) -> FxHashMap<usize, (f64, f64)> {
    let mut gathered = FxHashMap::default();
    for actions in &programs.ranks {
        let mut start = 0.0;
        for action in actions {
            if let Action::Gather(chunk) = *action {
                let end = start + costs.gather_seconds.get(chunk).copied().unwrap_or(0.0);
                gathered.insert(chunk, (start, end));
                start = end;
            }
        }
    }
    gathered
}

impl DiscreteEventSimulation<'_> {
    /// Returns the number of executed actions over all ranks.
    fn executed(&self) -> usize {
        self.spans.iter().map(Vec::len).sum()
    }

    fn next(&self, rank: usize) -> Option<Action> {
        self.programs.ranks.get(rank)?.get(self.spans[rank].len()).copied()
    }

    fn record(&mut self, rank: usize, action: Action, start: f64, seconds: f64) {
        let end = start + seconds;
        self.spans[rank].push(ActionSpan { action, start, end });
        self.clock[rank] = end;
    }

    /// Runs the rank's next action unless it is blocked. Returns whether the action ran.
    fn advance(&mut self, rank: usize) -> bool {
        let Some(action) = self.next(rank) else { return false };
        let Some(start) = self.start_time(rank, action) else { return false };
        match action {
            Action::Reduce(chunk) => self.reduce(rank, chunk, start),
            Action::Gather(chunk) => {
                let (start, end) = self.gathered.get(&chunk).copied().unwrap_or((start, start));
                self.spans[rank].push(ActionSpan { action, start, end });
            }
            _ => self.record(rank, action, start, self.seconds(action)),
        }
        let Some(edge) = action.edge() else { return true };
        let queue = self.queues.entry(edge).or_default();
        if action.is_send() {
            queue.sent_at.push(start);
        } else {
            self.receive_index.insert(action, queue.posted_at.len());
            queue.posted_at.push(start);
        }
        queue.transfer(self.costs.link_seconds);
        true
    }

    /// Starts the reduction of a chunk's gradients after the rank's earlier reductions. The rank does not wait for the
    /// reduction.
    fn reduce(&mut self, rank: usize, chunk: usize, now: f64) {
        let start = self.reduced_at[rank].max(now);
        let end = start + self.costs.reduce_seconds.get(chunk).copied().unwrap_or(0.0);
        self.spans[rank].push(ActionSpan { action: Action::Reduce(chunk), start, end });
        self.reduced_at[rank] = end;
    }

    /// Returns the time at which the action can start, or `None` while the action is blocked.
    fn start_time(&self, rank: usize, action: Action) -> Option<f64> {
        let now = self.clock[rank];
        match action {
            Action::SendForward(_) | Action::SendBackward(_) => Some(now.max(self.send_slot_free_at(action)?)),
            Action::ReduceTied | Action::Exchange => None,
            Action::Forward(item) => {
                let arrived = action.input_receive().map_or(Some(0.0), |receive| self.arrival_time(receive))?;
                let gathered = self.gathered.get(&item.chunk).map_or(0.0, |&(_, end)| end);
                Some(now.max(arrived).max(gathered))
            }
            _ => match action.input_receive() {
                Some(receive) => Some(now.max(self.arrival_time(receive)?)),
                None => Some(now),
            },
        }
    }

    /// Returns the arrival time of a receive's message, or `None` before the arrival. The time is 0 if no receive was
    /// posted, because the data is on this rank.
    fn arrival_time(&self, receive: Action) -> Option<f64> {
        let Some(&index) = self.receive_index.get(&receive) else { return Some(0.0) };
        self.queues.get(&receive.edge()?)?.arrived_at.get(index).copied()
    }

    /// Returns the time from which fewer than `sends_in_flight` earlier messages wait for a receive. Returns `None` if
    /// that time is not known yet.
    fn send_slot_free_at(&self, send: Action) -> Option<f64> {
        let Some(queue) = send.edge().and_then(|edge| self.queues.get(&edge)) else {
            return (self.costs.sends_in_flight > 0).then_some(0.0);
        };
        match (queue.sent_at.len() + 1).checked_sub(self.costs.sends_in_flight) {
            None | Some(0) => Some(0.0),
            Some(taken) => queue.posted_at.get(taken - 1).copied(),
        }
    }

    fn seconds(&self, action: Action) -> f64 {
        let cost = |item: WorkItem| self.costs.chunk(item.chunk);
        match action {
            Action::Forward(item) => cost(item).forward_seconds,
            Action::FullBackward(item) => cost(item).backward_input_seconds + cost(item).backward_weight_seconds,
            Action::BackwardInput(item) => cost(item).backward_input_seconds,
            Action::BackwardWeight(item) => cost(item).backward_weight_seconds,
            Action::Update => self.costs.update_seconds,
            _ => 0.0,
        }
    }

    /// Executes a barrier if all of its ranks have reached it. The barrier starts after the ranks' reductions.
    fn rendezvous(&mut self, action: Action, ranks: &[usize], seconds: f64) {
        if ranks.is_empty() || ranks.iter().any(|&rank| self.next(rank) != Some(action)) {
            return;
        }
        let start = ranks.iter().map(|&rank| self.clock[rank].max(self.reduced_at[rank])).fold(0.0, f64::max);
        let seconds = if ranks.len() > 1 { seconds } else { 0.0 };
        for &rank in ranks {
            self.record(rank, action, start, seconds);
        }
    }

    /// Replaces the span of each send and receive by the transfer of its message, whose time is known only at the end.
    fn finish(mut self) -> SimulationResult {
        let mut passed: FxHashMap<(Edge, bool), usize> = FxHashMap::default();
        for span in self.spans.iter_mut().flatten() {
            let Some(edge) = span.action.edge() else { continue };
            let count = passed.entry((edge, span.action.is_send())).or_default();
            if let Some(&end) = self.queues.get(&edge).and_then(|queue| queue.arrived_at.get(*count)) {
                (span.start, span.end) = (end - self.costs.link_seconds, end);
            }
            *count += 1;
        }
        let waiting =
            |rank| self.next(rank).map(|action| ActionLocation { rank, position: self.spans[rank].len(), action });
        SimulationResult { blocked: (0..self.spans.len()).filter_map(waiting).collect(), spans: self.spans }
    }
}

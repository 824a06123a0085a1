//! Follows all ranks' programs together by the executor's rules, keeping time. The simulator reads the times, the
//! verifier whether every rank gets to its end.
//!
//! Each time is a maximum of earlier times plus a cost, so the order in which ranks are visited changes nothing.

use crate::action::{Action, Edge, Unit};
use crate::program::Programs;
use crate::simulate::Costs;
use crate::timeline::Span;
use crate::verify::At;
use std::collections::HashMap;

/// What became of the programs.
pub(crate) struct Walk {
    /// One list a rank, in program order.
    pub(crate) spans: Vec<Vec<Span>>,
    /// The action at which each unfinished rank waits; empty if all reached their end.
    pub(crate) stuck: Vec<At>,
}

/// A directed edge: the n-th message is sent, its receive posted, and it arrives, at these seconds.
#[derive(Default)]
struct Channel {
    sent: Vec<f64>,
    posted: Vec<f64>,
    arrived: Vec<f64>,
}

impl Channel {
    /// Moves what both sides are ready for; one message at a time.
    fn transfer(&mut self, link: f64) {
        while let (Some(sent), Some(posted)) = (self.sent.get(self.arrived.len()), self.posted.get(self.arrived.len()))
        {
            let free = self.arrived.last().copied().unwrap_or(0.0);
            self.arrived.push(sent.max(*posted).max(free) + link);
        }
    }
}

struct State<'a> {
    programs: &'a Programs,
    costs: &'a Costs,
    clock: Vec<f64>,
    spans: Vec<Vec<Span>>,
    channels: HashMap<Edge, Channel>,
    /// For a posted receive, its place in the edge's order.
    places: HashMap<Action, usize>,
}

pub(crate) fn walk(programs: &Programs, costs: &Costs) -> Walk {
    let mut state = State {
        programs,
        costs,
        clock: vec![0.0; programs.ranks.len()],
        spans: vec![Vec::new(); programs.ranks.len()],
        channels: HashMap::new(),
        places: HashMap::new(),
    };
    loop {
        let before = state.done();
        for rank in 0..programs.ranks.len() {
            while state.advance(rank) {}
        }
        state.meet(Action::ReduceTied, &programs.placement.ends(), costs.link);
        state.meet(Action::Exchange, &(0..programs.ranks.len()).collect::<Vec<_>>(), costs.exchange);
        if state.done() == before {
            return state.finish();
        }
    }
}

impl State<'_> {
    fn done(&self) -> usize {
        self.spans.iter().map(Vec::len).sum()
    }

    fn next(&self, rank: usize) -> Option<Action> {
        self.programs.ranks.get(rank)?.get(self.spans[rank].len()).copied()
    }

    fn record(&mut self, rank: usize, action: Action, start: f64, seconds: f64) {
        let end = start + seconds;
        self.spans[rank].push(Span { action, start, end });
        self.clock[rank] = end;
    }

    /// Runs the rank's next action if nothing holds it back.
    fn advance(&mut self, rank: usize) -> bool {
        let Some(action) = self.next(rank) else { return false };
        let Some(start) = self.ready(rank, action) else { return false };
        self.record(rank, action, start, self.seconds(action));
        let Some(edge) = action.edge() else { return true };
        let channel = self.channels.entry(edge).or_default();
        if action.is_send() {
            channel.sent.push(start);
        } else {
            self.places.insert(action, channel.posted.len());
            channel.posted.push(start);
        }
        channel.transfer(self.costs.link);
        true
    }

    /// When the action can start; none while it has to wait for something that has not happened.
    fn ready(&self, rank: usize, action: Action) -> Option<f64> {
        let now = self.clock[rank];
        match action {
            Action::Forward(unit) => Some(now.max(self.message(Action::RecvForward(unit))?)),
            Action::Backward(unit) | Action::BackwardInput(unit) => {
                Some(now.max(self.message(Action::RecvBackward(unit))?))
            }
            Action::SendForward(_) | Action::SendBackward(_) => Some(now.max(self.room(action)?)),
            Action::ReduceTied | Action::Exchange => None,
            _ => Some(now),
        }
    }

    /// When a posted receive's message arrived; 0 if none was posted, for then the data is on this rank.
    fn message(&self, receive: Action) -> Option<f64> {
        let Some(&place) = self.places.get(&receive) else { return Some(0.0) };
        self.channels.get(&receive.edge()?)?.arrived.get(place).copied()
    }

    /// When fewer than `sends_in_flight` earlier messages wait for a receive.
    fn room(&self, send: Action) -> Option<f64> {
        let Some(channel) = send.edge().and_then(|edge| self.channels.get(&edge)) else {
            return (self.costs.sends_in_flight > 0).then_some(0.0);
        };
        match (channel.sent.len() + 1).checked_sub(self.costs.sends_in_flight) {
            None | Some(0) => Some(0.0),
            Some(taken) => channel.posted.get(taken - 1).copied(),
        }
    }

    fn seconds(&self, action: Action) -> f64 {
        let cost = |unit: Unit| self.costs.chunk(unit.chunk);
        match action {
            Action::Forward(unit) => cost(unit).forward,
            Action::Backward(unit) => cost(unit).backward_input + cost(unit).backward_weight,
            Action::BackwardInput(unit) => cost(unit).backward_input,
            Action::BackwardWeight(unit) => cost(unit).backward_weight,
            Action::Update => self.costs.update,
            _ => 0.0,
        }
    }

    /// Lets a rendezvous happen if all of its ranks are at it.
    fn meet(&mut self, action: Action, ranks: &[usize], seconds: f64) {
        if ranks.is_empty() || ranks.iter().any(|&rank| self.next(rank) != Some(action)) {
            return;
        }
        let together = ranks.iter().map(|&rank| self.clock[rank]).fold(0.0, f64::max);
        let seconds = if ranks.len() > 1 { seconds } else { 0.0 };
        for &rank in ranks {
            self.record(rank, action, together, seconds);
        }
    }

    /// A message's span becomes its transfer, known only now.
    fn finish(mut self) -> Walk {
        let mut passed: HashMap<(Edge, bool), usize> = HashMap::new();
        for span in self.spans.iter_mut().flatten() {
            let Some(edge) = span.action.edge() else { continue };
            let count = passed.entry((edge, span.action.is_send())).or_default();
            if let Some(&end) = self.channels.get(&edge).and_then(|channel| channel.arrived.get(*count)) {
                (span.start, span.end) = (end - self.costs.link, end);
            }
            *count += 1;
        }
        let waiting = |rank| self.next(rank).map(|action| At { rank, position: self.spans[rank].len(), action });
        Walk { stuck: (0..self.spans.len()).filter_map(waiting).collect(), spans: self.spans }
    }
}

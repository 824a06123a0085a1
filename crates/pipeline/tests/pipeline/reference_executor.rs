//! Defines a naive executor of programs, which is written independently of the verifier.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

use stagecoach_pipeline::{Action, Programs, WorkItem};

/// Executes programs with real queues, and tracks every value. The execution returns `Err` if a program does something
/// wrong, leaves work undone, or deadlocks.
pub(crate) struct ReferenceExecutor<'a> {
    programs: &'a Programs,
    sends_in_flight: usize,
    next: Vec<usize>,
    /// The values on each rank, as text: `0F1` is an output, `0I1` the gradient of an input, and `0A1` the kept
    /// activations.
    values: Vec<HashSet<String>>,
    /// The sent messages and posted receives without a counterpart, by (sending chunk, receiving chunk).
    mail: HashMap<(usize, usize), (VecDeque<usize>, VecDeque<usize>)>,
    /// The sends and the receives that wait for their counterpart, across all chunks, by (sending rank, receiving
    /// rank).
    order: HashMap<(usize, usize), [VecDeque<Message>; 2]>,
    counts: BTreeMap<Action, usize>,
    losses: Vec<usize>,
    gradients: HashMap<usize, Vec<usize>>,
    exchanged: bool,
}

/// The sending chunk, the receiving chunk and the microbatch of a message.
type Message = (usize, usize, usize);

type StepResult = Result<bool, String>;

impl ReferenceExecutor<'_> {
    pub(crate) fn run(programs: &Programs, sends_in_flight: usize) -> Result<(), String> {
        let ranks = programs.ranks.len();
        let mut executor = ReferenceExecutor {
            programs,
            sends_in_flight,
            next: vec![0; ranks],
            values: vec![HashSet::new(); ranks],
            mail: HashMap::new(),
            order: HashMap::new(),
            counts: BTreeMap::new(),
            losses: Vec::new(),
            gradients: HashMap::new(),
            exchanged: false,
        };
        // the executor visits the highest rank first, opposite to the verifier's order
        while let Some(rank) = (0..ranks).rev().find_map(|rank| match executor.step(rank) {
            Ok(true) => Some(Ok(rank)),
            Ok(false) => None,
            Err(error) => Some(Err(error)),
        }) {
            executor.next[rank?] += 1;
        }
        executor.finished()
    }

    fn action(&self, rank: usize) -> Option<Action> {
        self.programs.ranks[rank].get(self.next[rank]).copied()
    }

    fn rank_of(&self, chunk: usize) -> Option<usize> {
        (chunk < self.programs.placement.chunks()).then(|| self.programs.placement.rank_of(chunk))
    }

    /// Executes the rank's next action. Returns `Ok(false)` if the rank has to wait.
    fn step(&mut self, rank: usize) -> StepResult {
        let Some(action) = self.action(rank) else { return Ok(false) };
        if let Some(item) = action.item()
            && (self.rank_of(item.chunk) != Some(rank) || item.microbatch >= self.programs.microbatches)
        {
            return Err(format!("{action} is not on rank {rank}"));
        }
        let ran = match action {
            Action::Forward(item) => self.forward(rank, item)?,
            Action::FullBackward(item) => self.backward(rank, item, true)?,
            Action::BackwardInput(item) => self.backward(rank, item, false)?,
            Action::BackwardWeight(item) => self.weights(rank, item)?,
            Action::SendForward(item) => self.send(rank, item, item.chunk + 1, "F")?,
            Action::SendBackward(item) => self.send(rank, item, item.chunk.wrapping_sub(1), "I")?,
            Action::RecvForward(item) => self.receive(rank, item, item.chunk.wrapping_sub(1))?,
            Action::RecvBackward(item) => self.receive(rank, item, item.chunk + 1)?,
            Action::Reduce(chunk) => {
                let all: Vec<usize> = (0..self.programs.microbatches).collect();
                if self.rank_of(chunk) != Some(rank) || self.gradients.get(&chunk) != Some(&all) {
                    return Err("REDUCE at the wrong time".to_owned());
                }
                // the chunks of a rank are reduced like a stack: the last chunk is due first
                let due = self.chunks_of(rank).len() - self.count_executed(rank, Action::Reduce);
                if due == 0 || self.chunks_of(rank)[due - 1] != chunk {
                    return Err("REDUCE out of order".to_owned());
                }
                true
            }
            Action::Gather(chunk) => {
                let due = self.count_executed(rank, Action::Gather);
                if !self.executed(rank, Action::Update) || self.chunks_of(rank).get(due) != Some(&chunk) {
                    return Err("GATHER at the wrong time".to_owned());
                }
                true
            }
            Action::ReduceTied => self.reduce(rank)?,
            Action::Exchange => self.exchange(rank)?,
            Action::Update | Action::Snapshot => {
                let before = if action == Action::Update { Action::Exchange } else { Action::Update };
                let is_gathered = action == Action::Update || self.all_executed(rank, Action::Gather);
                if !self.executed(rank, before) || self.executed(rank, action) || !is_gathered {
                    return Err(format!("{action} at the wrong time"));
                }
                true
            }
        };
        if ran {
            let executed = &self.programs.ranks[rank][..self.next[rank]];
            let step = matches!(action, Action::Update | Action::Gather(_) | Action::Snapshot);
            if executed.contains(&Action::Exchange) && !step {
                return Err(format!("{action} after EXCHANGE"));
            }
            *self.counts.entry(action).or_default() += 1;
        }
        Ok(ran)
    }

    /// Checks that an input value is on this rank. If the value is not `local`, the message of `receive` delivers it.
    /// Returns `Ok(false)` while the message is in transit.
    fn take_input(&self, rank: usize, local: bool, value: String, receive: Action) -> StepResult {
        if self.values[rank].contains(&value) {
            return Ok(true);
        }
        let executed = &self.programs.ranks[rank][..self.next[rank]];
        if !local && executed.contains(&receive) { Ok(false) } else { Err(format!("{value} is never received")) }
    }

    fn forward(&mut self, rank: usize, item: WorkItem) -> StepResult {
        let WorkItem { chunk, microbatch } = item;
        if chunk > 0 {
            let local = self.rank_of(chunk - 1) == Some(rank);
            let input = format!("{}F{microbatch}", chunk - 1);
            if !self.take_input(rank, local, input, Action::RecvForward(item))? {
                return Ok(false);
            }
        }
        if !self.values[rank].insert(format!("{chunk}F{microbatch}")) {
            return Err("forward twice".to_owned());
        }
        self.values[rank].insert(format!("{chunk}A{microbatch}"));
        if chunk + 1 == self.programs.placement.chunks() {
            self.losses.push(microbatch);
        }
        Ok(true)
    }

    fn backward(&mut self, rank: usize, item: WorkItem, whole: bool) -> StepResult {
        let WorkItem { chunk, microbatch } = item;
        if chunk + 1 < self.programs.placement.chunks() {
            let local = self.rank_of(chunk + 1) == Some(rank);
            let gradient = format!("{}I{microbatch}", chunk + 1);
            if !self.take_input(rank, local, gradient, Action::RecvBackward(item))? {
                return Ok(false);
            }
        }
        let kept = self.values[rank].contains(&format!("{chunk}A{microbatch}"));
        if !kept || !self.values[rank].insert(format!("{chunk}I{microbatch}")) {
            return Err("backward without forward, or twice".to_owned());
        }
        if whole { self.weights(rank, item) } else { Ok(true) }
    }

    fn weights(&mut self, rank: usize, item: WorkItem) -> StepResult {
        let WorkItem { chunk, microbatch } = item;
        let ready = self.values[rank].contains(&format!("{chunk}I{microbatch}"));
        if !ready || !self.values[rank].remove(&format!("{chunk}A{microbatch}")) {
            return Err("weights without input, or twice".to_owned());
        }
        self.gradients.entry(chunk).or_default().push(microbatch);
        Ok(true)
    }

    fn needs_message(&self, rank: usize, neighbour: usize) -> Result<(), String> {
        match self.rank_of(neighbour) {
            Some(other) if other != rank => Ok(()),
            _ => Err("no message is needed".to_owned()),
        }
    }

    fn send(&mut self, rank: usize, item: WorkItem, to: usize, value: &str) -> StepResult {
        self.needs_message(rank, to)?;
        if !self.values[rank].contains(&format!("{}{value}{}", item.chunk, item.microbatch)) {
            return Err("nothing to send".to_owned());
        }
        let (sent, posted) = self.mail.entry((item.chunk, to)).or_default();
        if posted.is_empty() && sent.len() >= self.sends_in_flight {
            return Ok(false);
        }
        sent.push_back(item.microbatch);
        self.keep_order(0, (item.chunk, to, item.microbatch))?;
        self.deliver_message(item.chunk, to)
    }

    /// Records a send (`end` 0) or a receive (`end` 1). The n-th send from one rank to another must match the n-th
    /// receive.
    fn keep_order(&mut self, end: usize, message: Message) -> Result<(), String> {
        let rank = |chunk| self.programs.placement.rank_of(chunk);
        let ends = self.order.entry((rank(message.0), rank(message.1))).or_default();
        ends[end].push_back(message);
        if ends.iter().all(|end| !end.is_empty()) && ends[0].pop_front() != ends[1].pop_front() {
            return Err("another message of the same rank is due".to_owned());
        }
        Ok(())
    }

    fn receive(&mut self, rank: usize, item: WorkItem, from: usize) -> StepResult {
        self.needs_message(rank, from)?;
        self.mail.entry((from, item.chunk)).or_default().1.push_back(item.microbatch);
        self.keep_order(1, (from, item.chunk, item.microbatch))?;
        self.deliver_message(from, item.chunk)
    }

    fn deliver_message(&mut self, from: usize, to: usize) -> StepResult {
        let (sent, posted) = self.mail.entry((from, to)).or_default();
        if sent.is_empty() || posted.is_empty() {
            return Ok(true);
        }
        let (got, wanted) = (sent.pop_front(), posted.pop_front());
        let name = format!("{from}{}{}", if from < to { "F" } else { "I" }, wanted.unwrap());
        let rank = self.programs.placement.rank_of(to);
        // the receiving rank does not compute this value, so a value that is already present was delivered before
        if got != wanted || !self.values[rank].insert(name) {
            return Err("the wrong message".to_owned());
        }
        Ok(true)
    }

    fn executed(&self, rank: usize, action: Action) -> bool {
        self.programs.ranks[rank][..self.next[rank]].contains(&action)
    }

    fn chunks_of(&self, rank: usize) -> Vec<usize> {
        self.programs.placement.chunks_of(rank).collect()
    }

    fn count_executed(&self, rank: usize, action: fn(usize) -> Action) -> usize {
        self.chunks_of(rank).into_iter().filter(|&chunk| self.executed(rank, action(chunk))).count()
    }

    /// Whether each chunk of the rank has executed `action`. The result is true if there are no replicas.
    fn all_executed(&self, rank: usize, action: fn(usize) -> Action) -> bool {
        !self.programs.replicated() || self.count_executed(rank, action) == self.chunks_of(rank).len()
    }

    fn gradients_complete(&self, rank: usize) -> bool {
        let all: Vec<usize> = (0..self.programs.microbatches).collect();
        self.programs.placement.chunks_of(rank).all(|chunk| self.gradients.get(&chunk) == Some(&all))
    }

    /// Executes REDUCE_TIED, a barrier of the ranks of the first and the last chunk. The barrier completes when the
    /// last of its ranks arrives. The other rank then finds it completed.
    fn reduce(&mut self, rank: usize) -> StepResult {
        let ends = self.programs.placement.first_and_last_ranks();
        let is_reduced = self.all_executed(rank, Action::Reduce);
        if !ends.contains(&rank) || !self.gradients_complete(rank) || !is_reduced {
            return Err("REDUCE_TIED at the wrong time".to_owned());
        }
        let executed = |rank: usize| self.programs.ranks[rank][..self.next[rank]].contains(&Action::ReduceTied);
        if executed(rank) {
            return Err("REDUCE_TIED twice".to_owned());
        }
        Ok(ends.iter().all(|&end| executed(end) || self.action(end) == Some(Action::ReduceTied)))
    }

    fn exchange(&mut self, rank: usize) -> StepResult {
        let is_reduced = self.all_executed(rank, Action::Reduce);
        if !self.gradients_complete(rank) || !is_reduced {
            return Err("EXCHANGE at the wrong time".to_owned());
        }
        let ranks = 0..self.programs.ranks.len();
        self.exchanged |= ranks.clone().all(|rank| self.action(rank) == Some(Action::Exchange));
        Ok(self.exchanged)
    }

    fn finished(&self) -> Result<(), String> {
        let Programs { placement, microbatches, ranks } = self.programs;
        let all: Vec<usize> = (0..*microbatches).collect();
        let ended = (0..ranks.len()).all(|rank| self.action(rank).is_none());
        let delivered = self.mail.values().all(|(sent, posted)| sent.is_empty() && posted.is_empty());
        let complete = (0..placement.chunks()).all(|chunk| self.gradients.get(&chunk) == Some(&all));
        let count = |action: Action| self.counts.get(&action) == Some(&ranks.len());
        let ran_once = |action: Action| self.counts.get(&action) == self.programs.replicated().then_some(&1);
        let replicated =
            (0..placement.chunks()).all(|chunk| ran_once(Action::Reduce(chunk)) && ran_once(Action::Gather(chunk)));
        let step = count(Action::Exchange) && count(Action::Update) && count(Action::Snapshot) && replicated;
        let reduced =
            self.counts.get(&Action::ReduceTied).is_none_or(|&count| count == placement.first_and_last_ranks().len());
        if ended && delivered && complete && self.losses == all && step && reduced {
            Ok(())
        } else {
            Err("incomplete, out of order, or deadlocked".to_owned())
        }
    }
}

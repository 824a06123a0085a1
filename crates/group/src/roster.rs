//! The membership of a group as a pure state machine: events in, effects out, the clock an argument.
//!
//! ```text
//! Gathering --all here and released--> Forming --all formed--> Running --all goodbyes--> Ending --others hung up--> Over
//!     `----------------------------------'---------------------'--------any failure-------^
//! ```

use std::collections::BTreeSet;
use std::time::Instant;

use crate::activity::Snapshot;
use crate::admission::{Admission, admit};
use crate::exchange::Exchange;
use crate::wire::{Down, Up};
use crate::{Failure, FailureKind, Hello, Refusal, Roster, Rules, Timing};

/// One control connection; never used again.
pub(crate) type Conn = u64;

/// What happened.
#[derive(Debug, Clone)]
pub(crate) enum Event {
    /// A connection said hello.
    Hello(Conn, Hello),
    /// A member said something else.
    Said(Conn, Up),
    /// A connection is gone.
    Gone(Conn, Gone),
    /// Stage 0 is at something before it can release the group.
    Preparing(String),
    /// Stage 0 is ready.
    Release(Vec<u8>, Rules),
    /// Stage 0 gives up.
    Reject(String),
    /// Time has passed.
    Tick,
}

/// How a connection went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Gone {
    /// By the peer, or by its machine's kernel.
    Closed(String),
    /// The peer said nothing for `heartbeat_timeout`, or read nothing.
    Silent,
    /// It sent what no member sends.
    Malformed(String),
}

/// What is to be done.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Effect {
    Send(Vec<Conn>, Down),
    /// Once all that was sent is written.
    Close(Conn),
}

/// Who is in the group and how far it has come.
#[derive(Debug)]
pub(crate) struct Group {
    expected: Hello,
    pub(crate) timing: Timing,
    pub(crate) phase: Phase,
    pub(crate) seats: Vec<Seat>,
    /// What stage 0 was last said to be doing.
    pub(crate) progress: String,
    /// Whether the members have yet to hear it.
    pub(crate) untold: bool,
    pub(crate) plan: Option<Vec<u8>>,
    pub(crate) exchange: Exchange,
    /// When anything last moved: the start-up and the stall deadlines count from here.
    pub(crate) moved: Instant,
    pub(crate) failure: Option<Failure>,
    pub(crate) effects: Vec<Effect>,
}

#[derive(Debug, PartialEq)]
pub(crate) enum Phase {
    Gathering,
    Forming,
    Running,
    /// The others have been told `last`; rank 0 is told when they have hung up, for its process ends with it.
    Ending {
        last: Down,
        waiting: BTreeSet<Conn>,
        deadline: Instant,
    },
    Over,
}

/// A rank's place.
#[derive(Debug, Default)]
pub(crate) struct Seat {
    pub(crate) hello: Option<Hello>,
    pub(crate) conn: Option<Conn>,
    /// Before formation the same pod may come back for a moment.
    pub(crate) lost: Option<(Instant, Gone)>,
    pub(crate) doing: Snapshot,
    /// When `doing` was told.
    pub(crate) heard: Option<Instant>,
    pub(crate) formed: bool,
    pub(crate) goodbye: Option<i32>,
}

impl Group {
    pub(crate) fn new(expected: Hello, timing: Timing, now: Instant) -> Self {
        Group {
            phase: Phase::Gathering,
            seats: (0..expected.world).map(|_| Seat::default()).collect(),
            progress: "starting".to_owned(),
            untold: false,
            plan: None,
            exchange: Exchange::new(expected.world, Rules::default()),
            moved: now,
            failure: None,
            effects: Vec::new(),
            expected,
            timing,
        }
    }

    /// What ended the group, if it failed.
    pub(crate) fn failure(&self) -> Option<&Failure> {
        self.failure.as_ref()
    }

    /// Whether all that can still be told has been told.
    pub(crate) fn is_over(&self) -> bool {
        matches!(self.phase, Phase::Over)
    }

    /// Takes one event.
    pub(crate) fn handle(&mut self, now: Instant, event: Event) -> Vec<Effect> {
        match event {
            Event::Hello(conn, hello) => self.hello(now, conn, hello),
            Event::Said(conn, up) => {
                // A connection that was replaced, or whose rank was told the end, has nothing left to say.
                if let Some(rank) = self.rank_of(conn).filter(|_| !self.is_ending()) {
                    self.said(now, rank, up);
                }
            }
            Event::Gone(conn, gone) => self.gone(now, conn, gone),
            Event::Preparing(progress) if self.phase == Phase::Gathering => {
                self.moved = now;
                // Told with the next pulse: stage 0 may make progress a thousand times a second.
                (self.progress, self.untold) = (progress, true);
            }
            Event::Release(plan, rules) if self.phase == Phase::Gathering => {
                self.moved = now;
                self.plan = Some(plan);
                self.exchange = Exchange::new(self.seats.len(), rules);
                self.release_if_complete(now);
            }
            Event::Reject(reason) => {
                self.fail(now, FailureKind::Rejected, Some(0), format!("stage 0 gave up: {reason}"))
            }
            Event::Preparing(_) | Event::Release(..) => {}
            Event::Tick => self.tick(now),
        }
        std::mem::take(&mut self.effects)
    }

    fn hello(&mut self, now: Instant, conn: Conn, hello: Hello) {
        let rank = hello.rank;
        match admit(&self.expected, &hello) {
            Admission::Welcome => {}
            Admission::Refused(refusal) => return self.dismiss(conn, Down::Refused(refusal)),
            Admission::Newer => {
                self.dismiss(conn, Down::ComeBack);
                let message =
                    format!("attempt {} has begun, so attempt {} is over", hello.attempt, self.expected.attempt);
                return self.fail(now, FailureKind::Superseded, None, message);
            }
        }
        if self.is_ending() {
            let reason = "all stages have said goodbye".to_owned();
            let last = match &self.failure {
                Some(failure) => Down::Ended(failure.told_to(rank)),
                None => Down::Refused(Refusal::Over { reason }),
            };
            return self.dismiss(conn, last);
        }
        if let Some(first) = self.seats[rank].hello.as_ref().filter(|first| first.pod_uid != hello.pod_uid) {
            let message = format!(
                "two pods claim to be stage {rank} of attempt {}: {} on {}, and now {} on {}",
                self.expected.attempt, first.pod_uid, first.host, hello.pod_uid, hello.host
            );
            self.dismiss(conn, Down::Refused(Refusal::Over { reason: message.clone() }));
            return self.fail(now, FailureKind::SecondPod, Some(rank), message);
        }
        if self.phase == Phase::Running {
            return self.dismiss(conn, Down::Refused(Refusal::Formed { rank }));
        }
        if let Some(older) = self.seats[rank].conn.take() {
            self.effects.push(Effect::Close(older));
        }
        self.seats[rank] = Seat { hello: Some(hello), conn: Some(conn), heard: Some(now), ..Seat::default() };
        match self.phase {
            Phase::Forming => self.send(vec![conn], self.released()),
            _ if self.plan.is_some() => self.release_if_complete(now),
            _ => self.send(vec![conn], Down::Preparing(self.progress.clone())),
        }
    }

    fn said(&mut self, now: Instant, rank: usize, up: Up) {
        if let Up::Heartbeat(doing) = up {
            let seat = &mut self.seats[rank];
            if doing.changes != seat.doing.changes {
                self.moved = now;
            }
            (seat.doing, seat.heard) = (doing, Some(now));
            return;
        }
        self.moved = now;
        let twice = || "brought the same thing twice before it was answered".to_owned();
        let outcome = match up {
            _ if self.phase == Phase::Gathering => Err("acted before the group was released".to_owned()),
            Up::Goodbye { code } => return self.goodbye(now, rank, code),
            Up::Formed | Up::Gather { .. } | Up::Vote(_) if self.leaver().is_some() => {
                return self.left_behind(now, rank);
            }
            Up::Formed => {
                self.seats[rank].formed = true;
                if self.phase == Phase::Forming && self.seats.iter().all(|seat| seat.formed) {
                    self.phase = Phase::Running;
                    self.send_all(Down::Formed);
                }
                Ok(())
            }
            Up::Tell { topic, bytes } if rank == 0 => {
                self.send_all(Down::Told { topic, bytes });
                Ok(())
            }
            Up::Gather { topic, bytes } => self.exchange.gather(topic, rank, bytes).map_err(|_| twice()).map(|parts| {
                parts.into_iter().for_each(|parts| self.send_all(Down::Gathered { topic, parts }));
            }),
            Up::Vote(vote) => self.exchange.vote(rank, vote).map_err(|_| twice()).map(|verdict| {
                let Some(mut verdict) = verdict else { return };
                self.send(self.conns(|rank| rank == 0), Down::Verdict(verdict.clone()));
                verdict.measures.clear();
                self.send(self.conns(|rank| rank != 0), Down::Verdict(verdict));
            }),
            Up::Hello(_) | Up::Tell { .. } | Up::Heartbeat(_) => Err("said what only others may say".to_owned()),
        };
        if let Err(what) = outcome {
            self.fail(
                now,
                FailureKind::Protocol,
                Some(rank),
                format!("stage {rank} {what}: this is a defect of the trainer"),
            );
        }
    }

    /// Sends the plan to all, once it is there and they are.
    fn release_if_complete(&mut self, now: Instant) {
        if self.plan.is_none() {
            return;
        }
        let missing = self.ranks(|seat| seat.conn.is_none());
        if missing.is_empty() {
            (self.phase, self.moved) = (Phase::Forming, now);
            let released = self.released();
            self.send_all(released);
        } else {
            self.progress = format!("stage 0 is ready and waits for {}", stages(&missing));
            self.send_all(Down::Preparing(self.progress.clone()));
        }
    }

    fn released(&self) -> Down {
        let members = self.seats.iter().filter_map(|seat| seat.hello.clone()).collect();
        Down::Released { roster: Roster { members }, plan: self.plan.clone().unwrap_or_default() }
    }

    pub(crate) fn rank_of(&self, conn: Conn) -> Option<usize> {
        self.seats.iter().position(|seat| seat.conn == Some(conn))
    }

    pub(crate) fn ranks(&self, which: impl Fn(&Seat) -> bool) -> Vec<usize> {
        (0..self.seats.len()).filter(|&rank| which(&self.seats[rank])).collect()
    }

    pub(crate) fn conns(&self, which: impl Fn(usize) -> bool) -> Vec<Conn> {
        (0..self.seats.len()).filter(|&rank| which(rank)).filter_map(|rank| self.seats[rank].conn).collect()
    }

    pub(crate) fn send_all(&mut self, down: Down) {
        self.send(self.conns(|_| true), down);
    }

    pub(crate) fn send(&mut self, conns: Vec<Conn>, down: Down) {
        self.effects.push(Effect::Send(conns, down));
    }

    /// Answers a connection that gets no place.
    pub(crate) fn dismiss(&mut self, conn: Conn, down: Down) {
        self.send(vec![conn], down);
        self.effects.push(Effect::Close(conn));
    }
}

/// `stage 2`, or `stages 1, 2`.
pub(crate) fn stages(ranks: &[usize]) -> String {
    let names: Vec<String> = ranks.iter().map(usize::to_string).collect();
    format!("stage{} {}", if ranks.len() == 1 { "" } else { "s" }, names.join(", "))
}

//! How a group ends, well or badly: lost connections, deadlines, goodbyes. The second half of the state machine in
//! `roster`, and as pure.

use std::collections::BTreeSet;
use std::time::Instant;

use crate::hang::{Doing, hang, seconds};
use crate::roster::{Conn, Effect, Gone, Group, Phase, stages};
use crate::wire::Down;
use crate::{Failure, FailureKind};

/// A process that leaves with one of these has done what it was asked to: done, or drained with a checkpoint.
const GRACEFUL: [i32; 2] = [0, 143];
/// It leaves because another one was lost.
const COLLATERAL: i32 = 75;

impl Group {
    pub(crate) fn gone(&mut self, now: Instant, conn: Conn, gone: Gone) {
        if let Phase::Ending { waiting, .. } = &mut self.phase {
            waiting.remove(&conn);
            if waiting.is_empty() {
                self.finish();
            }
            return;
        }
        let Some(rank) = self.rank_of(conn) else { return };
        let forming = matches!(self.phase, Phase::Gathering | Phase::Forming);
        let seat = &mut self.seats[rank];
        match gone {
            Gone::Closed(_) => seat.conn = None,
            // It may still hear why it has been given up.
            Gone::Silent | Gone::Malformed(_) => {}
        }
        if seat.goodbye.is_some() {
            return;
        }
        if forming && rank != 0 && matches!(gone, Gone::Closed(_)) {
            seat.lost = Some((now, gone));
            seat.formed = false;
            return;
        }
        self.lose(now, rank, gone);
    }

    fn lose(&mut self, now: Instant, rank: usize, gone: Gone) {
        let doing = self.describe(rank);
        let (kind, message) = match gone {
            Gone::Closed(how) => (
                FailureKind::ConnectionClosed,
                format!("stage {rank} {how} {doing}: its process has died, or its machine is gone"),
            ),
            Gone::Silent => (
                FailureKind::HeartbeatsMissed,
                format!(
                    "stage {rank} has not been heard for {} {doing}: it is stopped, frozen or cut off",
                    seconds(self.timing.heartbeat_timeout)
                ),
            ),
            Gone::Malformed(what) => (FailureKind::Protocol, format!("stage {rank} sent {what}")),
        };
        self.fail(now, kind, Some(rank), message);
    }

    /// Pulses, and whatever is due by now.
    pub(crate) fn tick(&mut self, now: Instant) {
        if let Phase::Ending { deadline, .. } = self.phase {
            if now >= deadline {
                self.finish();
            }
            return;
        }
        if self.is_over() {
            return;
        }
        match std::mem::take(&mut self.untold) && self.phase == Phase::Gathering {
            true => self.send_all(Down::Preparing(self.progress.clone())),
            false => self.send_all(Down::Pulse),
        }
        // Long enough to connect again, short enough that a death still ends the group within seconds.
        let grace = self.timing.heartbeat_timeout / 3;
        let given_up = self.seats.iter().enumerate().find_map(|(rank, seat)| {
            let (at, gone) = seat.lost.as_ref()?;
            (now.saturating_duration_since(*at) >= grace).then(|| (rank, gone.clone()))
        });
        if let Some((rank, gone)) = given_up {
            return self.lose(now, rank, gone);
        }
        let still = now.saturating_duration_since(self.moved);
        let startup = still >= self.timing.startup;
        match self.phase {
            Phase::Gathering if startup && self.plan.is_none() => {
                let message = format!(
                    "stage 0 has shown no progress for {} while preparing; the last was: {}",
                    seconds(still),
                    self.progress
                );
                self.fail(now, FailureKind::StartupTimedOut, Some(0), message);
            }
            Phase::Gathering if startup => {
                let missing = self.ranks(|seat| seat.conn.is_none());
                let culprit = Some(missing[0]).filter(|_| missing.len() == 1);
                let message = format!("{} did not join within {}", stages(&missing), seconds(still));
                self.fail(now, FailureKind::StartupTimedOut, culprit, message);
            }
            Phase::Forming if startup => {
                let found = hang(&self.doing(now));
                let message = format!("the group did not form for {}: {}", seconds(still), found.report);
                self.fail(now, FailureKind::StartupTimedOut, found.culprit, message);
            }
            Phase::Running if still >= self.timing.stall => {
                let found = hang(&self.doing(now));
                let message = format!("nothing has moved for {}: {}", seconds(still), found.report);
                self.fail(now, FailureKind::Hang, found.culprit, message);
            }
            _ => {}
        }
    }

    /// What each stage does now. One that has brought its part of something common waits for the first that has not,
    /// whatever it calls its action.
    fn doing(&self, now: Instant) -> Vec<Doing> {
        let describe = |rank: usize| {
            let seat = &self.seats[rank];
            let told = seat.heard.map_or(seat.doing.age, |heard| seat.doing.age + now.saturating_duration_since(heard));
            let waits = if seat.goodbye.is_some() {
                self.seats.iter().position(|seat| seat.goodbye.is_none()).map(|other| ("a goodbye".to_owned(), other))
            } else if self.phase == Phase::Forming && seat.formed {
                self.seats.iter().position(|seat| !seat.formed).map(|other| ("the word to be ready".to_owned(), other))
            } else {
                self.exchange.waits(rank)
            };
            let (text, waits_for) = match waits {
                Some((text, other)) => (text, Some(other)),
                None => (seat.doing.text.clone(), seat.doing.waits_for),
            };
            Doing { text, waits_for, age: told }
        };
        (0..self.seats.len()).map(describe).collect()
    }

    fn describe(&self, rank: usize) -> String {
        let doing = &self.seats[rank].doing;
        match doing.waits_for {
            Some(from) => format!("while it waited for {} from stage {from}", doing.text),
            None if doing.text.is_empty() => "while it joined".to_owned(),
            None => format!("while in {}", doing.text),
        }
    }

    pub(crate) fn goodbye(&mut self, now: Instant, rank: usize, code: i32) {
        self.seats[rank].goodbye = Some(code);
        if !GRACEFUL.contains(&code) {
            let culprit = Some(rank).filter(|_| code != COLLATERAL);
            let message = format!("stage {rank} left with exit code {code} {}", self.describe(rank));
            return self.fail(now, FailureKind::Left, culprit, message);
        }
        let waiting = (0..self.seats.len()).find_map(|other| Some((other, self.exchange.waits(other)?.0)));
        let formed = self.seats.iter().position(|seat| self.phase == Phase::Forming && seat.formed);
        let abandoned = waiting.or(formed.map(|other| (other, "the group to form".to_owned())));
        if let Some((other, what)) = abandoned {
            let message = format!("stage {rank} left with exit code {code} while stage {other} waits for {what}");
            return self.fail(now, FailureKind::Left, Some(rank), message);
        }
        if self.seats.iter().all(|seat| seat.goodbye.is_some()) {
            let others = self.conns(|rank| rank != 0);
            self.send(others.clone(), Down::Acknowledged);
            self.effects.extend(others.iter().copied().map(Effect::Close));
            self.end(now, Down::Acknowledged, others.into_iter().collect());
        }
    }

    /// A stage goes on although another one has left.
    pub(crate) fn left_behind(&mut self, now: Instant, rank: usize) {
        let Some((leaver, code)) = self.leaver() else { return };
        let message = format!("stage {leaver} left with exit code {code}, but stage {rank} goes on");
        self.fail(now, FailureKind::Left, Some(leaver), message);
    }

    /// The first that has said goodbye.
    pub(crate) fn leaver(&self) -> Option<(usize, i32)> {
        self.seats.iter().enumerate().find_map(|(rank, seat)| Some((rank, seat.goodbye?)))
    }

    /// Ends the group: the first reason counts. Rank 0 hears last, for the coordinator dies with its process.
    pub(crate) fn fail(&mut self, now: Instant, kind: FailureKind, culprit: Option<usize>, message: String) {
        if self.is_ending() {
            return;
        }
        let failure = Failure { kind, culprit, rank: 0, message };
        self.failure = Some(failure.clone());
        let mut waiting = BTreeSet::new();
        for rank in 1..self.seats.len() {
            let Some(conn) = self.seats[rank].conn else { continue };
            self.dismiss(conn, self.last_word(rank, &failure));
            if culprit != Some(rank) {
                waiting.insert(conn);
            }
        }
        self.end(now, self.last_word(0, &failure), waiting);
    }

    /// A stage that ended the group by leaving has its leave acknowledged; all others learn why it ended.
    fn last_word(&self, rank: usize, failure: &Failure) -> Down {
        match self.seats.get(rank).and_then(|seat| seat.goodbye) {
            Some(code) if !GRACEFUL.contains(&code) => Down::Acknowledged,
            _ => Down::Ended(failure.told_to(rank)),
        }
    }

    pub(crate) fn is_ending(&self) -> bool {
        matches!(self.phase, Phase::Ending { .. } | Phase::Over)
    }

    fn end(&mut self, now: Instant, last: Down, waiting: BTreeSet<Conn>) {
        let done = waiting.is_empty();
        self.phase = Phase::Ending { last, waiting, deadline: now + self.timing.goodbye };
        if done {
            self.finish();
        }
    }

    fn finish(&mut self) {
        let Phase::Ending { last, .. } = std::mem::replace(&mut self.phase, Phase::Over) else { return };
        if let Some(conn) = self.seats.first().and_then(|seat| seat.conn) {
            self.dismiss(conn, last);
        }
    }
}

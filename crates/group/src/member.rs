//! A stage's place in the group.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::Sender;

use crate::coordinator::spawn;
use crate::hang::seconds;
use crate::inbox::Inbox;
use crate::join::{Joined, join};
use crate::line::{Line, Unsaid};
use crate::wire::{Down, Up, is_timeout};
use crate::{Activity, Failure, FailureKind, GroupError, Hello, Roster, StepVote, Timing, Verdict};

/// One stage's membership: every rank has one, rank 0 too. All calls may come from any thread.
///
/// Dropping it without [`Member::leave`] ends the group for the others.
#[derive(Debug)]
pub struct Member {
    rank: usize,
    line: Arc<Line>,
    inbox: Arc<Inbox>,
    activity: Activity,
    _beating: Sender<()>,
}

impl Member {
    /// Joins the group at `address` (`host:port`); returns when it is released: all stages are there and stage 0 is
    /// ready. The bytes are what stage 0 gave to `release`.
    ///
    /// `on_preparing` hears what stage 0 is doing meanwhile. `on_failure` is called once, from a background thread, when
    /// the group is lost after this call has returned; calls that wait return [`GroupError::Lost`] after it.
    ///
    /// # Errors
    /// When stage 0 is not reached or shows no progress within `timing.startup`, refuses this stage, or gives up.
    pub fn join(
        address: &str,
        hello: Hello,
        timing: Timing,
        on_preparing: impl FnMut(&str),
        on_failure: impl Fn(Failure) + Send + Sync + 'static,
    ) -> Result<(Member, Roster, Vec<u8>), GroupError> {
        let rank = hello.rank;
        let activity = Activity::new("joining");
        let Joined { line, roster, plan, beating } = join(address, &hello, timing, &activity, on_preparing)?;
        let inbox = Arc::new(Inbox::default());
        let member = Member { rank, line: Arc::clone(&line), inbox: Arc::clone(&inbox), activity, _beating: beating };
        spawn("group-listen", move || listen(rank, &line, &inbox, timing, on_failure))?;
        Ok((member, roster, plan))
    }

    /// Says that this stage has loaded and its links are open; returns when all have said so.
    ///
    /// # Errors
    /// [`GroupError::Lost`] when the group has ended, as in all calls below.
    pub fn form(&self) -> Result<(), GroupError> {
        self.say(&Up::Formed)?;
        self.inbox.take(|state| state.formed.then_some(()))
    }

    /// The handle to set what this stage is doing.
    pub fn activity(&self) -> Activity {
        self.activity.clone()
    }

    /// Sends `bytes` to every member, this one included; each topic arrives in order. From rank 0 only. It does not wait.
    ///
    /// # Errors
    /// [`GroupError::NotStageZero`] on another rank, [`GroupError::TooLarge`] above 64 MiB.
    pub fn tell(&self, topic: u32, bytes: Vec<u8>) -> Result<(), GroupError> {
        if self.rank != 0 {
            return Err(GroupError::NotStageZero { rank: self.rank });
        }
        self.say(&Up::Tell { topic, bytes })
    }

    /// Waits for the next message of a topic.
    ///
    /// # Errors
    /// When the group is lost.
    pub fn told(&self, topic: u32) -> Result<Vec<u8>, GroupError> {
        self.inbox.take(|state| state.take_told(topic))
    }

    /// Brings this rank's part and waits for all parts, by rank. All ranks must call it in the same order on a topic;
    /// topics know nothing of each other, so that a thread behind training can have its own. One thread a topic.
    ///
    /// # Errors
    /// When the group is lost, or the part is too large.
    pub fn gather(&self, topic: u32, bytes: Vec<u8>) -> Result<Vec<Vec<u8>>, GroupError> {
        self.say(&Up::Gather { topic, bytes })?;
        self.inbox.take(|state| state.take_gathered(topic))
    }

    /// Votes on a step and waits for the verdict, which is the same on all ranks (its measures reach rank 0 alone). From
    /// one thread.
    ///
    /// # Errors
    /// When the group is lost.
    pub fn vote(&self, vote: StepVote) -> Result<Verdict, GroupError> {
        self.say(&Up::Vote(vote))?;
        self.inbox.take(|state| state.verdicts.pop_front())
    }

    /// Says goodbye with the exit code to come, and waits until all have.
    ///
    /// With 0 or 143 all must leave: if another stage goes on, the group fails. With any other code the group ends at
    /// once and this stage is its culprit (with 75 it is collateral itself, and none is named). On rank 0 it returns
    /// last, when the others have hung up or after `timing.goodbye`.
    ///
    /// # Errors
    /// When the group is lost before all have said goodbye.
    pub fn leave(self, code: i32) -> Result<(), GroupError> {
        self.say(&Up::Goodbye { code })?;
        self.inbox.take(|state| state.acknowledged.then_some(()))
    }

    fn say(&self, up: &Up) -> Result<(), GroupError> {
        match self.line.say(up) {
            Ok(()) => Ok(()),
            Err(Unsaid::Unfit(error)) => Err(error),
            // The listening thread knows the reason, or is about to.
            Err(Unsaid::Gone) => self.inbox.take(|_| None::<Infallible>).map(|never| match never {}),
        }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.inbox.hang_up();
        self.line.hang_up();
    }
}

/// Reads what the coordinator says until the end.
fn listen(rank: usize, line: &Line, inbox: &Inbox, timing: Timing, on_failure: impl Fn(Failure)) {
    let protocol = |what| Failure {
        kind: FailureKind::Protocol,
        culprit: Some(rank),
        rank,
        message: format!("stage {rank} {what}"),
    };
    let failure = loop {
        match line.hear() {
            Ok(Down::Ended(failure)) => break failure,
            Ok(down) => {
                let last = down == Down::Acknowledged;
                if let Err(what) = inbox.deliver(down) {
                    break protocol(what);
                }
                if last {
                    return line.hang_up();
                }
            }
            Err(error) => break lost(rank, &error, timing),
        }
    };
    // The coordinator need not wait for what follows.
    line.hang_up();
    if !inbox.has_hung_up() {
        on_failure(failure.clone());
    }
    inbox.end(failure);
}

/// Stage 0 is gone and could not say why.
fn lost(rank: usize, error: &io::Error, timing: Timing) -> Failure {
    let (kind, message) = if is_timeout(error) {
        let silence = seconds(timing.heartbeat_timeout);
        (
            FailureKind::HeartbeatsMissed,
            format!("stage 0 has not been heard for {silence}: it is stopped, frozen or cut off"),
        )
    } else {
        let how = match error.kind() {
            io::ErrorKind::UnexpectedEof => "closed the control connection".to_owned(),
            _ => format!("was lost from the control connection ({error})"),
        };
        (FailureKind::ConnectionClosed, format!("stage 0 {how}: its process has died, or its machine is gone"))
    };
    Failure { kind, culprit: Some(0), rank, message }
}

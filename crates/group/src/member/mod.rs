//! A stage's membership in the group.

mod control_stream;
mod inbox;
pub(crate) mod join;
pub(crate) mod wait_as_spare;

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;

use stagecoach_api::contract::Mesh;

use self::control_stream::{ControlStream, FrameSendError};
use self::inbox::Inbox;
use self::join::{Joined, join};
use crate::sync::spawn;
use crate::wire::connection::Disconnect;
use crate::wire::messages::{CoordinatorMessage, ENDS_GROUP, JOINS_NEXT_GROUP, MemberMessage};
use crate::{
    Activity, GroupError, GroupFailure, GroupSecret, GroupTimeouts, Hello, NotFound, Rendezvous, Roster, StepVote,
    Verdict,
};

/// The membership of one stage in its group. The leader is a member too. Any thread may call any method.
///
/// Dropping a member without [`Member::leave`] ends the group for the other members.
#[derive(Debug)]
pub struct Member {
    ranks: Ranks,
    stream: Arc<ControlStream>,
    inbox: Arc<Inbox>,
    activity: Activity,
    secret: GroupSecret,
    _stop_heartbeat: Sender<()>,
}

/// The global ranks of a member and of its leader, and the mesh that gives these ranks names.
#[derive(Clone, Copy, Debug)]
struct Ranks {
    own: usize,
    leader: usize,
    mesh: Mesh,
}

impl Ranks {
    fn own_name(self) -> String {
        self.mesh.name(self.own as u32)
    }

    fn leader_name(self) -> String {
        self.mesh.name(self.leader as u32)
    }
}

impl Member {
    /// Joins the group that `find` finds. Returns when the group is released: all members have joined and the leader is
    /// ready. The returned bytes are the plan that the leader passed to `release`. Every attempt to join calls `find`
    /// again. An error of `find` is the reason why the stage has not found the group. `mesh` has the numbers of stages
    /// and replicas of the attempt.
    ///
    /// While the stage joins, `on_preparing` receives the leader's progress reports. If the group fails after this call
    /// has returned, `on_failure` is called once, from a background thread, and then all waiting calls return
    /// [`GroupError::GroupFailed`].
    ///
    /// # Errors
    /// Returns an error if the stage does not reach the leader within `timeouts.startup_timeout`, if the leader reports
    /// no progress for that time, or if the leader refuses this stage or ends the group.
    pub fn join(
        find: impl FnMut() -> Result<Rendezvous, NotFound>,
        hello: Hello,
        mesh: Mesh,
        timeouts: GroupTimeouts,
        on_preparing: impl FnMut(&str),
        on_failure: impl Fn(GroupFailure) + Send + Sync + 'static,
    ) -> Result<(Member, Roster, Vec<u8>), GroupError> {
        let name = mesh.name(hello.rank as u32);
        let activity = Activity::new("joining");
        let Joined { stream, roster, plan, secret, stop_heartbeat } =
            join(find, &hello, &name, timeouts, &activity, on_preparing)?;
        let inbox = Arc::new(Inbox::default());
        let ranks = Ranks { own: hello.rank, leader: roster.leader(), mesh };
        let member = Member {
            ranks,
            stream: Arc::clone(&stream),
            inbox: Arc::clone(&inbox),
            activity,
            secret,
            _stop_heartbeat: stop_heartbeat,
        };
        spawn("group-receive", move || receive_messages(ranks, &stream, &inbox, timeouts, on_failure))?;
        Ok((member, roster, plan))
    }

    /// Reports that this stage has loaded its weights and opened its links, and waits until all members have reported
    /// the same (a barrier).
    ///
    /// # Errors
    /// Returns [`GroupError::GroupFailed`] if the group has ended. The methods below return this error as well.
    pub fn form(&self) -> Result<(), GroupError> {
        self.send(&MemberMessage::Formed)?;
        self.inbox.wait_for(|state| state.formed.then_some(()))
    }

    /// Returns the group's secret, which the links between the members use too.
    pub fn secret(&self) -> &GroupSecret {
        &self.secret
    }

    /// Returns the handle that sets this stage's activity.
    pub fn activity(&self) -> Activity {
        self.activity.clone()
    }

    /// Sends `bytes` to every member, including this one. The broadcasts of a topic arrive in order. Only the leader
    /// may call this method. The call does not wait.
    ///
    /// # Errors
    /// Returns [`GroupError::NotLeader`] on another member, and [`GroupError::FrameTooLarge`] above 64 MiB.
    pub fn broadcast(&self, topic: u32, bytes: Vec<u8>) -> Result<(), GroupError> {
        let ranks = self.ranks;
        if ranks.own != ranks.leader {
            return Err(GroupError::NotLeader { name: ranks.own_name(), leader: ranks.leader_name() });
        }
        self.send(&MemberMessage::Broadcast { topic, bytes })
    }

    /// Waits for the next broadcast of a topic.
    ///
    /// # Errors
    /// Returns an error if the group has failed.
    pub fn receive_broadcast(&self, topic: u32) -> Result<Vec<u8>, GroupError> {
        self.inbox.wait_for(|state| state.take_broadcast(topic))
    }

    /// All-gather: contributes `bytes` and returns every member's contribution, by group rank. All members must make
    /// the calls of a topic in the same order. Topics are independent, so that the checkpoint thread can use a separate
    /// topic. Only one thread may use a topic.
    ///
    /// # Errors
    /// Returns an error if the group has failed, or the contribution is too large.
    pub fn all_gather(&self, topic: u32, bytes: Vec<u8>) -> Result<Vec<Vec<u8>>, GroupError> {
        self.send(&MemberMessage::Gather { topic, bytes })?;
        self.inbox.wait_for(|state| state.take_gathered(topic))
    }

    /// Votes on a step and waits for the verdict, which is the same on all members (only the leader's verdict has the
    /// measurements). Only one thread may vote.
    ///
    /// # Errors
    /// Returns an error if the group has failed.
    pub fn vote(&self, vote: StepVote) -> Result<Verdict, GroupError> {
        self.send(&MemberMessage::Vote(vote))?;
        self.inbox.wait_for(|state| state.verdicts.pop_front())
    }

    /// Waits until the group has failed, for at most `timeout`, and returns the failure. After a link breaks, the
    /// coordinator reports the cause a moment later.
    pub fn wait_for_failure(&self, timeout: Duration) -> Option<GroupFailure> {
        self.inbox.wait_for_failure(timeout)
    }

    /// Leaves the group, reporting the exit code, and waits until all members have left.
    ///
    /// With code 0 or 143, all members must leave: if another stage continues, the group fails. With any other code,
    /// the group ends at once. This stage is then the root cause, unless the code is 75: a stage leaves with code 75 if
    /// it lost a peer. On the leader, the call returns last: when the other members have disconnected, or after
    /// `timeouts.shutdown_timeout`.
    ///
    /// # Errors
    /// Returns an error if the group fails before all members have left.
    pub fn leave(self, code: i32) -> Result<(), GroupError> {
        self.send(&MemberMessage::Leave { code })?;
        self.inbox.wait_for(|state| state.leave_acknowledged.then_some(()))
    }

    /// Leaves the group to join the next one, and waits until all members have left. All members call this method after
    /// a verdict with [`Verdict::regroup`].
    ///
    /// # Errors
    /// Returns an error if the group fails before all members have left.
    pub fn leave_for_next_group(self) -> Result<(), GroupError> {
        self.leave(JOINS_NEXT_GROUP)
    }

    /// Leaves a group that must not continue: no spare replaces this stage, and the group ends for the other members
    /// too.
    ///
    /// # Errors
    /// Returns an error if the group fails before the leave is acknowledged.
    pub fn leave_and_end_group(self) -> Result<(), GroupError> {
        self.leave(ENDS_GROUP)
    }

    fn send(&self, message: &MemberMessage) -> Result<(), GroupError> {
        match self.stream.send(message) {
            Ok(()) => Ok(()),
            Err(FrameSendError::Encode(error)) => Err(error),
            // the receiving thread reads the reason from the connection and stores it in the inbox
            Err(FrameSendError::Disconnected) => {
                self.inbox.wait_for(|_| None::<Infallible>).map(|never| match never {})
            }
        }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.inbox.mark_left();
        self.stream.shut_down();
    }
}

/// Receives the coordinator's messages until the connection ends.
fn receive_messages(
    ranks: Ranks,
    stream: &ControlStream,
    inbox: &Inbox,
    timeouts: GroupTimeouts,
    on_failure: impl Fn(GroupFailure),
) {
    let rank = ranks.own;
    let protocol = |what| {
        let message = format!("{} {what}", ranks.own_name());
        GroupFailure { root_cause_rank: Some(rank), rank, message, has_ended: false }
    };
    let failure = loop {
        match stream.receive() {
            Ok(CoordinatorMessage::GroupEnded(failure)) => break failure,
            Ok(message) => {
                let last = message == CoordinatorMessage::LeaveAcknowledged;
                if let Err(what) = inbox.deliver(message) {
                    break protocol(what);
                }
                if last {
                    return stream.shut_down();
                }
            }
            // the connection failed before the coordinator sent a final message
            Err(error) => {
                let (leader, name) = (ranks.leader, ranks.leader_name());
                break Disconnect::of(&error).failure(leader, &name, "", timeouts.heartbeat_timeout).for_rank(rank);
            }
        }
    };
    // the socket is shut down first, so that the coordinator does not wait for the callback
    stream.shut_down();
    if !inbox.has_left() {
        on_failure(failure.clone());
    }
    inbox.close(failure);
}

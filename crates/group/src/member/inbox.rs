//! Messages that a member has received but not consumed yet.

use std::collections::{HashMap, VecDeque};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use crate::sync::lock;
use crate::wire::messages::{CoordinatorMessage, MAX_FRAME_BYTES};
use crate::{GroupError, GroupFailure, Verdict};

/// A queue that the receiving thread fills and the calling threads empty.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    state: Mutex<InboxState>,
    changed: Condvar,
}

/// Messages by kind, each kind in order of arrival.
#[derive(Debug, Default)]
pub(crate) struct InboxState {
    broadcasts: HashMap<u32, VecDeque<Vec<u8>>>,
    /// The total size of `broadcasts`, in bytes.
    broadcast_bytes: usize,
    gathered: HashMap<u32, VecDeque<Vec<Vec<u8>>>>,
    pub(crate) verdicts: VecDeque<Verdict>,
    pub(crate) formed: bool,
    pub(crate) leave_acknowledged: bool,
    failure: Option<GroupFailure>,
    /// Whether this member has closed the connection itself. If so, the end of the connection is not reported as a
    /// failure.
    left_voluntarily: bool,
}

impl InboxState {
    pub(crate) fn take_gathered(&mut self, topic: u32) -> Option<Vec<Vec<u8>>> {
        self.gathered.get_mut(&topic)?.pop_front()
    }

    pub(crate) fn take_broadcast(&mut self, topic: u32) -> Option<Vec<u8>> {
        let bytes = self.broadcasts.get_mut(&topic)?.pop_front()?;
        self.broadcast_bytes -= bytes.len();
        Some(bytes)
    }
}

impl Inbox {
    /// Stores a message.
    ///
    /// # Errors
    /// Returns an error if the stored broadcasts together exceed the size limit of a frame, which means that the
    /// trainer does not consume the broadcasts.
    pub(crate) fn deliver(&self, message: CoordinatorMessage) -> Result<(), String> {
        let mut state = lock(&self.state);
        match message {
            CoordinatorMessage::Broadcast { topic, bytes } => {
                state.broadcast_bytes += bytes.len();
                state.broadcasts.entry(topic).or_default().push_back(bytes);
                if state.broadcast_bytes > MAX_FRAME_BYTES {
                    let bytes = state.broadcast_bytes;
                    return Err(format!("buffers {bytes} bytes of broadcasts that were never received"));
                }
            }
            CoordinatorMessage::Gathered { topic, parts } => state.gathered.entry(topic).or_default().push_back(parts),
            CoordinatorMessage::Verdict(verdict) => state.verdicts.push_back(verdict),
            CoordinatorMessage::Formed => state.formed = true,
            CoordinatorMessage::LeaveAcknowledged => state.leave_acknowledged = true,
            // the receiving thread handles these messages
            CoordinatorMessage::Heartbeat | CoordinatorMessage::GroupEnded(_) => {}
            // the coordinator sends these messages only while a stage joins
            CoordinatorMessage::Preparing(_)
            | CoordinatorMessage::Waiting { .. }
            | CoordinatorMessage::Refused(_)
            | CoordinatorMessage::Released { .. } => {}
            // the coordinator sends these messages only to spares
            CoordinatorMessage::NextInLine { .. } | CoordinatorMessage::Promote { .. } => {}
        }
        self.changed.notify_all();
        Ok(())
    }

    /// Waits until `pick` returns a value. Returns an error if the group has ended.
    pub(crate) fn wait_for<T>(&self, mut pick: impl FnMut(&mut InboxState) -> Option<T>) -> Result<T, GroupError> {
        let mut state = lock(&self.state);
        loop {
            if let Some(found) = pick(&mut state) {
                return Ok(found);
            }
            if let Some(failure) = &state.failure {
                return Err(GroupError::GroupFailed(Box::new(failure.clone())));
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits until the group has failed, for at most `timeout`, and returns the failure.
    pub(crate) fn wait_for_failure(&self, timeout: Duration) -> Option<GroupFailure> {
        let state = lock(&self.state);
        let waited = self.changed.wait_timeout_while(state, timeout, |state| state.failure.is_none());
        waited.unwrap_or_else(PoisonError::into_inner).0.failure.clone()
    }

    /// Records that the group has ended. Every call that would have to wait for a message returns `failure` instead.
    pub(crate) fn close(&self, failure: GroupFailure) {
        lock(&self.state).failure.get_or_insert(failure);
        self.changed.notify_all();
    }

    pub(crate) fn mark_left(&self) {
        lock(&self.state).left_voluntarily = true;
    }

    pub(crate) fn has_left(&self) -> bool {
        lock(&self.state).left_voluntarily
    }
}

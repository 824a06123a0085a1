//! What a member has been sent and nobody has asked for yet.

use std::collections::{HashMap, VecDeque};
use std::sync::{Condvar, Mutex, PoisonError};

use crate::sync::lock;
use crate::wire::{Down, MAX_FRAME};
use crate::{Failure, GroupError, Verdict};

/// Filled by the thread that reads, emptied by those that call.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    state: Mutex<State>,
    arrived: Condvar,
}

/// By kind, each in the order of arrival.
#[derive(Debug, Default)]
pub(crate) struct State {
    told: HashMap<u32, VecDeque<Vec<u8>>>,
    /// The bytes in `told`.
    held: usize,
    gathered: HashMap<u32, VecDeque<Vec<Vec<u8>>>>,
    pub(crate) verdicts: VecDeque<Verdict>,
    pub(crate) formed: bool,
    pub(crate) acknowledged: bool,
    ended: Option<Failure>,
    /// This member has hung up itself: the end of its connection is no news.
    hung_up: bool,
}

impl State {
    pub(crate) fn take_gathered(&mut self, topic: u32) -> Option<Vec<Vec<u8>>> {
        self.gathered.get_mut(&topic)?.pop_front()
    }

    pub(crate) fn take_told(&mut self, topic: u32) -> Option<Vec<u8>> {
        let bytes = self.told.get_mut(&topic)?.pop_front()?;
        self.held -= bytes.len();
        Some(bytes)
    }
}

impl Inbox {
    /// Puts a message in; an error if nobody ever asks for what it holds already.
    pub(crate) fn deliver(&self, down: Down) -> Result<(), String> {
        let mut state = lock(&self.state);
        match down {
            Down::Told { topic, bytes } => {
                state.held += bytes.len();
                state.told.entry(topic).or_default().push_back(bytes);
                if state.held > MAX_FRAME {
                    return Err(format!("holds {} bytes of messages that its trainer never asked for", state.held));
                }
            }
            Down::Gathered { topic, parts } => state.gathered.entry(topic).or_default().push_back(parts),
            Down::Verdict(verdict) => state.verdicts.push_back(verdict),
            Down::Formed => state.formed = true,
            Down::Acknowledged => state.acknowledged = true,
            // Only while joining, or read by the thread itself.
            Down::Pulse | Down::Preparing(_) | Down::ComeBack => {}
            Down::Refused(_) | Down::Released { .. } | Down::Ended(_) => {}
        }
        self.arrived.notify_all();
        Ok(())
    }

    /// Waits until `pick` finds something, or the group has ended.
    pub(crate) fn take<T>(&self, mut pick: impl FnMut(&mut State) -> Option<T>) -> Result<T, GroupError> {
        let mut state = lock(&self.state);
        loop {
            if let Some(found) = pick(&mut state) {
                return Ok(found);
            }
            if let Some(failure) = &state.ended {
                return Err(GroupError::Lost(Box::new(failure.clone())));
            }
            state = self.arrived.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// The group has ended: every call returns, now and later.
    pub(crate) fn end(&self, failure: Failure) {
        lock(&self.state).ended.get_or_insert(failure);
        self.arrived.notify_all();
    }

    pub(crate) fn hang_up(&self) {
        lock(&self.state).hung_up = true;
    }

    pub(crate) fn has_hung_up(&self) -> bool {
        lock(&self.state).hung_up
    }
}

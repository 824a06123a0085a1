//! Spares: processes that do not run a stage yet. When the process of a stage ends, the coordinator selects a spare to
//! replace the stage. The spare then joins as an ordinary member. This module is a pure part of the state machine.

use crate::state::admission::admit_spare;
use crate::state::{ConnectionId, GroupPhase, GroupState};
use crate::wire::connection::Disconnect;
use crate::wire::messages::CoordinatorMessage;
use crate::{Hello, Refusal};

/// The connected spares, in the order in which they connected.
#[derive(Debug, Default)]
pub(crate) struct Spares(Vec<ConnectionId>);

impl Spares {
    pub(crate) fn conns(&self) -> Vec<ConnectionId> {
        self.0.clone()
    }

    pub(crate) fn take_all(&mut self) -> Vec<ConnectionId> {
        std::mem::take(&mut self.0)
    }

    /// Removes a connection. Returns false if the connection is not a spare's.
    fn remove(&mut self, conn: ConnectionId) -> bool {
        let before = self.0.len();
        self.0.retain(|spare| *spare != conn);
        self.0.len() < before
    }
}

impl GroupState {
    pub(crate) fn on_wait_as_spare(&mut self, conn: ConnectionId, hello: Hello) {
        if let Err(refusal) = admit_spare(&self.expected, &hello) {
            return self.send_and_close(conn, CoordinatorMessage::Refused(refusal));
        }
        if self.is_ending() {
            return self.send_and_close(conn, CoordinatorMessage::Refused(self.ended()));
        }
        self.spares.0.push(conn);
        if self.spares.0.len() == 1 {
            self.notify_next_in_line();
        }
        let message = match self.phase {
            GroupPhase::Joining => CoordinatorMessage::Preparing(self.progress.clone()),
            _ => self.release_message(),
        };
        self.send(vec![conn], message);
    }

    pub(crate) fn on_spare_disconnected(&mut self, conn: ConnectionId, disconnect: &Disconnect) {
        let was_next = self.spares.0.first() == Some(&conn);
        if !self.spares.remove(conn) {
            return;
        }
        if matches!(disconnect, Disconnect::TimedOut | Disconnect::Malformed(_)) {
            // if the spare still reads, it must not mistake the closed connection for the end of the leader's process
            let reason = "this spare was silent".to_owned();
            self.send_and_close(conn, CoordinatorMessage::Refused(Refusal::GroupEnded { reason }));
        }
        if was_next {
            self.notify_next_in_line();
        }
    }

    /// Makes the first spare replace the stage `rank`, whose process has ended or leaves. Returns the spare's
    /// connection; `None` if there is no spare.
    pub(crate) fn hand_over(&mut self, rank: usize) -> Option<ConnectionId> {
        let incarnation = self.slots[rank].hello.as_ref()?.incarnation.checked_add(1)?;
        let spare = *self.spares.0.first()?;
        self.spares.remove(spare);
        self.send_and_close(spare, CoordinatorMessage::Promote { rank, incarnation });
        self.notify_next_in_line();
        Some(spare)
    }

    fn notify_next_in_line(&mut self) {
        let incarnation = self.expected.incarnation;
        let next: Vec<ConnectionId> = self.spares.0.first().copied().into_iter().collect();
        if !next.is_empty() {
            self.send(next, CoordinatorMessage::NextInLine { incarnation });
        }
    }
}

//! Turns: a stage has at most one message in NCCL at a time, and passes it to NCCL when the peer does.
//!
//! A message in NCCL occupies the GPU until the peer joins. The peer may be unable to join: its driver may wait for its
//! GPU (to load a kernel, or to free memory), and its GPU may run all streams in one queue. If another message occupies
//! the peer's GPU and waits for this stage, the two stages wait for each other forever. A stage therefore passes a
//! message to NCCL only when the tensor is complete and neither end has another message in NCCL. The peer's GPU then
//! finishes its work, and the peer joins.
//!
//! For each message, each end sends two signals on the first socket of the pair. Both ends send [`Signal::Ready`] when
//! the sender's tensor is complete and the receiver's memory is free. Each end then takes the slot of its stage and
//! sends [`Signal::Go`], the lower rank first.

use std::io::{ErrorKind, Read as _, Result, Write as _};
use std::net::TcpStream;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

/// A signal from one end of a channel to the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Signal {
    /// This end is ready to transfer the message.
    Ready = b'R' as isize,
    /// This end has taken the slot of its stage.
    Go = b'G' as isize,
}

pub(super) fn write_signal(mut socket: &TcpStream, signal: Signal) -> Result<()> {
    socket.write_all(&[signal as u8])
}

/// Waits for a signal, for at most `timeout`. Returns `None` after the timeout.
///
/// # Errors
/// If the connection is closed or lost.
pub(super) fn read_signal(mut socket: &TcpStream, timeout: Duration) -> Result<Option<u8>> {
    socket.set_read_timeout(Some(timeout))?;
    let mut signal = [0];
    match socket.read(&mut signal) {
        Ok(0) => Err(ErrorKind::UnexpectedEof.into()),
        Ok(_) => Ok(Some(signal[0])),
        Err(error) if [ErrorKind::WouldBlock, ErrorKind::TimedOut, ErrorKind::Interrupted].contains(&error.kind()) => {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// The slot of a stage, which permits one message at a time.
#[derive(Debug, Default)]
pub(super) struct TransferSlot {
    is_taken: Mutex<bool>,
    freed: Condvar,
}

/// The guard of a taken slot. Dropping the guard frees the slot.
#[derive(Debug)]
pub(super) struct SlotGuard(Arc<TransferSlot>);

impl TransferSlot {
    /// Waits for the slot. Calls `watch` every millisecond, and returns its error.
    pub(super) fn take<E>(
        self: &Arc<Self>,
        mut watch: impl FnMut() -> std::result::Result<(), E>,
    ) -> std::result::Result<SlotGuard, E> {
        let mut is_taken = self.is_taken.lock().unwrap_or_else(PoisonError::into_inner);
        while *is_taken {
            let waited = self.freed.wait_timeout(is_taken, Duration::from_millis(1));
            is_taken = waited.unwrap_or_else(PoisonError::into_inner).0;
            watch()?;
        }
        *is_taken = true;
        Ok(SlotGuard(Arc::clone(self)))
    }
}

impl Drop for SlotGuard {
    fn drop(&mut self) {
        *self.0.is_taken.lock().unwrap_or_else(PoisonError::into_inner) = false;
        self.0.freed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn a_slot_has_one_holder_and_waiting_ends_with_a_failure() {
        let slot = Arc::new(TransferSlot::default());
        let turn = slot.take(|| Ok::<_, ()>(())).unwrap();
        assert_eq!(slot.take(|| Err("the group has ended")).unwrap_err(), "the group has ended");
        let waiting = Arc::clone(&slot);
        let waiter = std::thread::spawn(move || waiting.take(|| Ok::<_, ()>(())).map(drop));
        drop(turn);
        waiter.join().unwrap().unwrap();
    }

    /// The progress of one end of a message.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
    enum End {
        Started,
        Ready,
        HasSlot,
        Done,
    }

    /// A state of a simulated group: the progress of both ends of each message (first the end at the lower rank), and
    /// for each rank whether its slot is taken.
    #[derive(Clone, PartialEq, Eq, Hash)]
    struct World {
        messages: Vec<[End; 2]>,
        is_taken: Vec<bool>,
    }

    /// Returns all worlds that the next step of one end can produce. Without `is_ordered`, each end takes its slot as
    /// soon as both ends are ready.
    fn next(world: &World, pairs: &[[usize; 2]], is_ordered: bool) -> Vec<World> {
        let mut all = Vec::new();
        for (message, ranks) in pairs.iter().enumerate() {
            let ends = world.messages[message];
            for end in 0..2 {
                let (own, other, rank) = (ends[end], ends[1 - end], ranks[end]);
                let may_take = match (is_ordered, end) {
                    (true, 1) => other >= End::HasSlot,
                    _ => other >= End::Ready,
                };
                let mut next = world.clone();
                match own {
                    End::Started => next.messages[message][end] = End::Ready,
                    End::Ready if may_take && !world.is_taken[rank] => {
                        next.messages[message][end] = End::HasSlot;
                        next.is_taken[rank] = true;
                    }
                    End::HasSlot if other >= End::HasSlot => {
                        next.messages[message][end] = End::Done;
                        next.is_taken[rank] = false;
                    }
                    _ => continue,
                }
                all.push(next);
            }
        }
        all
    }

    /// Whether some order of steps reaches a world in which no end can make a step, although a message is not done.
    fn can_stand_still(ranks: usize, pairs: &[[usize; 2]], is_ordered: bool) -> bool {
        let first = World { messages: vec![[End::Started; 2]; pairs.len()], is_taken: vec![false; ranks] };
        let mut seen = HashSet::from([first.clone()]);
        let mut open = vec![first];
        while let Some(world) = open.pop() {
            let next = next(&world, pairs, is_ordered);
            if next.is_empty() && world.messages.iter().any(|ends| *ends != [End::Done; 2]) {
                return true;
            }
            open.extend(next.into_iter().filter(|world| seen.insert(world.clone())));
        }
        false
    }

    /// The test covers a ring of three stages, and two stages with messages in both directions. Each pair lists the
    /// lower rank first.
    #[test]
    fn no_order_of_steps_stands_still() {
        let (ring, both) = ([[0, 1], [1, 2], [0, 2], [0, 1]], [[0, 1], [0, 1], [0, 1]]);
        assert!(!can_stand_still(3, &ring, true) && !can_stand_still(2, &both, true));
        assert!(
            can_stand_still(3, &ring, false) && can_stand_still(2, &both, false),
            "the order of ranks is not needed"
        );
    }
}

//! Ends all waiting on the links of a group, from any thread. The thread that detects a lost stage uses the interrupt,
//! because another thread may be waiting for a tensor of that stage.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::net::{Shutdown, shutdown};

/// The sockets of a group's links. All clones share the same sockets.
#[derive(Clone, Debug, Default)]
pub struct Interrupt(Arc<Mutex<Sockets>>);

#[derive(Debug, Default)]
struct Sockets {
    open: Vec<OwnedFd>,
    is_triggered: bool,
}

impl Interrupt {
    /// Adds a socket: a stream, or a listener on which a thread waits.
    ///
    /// # Errors
    /// If this process can't open more files.
    pub(crate) fn add(&self, socket: &impl AsFd) -> io::Result<()> {
        let socket = socket.as_fd().try_clone_to_owned()?;
        let mut sockets = self.sockets();
        if sockets.is_triggered {
            shut_down(&socket);
        }
        sockets.open.push(socket);
        Ok(())
    }

    /// Shuts down all sockets, including sockets that are added later. Every wait on these sockets fails.
    pub fn trigger(&self) {
        let mut sockets = self.sockets();
        sockets.is_triggered = true;
        sockets.open.iter().for_each(shut_down);
    }

    /// Whether [`Interrupt::trigger`] was called.
    pub(super) fn is_triggered(&self) -> bool {
        self.sockets().is_triggered
    }

    fn sockets(&self) -> MutexGuard<'_, Sockets> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Shuts a socket down. A failure is ignored, because a socket that is not connected needs no shutdown.
fn shut_down(socket: &OwnedFd) {
    let _ = shutdown(socket, Shutdown::Both);
}

//! A member's end of its control connection.

use std::io::{self, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::sync::lock;
use crate::wire::{self, Down, MAX_FRAME, Up};
use crate::{Activity, GroupError};

/// Shared by the threads of a member: one reads, any may write.
#[derive(Debug)]
pub(crate) struct Line {
    stream: TcpStream,
    /// Held while a frame is written.
    writing: Mutex<()>,
}

/// Why a frame was not sent.
#[derive(Debug)]
pub(crate) enum Unsaid {
    /// It never can be.
    Unfit(GroupError),
    /// The connection is gone; whoever reads from it learns why.
    Gone,
}

impl Line {
    pub(crate) fn new(stream: TcpStream) -> Self {
        Line { stream, writing: Mutex::new(()) }
    }

    pub(crate) fn say(&self, up: &Up) -> Result<(), Unsaid> {
        let frame = wire::encode(up).map_err(Unsaid::Unfit)?;
        let _turn = lock(&self.writing);
        (&self.stream).write_all(&frame).map_err(|_| {
            // Half a frame may be out: the connection can't be used any more.
            self.hang_up();
            Unsaid::Gone
        })
    }

    pub(crate) fn hear(&self) -> io::Result<Down> {
        wire::read(&mut &self.stream, MAX_FRAME)
    }

    pub(crate) fn hang_up(&self) {
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

/// Says what this stage does, `every` so often, until the line is gone or the other end of `stop` is dropped.
pub(crate) fn beat(line: &Arc<Line>, activity: &Activity, every: Duration, stop: &Receiver<()>) {
    while line.say(&Up::Heartbeat(activity.snapshot())).is_ok() {
        if stop.recv_timeout(every) != Err(RecvTimeoutError::Timeout) {
            return;
        }
    }
}

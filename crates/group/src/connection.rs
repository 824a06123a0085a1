//! One control connection as the coordinator sees it: a thread that reads, a thread that writes, and a bounded queue,
//! so that a peer that has stopped can't hold up the others.

use std::io::{self, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use crate::roster::Gone;
use crate::wire::{self, MAX_FRAME, Up};

/// How many frames may wait for a peer to read them.
const QUEUE: usize = 8192;

/// The writing end.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: Arc<TcpStream>,
    queue: Option<SyncSender<Arc<[u8]>>>,
}

/// The peer has not read for so long that its queue is full.
#[derive(Debug)]
pub(crate) struct Full;

impl Connection {
    /// Starts the writing thread of an accepted connection.
    pub(crate) fn open(stream: &Arc<TcpStream>) -> io::Result<Connection> {
        let (queue, frames) = sync_channel(QUEUE);
        let writer = Arc::clone(stream);
        thread::Builder::new().name("group-write".to_owned()).spawn(move || write(&writer, &frames))?;
        Ok(Connection { stream: Arc::clone(stream), queue: Some(queue) })
    }

    /// Queues a frame. One that has been finished swallows it.
    pub(crate) fn send(&self, frame: &Arc<[u8]>) -> Result<(), Full> {
        match &self.queue {
            // A writer that has ended has shut the socket down: the reader reports it.
            Some(queue) => match queue.try_send(Arc::clone(frame)) {
                Err(std::sync::mpsc::TrySendError::Full(_)) => Err(Full),
                _ => Ok(()),
            },
            None => Ok(()),
        }
    }

    /// Nothing more will be sent: the connection closes when all is written and the peer has hung up.
    pub(crate) fn finish(&mut self) {
        self.queue = None;
    }

    /// Closes it at once.
    pub(crate) fn cut(&self) {
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

fn write(stream: &TcpStream, frames: &Receiver<Arc<[u8]>>) {
    let mut out = stream;
    for frame in frames {
        if out.write_all(&frame).is_err() {
            // Half a frame may be out: the connection can't be used any more.
            let _ = stream.shutdown(Shutdown::Both);
            return;
        }
    }
    let _ = stream.shutdown(Shutdown::Write);
}

/// Reads until the connection is gone; says how it went. `said` returns false when nobody listens any more.
pub(crate) fn read(stream: &TcpStream, mut said: impl FnMut(Up) -> bool) -> Gone {
    let mut input = stream;
    loop {
        match wire::read::<Up>(&mut input, MAX_FRAME) {
            Ok(up) => {
                if !said(up) {
                    return Gone::Closed("was not listened to any more".to_owned());
                }
            }
            Err(error) if wire::is_timeout(&error) => return Gone::Silent,
            Err(error) if error.kind() == io::ErrorKind::InvalidData => return Gone::Malformed(error.to_string()),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                return Gone::Closed("closed its control connection".to_owned());
            }
            Err(error) => return Gone::Closed(format!("lost its control connection ({error})")),
        }
    }
}

/// Small frames go out at once; a peer that neither speaks nor reads is noticed after `timeout`.
pub(crate) fn configure(stream: &TcpStream, timeout: Duration) -> io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(timeout))?;
    stream.set_write_timeout(Some(timeout))
}

//! The coordinator's side of one control connection: a reader thread, a writer thread and a bounded send queue. Because
//! of the queue, a slow peer does not block other peers.

use std::io::{self, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread;

use crate::wire::connection::Disconnect;
use crate::wire::frame::read_frame;
use crate::wire::messages::{MAX_FRAME_BYTES, MemberMessage};
use crate::{SecureReader, SecureWriter, Session};

/// The number of frames that may be queued for a peer.
const MAX_QUEUED_FRAMES: usize = 8192;

/// The sending half of a connection.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: Arc<TcpStream>,
    queue: Option<SyncSender<Arc<[u8]>>>,
}

/// The error of a full send queue: the peer does not read its messages.
#[derive(Debug)]
pub(crate) struct QueueFull;

impl Connection {
    /// Starts the writer thread of an accepted connection.
    pub(crate) fn open(stream: &Arc<TcpStream>, session: &Session) -> io::Result<Connection> {
        let (queue, frames) = sync_channel(MAX_QUEUED_FRAMES);
        let writer = session.writer(stream.try_clone()?);
        let socket = Arc::clone(stream);
        thread::Builder::new().name("group-write".to_owned()).spawn(move || write_frames(&socket, writer, &frames))?;
        Ok(Connection { stream: Arc::clone(stream), queue: Some(queue) })
    }

    /// Queues a frame, or drops the frame if `close_after_flush` has been called.
    pub(crate) fn send(&self, frame: &Arc<[u8]>) -> Result<(), QueueFull> {
        match &self.queue {
            // a writer thread that has ended has shut the socket down, and the reader thread reports the reason
            Some(queue) => match queue.try_send(Arc::clone(frame)) {
                Err(TrySendError::Full(_)) => Err(QueueFull),
                _ => Ok(()),
            },
            None => Ok(()),
        }
    }

    /// Sends the queued frames, then closes the sending direction. The connection ends when the peer disconnects.
    pub(crate) fn close_after_flush(&mut self) {
        self.queue = None;
    }

    /// Closes both directions at once.
    pub(crate) fn shut_down(&self) {
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

fn write_frames(stream: &TcpStream, mut writer: SecureWriter<TcpStream>, frames: &Receiver<Arc<[u8]>>) {
    for bytes in frames {
        if writer.write_all(&bytes).is_err() {
            let _ = stream.shutdown(Shutdown::Both);
            return;
        }
    }
    let _ = stream.shutdown(Shutdown::Write);
}

/// Reads until the connection ends, and returns the reason. `on_message` returns false once the coordinator has
/// stopped.
pub(crate) fn read_frames(
    mut reader: SecureReader<TcpStream>,
    mut on_message: impl FnMut(MemberMessage) -> bool,
) -> Disconnect {
    loop {
        match read_frame::<MemberMessage>(&mut reader, MAX_FRAME_BYTES) {
            Ok(message) => {
                if !on_message(message) {
                    return Disconnect::Lost("was disconnected: the coordinator has stopped".to_owned());
                }
            }
            Err(error) => return Disconnect::of(&error),
        }
    }
}

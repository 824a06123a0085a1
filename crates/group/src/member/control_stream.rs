//! A member's side of the control connection.

use std::io::{self, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::sync::lock;
use crate::wire::frame::read_frame;
use crate::wire::messages::{CoordinatorMessage, MAX_FRAME_BYTES, MemberMessage, encode_message};
use crate::{Activity, GroupError, SecureReader, SecureWriter, Session};

/// The control connection of a member. One thread reads, and any thread may write.
#[derive(Debug)]
pub(crate) struct ControlStream {
    stream: TcpStream,
    reader: Mutex<SecureReader<TcpStream>>,
    writer: Mutex<SecureWriter<TcpStream>>,
}

/// The reason why a frame was not sent.
#[derive(Debug)]
pub(crate) enum FrameSendError {
    /// The message can't be encoded, or is too large.
    Encode(GroupError),
    /// The connection is closed. The receiving thread reports the reason.
    Disconnected,
}

impl ControlStream {
    pub(crate) fn new(stream: TcpStream, session: &Session) -> io::Result<Self> {
        let reader = Mutex::new(session.reader(stream.try_clone()?));
        let writer = Mutex::new(session.writer(stream.try_clone()?));
        Ok(ControlStream { stream, reader, writer })
    }

    pub(crate) fn send(&self, message: &MemberMessage) -> Result<(), FrameSendError> {
        self.write(&encode_message(message).map_err(FrameSendError::Encode)?)
    }

    /// Sends an encoded message.
    pub(crate) fn write(&self, bytes: &[u8]) -> Result<(), FrameSendError> {
        lock(&self.writer).write_all(bytes).map_err(|_| {
            // a part of the message may have been sent, so the connection can't be used any more
            self.shut_down();
            FrameSendError::Disconnected
        })
    }

    pub(crate) fn receive(&self) -> io::Result<CoordinatorMessage> {
        read_frame(&mut *lock(&self.reader), MAX_FRAME_BYTES)
    }

    pub(crate) fn shut_down(&self) {
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

/// Sends a heartbeat every `interval` until the connection fails or the sender of `stop` is dropped.
pub(crate) fn send_heartbeats(
    stream: &Arc<ControlStream>,
    activity: &Activity,
    interval: Duration,
    stop: &Receiver<()>,
) {
    while stream.send(&MemberMessage::Heartbeat(activity.heartbeat())).is_ok() {
        if stop.recv_timeout(interval) != Err(RecvTimeoutError::Timeout) {
            return;
        }
    }
}

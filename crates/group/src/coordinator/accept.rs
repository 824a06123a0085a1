//! The thread that accepts connections, and the threads that serve them. A thread reads messages from a connection only
//! after the peer has proved that it has the group's secret.

use std::collections::VecDeque;
use std::io;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex};
use std::thread;

use super::connection::{self, Connection};
use super::state_thread::Input;
use crate::state::{ConnectionId, GroupEvent};
use crate::sync::{lock, spawn};
use crate::wire::connection::configure;
use crate::wire::handshake::{self, FirstMessage};
use crate::{GroupSecret, GroupTimeouts, SecureReader};

/// The maximum number of connections that have not sent a hello, a stage's first message. Beyond this number, the
/// coordinator closes the oldest of these connections. A stage sends its hello at once, so the oldest connection is
/// probably from a foreign client, which may never send a hello.
const MAX_PENDING_CONNECTIONS: usize = 256;

/// Admits or closes the connections that the accepting thread receives.
pub(super) struct Gate {
    pub(super) inputs: SyncSender<Input>,
    pub(super) timeouts: GroupTimeouts,
    pub(super) secret: GroupSecret,
    /// Connections without a hello, oldest first.
    pub(super) pending: Mutex<VecDeque<(ConnectionId, Arc<TcpStream>)>>,
    pub(super) on_rejected: Box<dyn Fn() + Send + Sync>,
}

/// Accepts connections until `stop` is set, and serves each connection on a separate thread.
pub(super) fn accept(listener: &TcpListener, gate: &Arc<Gate>, stop: &AtomicBool) {
    for conn in 0.. {
        let accepted = listener.accept();
        if stop.load(Ordering::SeqCst) {
            return;
        }
        let (stream, from) = match accepted {
            Ok((stream, from)) => (Arc::new(stream), from),
            Err(error) => {
                tracing::warn!(%error, "a control connection could not be accepted");
                // an immediate retry would fail again, for example without free file descriptors
                thread::sleep(gate.timeouts.heartbeat_interval);
                continue;
            }
        };
        gate.add(conn, &stream);
        let shared = Arc::clone(gate);
        if let Err(error) = spawn("group-read", move || shared.serve(conn, stream, from)) {
            gate.remove(conn);
            tracing::warn!(%error, %from, "a control connection can't be served");
        }
    }
}

impl Gate {
    /// Adds a pending connection. Closes the oldest pending connection if there are too many.
    fn add(&self, conn: ConnectionId, stream: &Arc<TcpStream>) {
        let mut pending = lock(&self.pending);
        if pending.len() == MAX_PENDING_CONNECTIONS
            && let Some((_, oldest)) = pending.pop_front()
        {
            let _ = oldest.shutdown(Shutdown::Both);
        }
        pending.push_back((conn, Arc::clone(stream)));
    }

    fn remove(&self, conn: ConnectionId) {
        lock(&self.pending).retain(|(pending, _)| *pending != conn);
    }

    /// Serves one connection until it ends.
    fn serve(&self, conn: ConnectionId, stream: Arc<TcpStream>, from: SocketAddr) {
        let admitted = self.admit(&stream);
        self.remove(conn);
        let (arrival, connection, reader) = match admitted {
            Ok(admitted) => admitted,
            Err(error) => {
                (self.on_rejected)();
                return tracing::debug!(%error, %from, "rejected a control connection");
            }
        };
        if self.inputs.send(Input::Connected(conn, arrival, connection)).is_err() {
            return;
        }
        let send = |event| self.inputs.send(Input::Event(event)).is_ok();
        let disconnect = connection::read_frames(reader, |message| send(GroupEvent::Message(conn, message)));
        send(GroupEvent::Disconnected(conn, disconnect));
    }

    /// Performs the handshake, then reads the hello of a stage or spare that has the secret.
    fn admit(&self, stream: &Arc<TcpStream>) -> io::Result<(FirstMessage, Connection, SecureReader<TcpStream>)> {
        configure(stream, self.timeouts.heartbeat_timeout)?;
        let session = handshake::server_handshake(&mut &**stream, &self.secret)?;
        let mut reader = session.reader(stream.try_clone()?);
        let arrival = handshake::read_arrival(&mut reader)?;
        Ok((arrival, Connection::open(stream, &session)?, reader))
    }
}

//! The coordinator's threads: one accepts, one a connection reads, one a connection writes, and one holds the state
//! machine of `roster` and does what it says.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::connection::{self, Connection};
use crate::roster::{Conn, Effect, Event, Gone, Group};
use crate::sync::lock;
use crate::{Failure, GroupError, Hello, Rules, Timing, handshake, wire};

/// How many events may wait; readers then wait, and TCP slows their peers.
const EVENTS: usize = 1024;
/// How many connections may be open before they have said who they are.
const STRANGERS: usize = 512;

/// Holds a group together. Lives in stage 0's process from its first moment; dropping it ends the group.
#[derive(Debug)]
pub struct Coordinator {
    inputs: SyncSender<Input>,
    outcome: Arc<Outcome>,
    address: SocketAddr,
    timing: Timing,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

/// What the coordinator's thread waits for.
#[derive(Debug)]
enum Input {
    Connected(Conn, Hello, Connection),
    Happened(Event),
    Stop,
}

/// How the group ended, for the threads outside.
#[derive(Debug, Default)]
struct Outcome {
    state: Mutex<(Option<Failure>, bool)>,
    changed: Condvar,
}

impl Coordinator {
    /// Starts to take members in on `listener`. They are compared with `expected`, stage 0's own hello.
    ///
    /// # Errors
    /// If the listener has no address, or no thread can be started.
    pub fn start(listener: TcpListener, expected: Hello, timing: Timing) -> Result<Coordinator, GroupError> {
        let address = listener.local_addr().map_err(GroupError::io("the control port has no address"))?;
        let (inputs, waiting) = sync_channel(EVENTS);
        let outcome = Arc::new(Outcome::default());
        let stop = Arc::new(AtomicBool::new(false));
        let group = Group::new(expected, timing, Instant::now());
        let keeper = {
            let outcome = Arc::clone(&outcome);
            spawn("group-keep", move || keep(group, &waiting, timing.heartbeat, &outcome))?
        };
        let acceptor = {
            let (inputs, stop) = (inputs.clone(), Arc::clone(&stop));
            spawn("group-accept", move || accept(&listener, &inputs, &stop, timing))?
        };
        Ok(Coordinator { inputs, outcome, address, timing, stop, threads: vec![keeper, acceptor] })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Tells the members what stage 0 is doing before it can release them; extends their start-up deadline and its own.
    pub fn preparing(&self, progress: &str) {
        self.happened(Event::Preparing(progress.to_owned()));
    }

    /// Stage 0 is ready: `plan` (identity, plan and programs, opaque here) goes to every member, with the roster, once
    /// all have said hello.
    pub fn release(&self, plan: Vec<u8>, rules: Rules) {
        self.happened(Event::Release(plan, rules));
    }

    /// Stage 0 gives up: the group ends with this reason. Returns when the members know, or after `goodbye`.
    pub fn reject(&self, reason: impl ToString) {
        self.happened(Event::Reject(reason.to_string()));
        let patience = self.timing.goodbye + self.timing.heartbeat * 2;
        let state = lock(&self.outcome.state);
        drop(self.outcome.changed.wait_timeout_while(state, patience, |(_, over)| !*over));
    }

    /// What ended the group, if it failed. Stage 0 asks between two steps of a long preparation: a lost member ends the
    /// group then too.
    pub fn failure(&self) -> Option<Failure> {
        lock(&self.outcome.state).0.clone()
    }

    fn happened(&self, event: Event) {
        // The thread ends with this value and not before.
        let _ = self.inputs.send(Input::Happened(event));
    }
}

impl Drop for Coordinator {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        let _ = self.inputs.send(Input::Stop);
        // `accept` has no deadline: a last connection, our own, wakes it.
        let host = match self.address.ip() {
            IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
            ip => ip,
        };
        let woken = TcpStream::connect_timeout(&SocketAddr::new(host, self.address.port()), Duration::from_secs(1));
        let keeper_only = if woken.is_ok() { 2 } else { 1 };
        for thread in self.threads.drain(..).take(keeper_only) {
            let _ = thread.join();
        }
    }
}

/// Runs the state machine until it is told to stop.
fn keep(mut group: Group, inputs: &Receiver<Input>, heartbeat: Duration, outcome: &Outcome) {
    let mut connections: HashMap<Conn, Connection> = HashMap::new();
    let mut events = VecDeque::new();
    let mut tick = Instant::now() + heartbeat;
    loop {
        match inputs.recv_timeout(tick.saturating_duration_since(Instant::now())) {
            Ok(Input::Connected(conn, hello, connection)) => {
                connections.insert(conn, connection);
                events.push_back(Event::Hello(conn, hello));
            }
            Ok(Input::Happened(event)) => events.push_back(event),
            Err(RecvTimeoutError::Timeout) => {}
            Ok(Input::Stop) | Err(RecvTimeoutError::Disconnected) => break,
        }
        if Instant::now() >= tick {
            tick = Instant::now() + heartbeat;
            events.push_back(Event::Tick);
        }
        while let Some(event) = events.pop_front() {
            let gone = match event {
                Event::Gone(conn, _) => Some(conn),
                _ => None,
            };
            let effects = group.handle(Instant::now(), event);
            // Known here before anybody hears of it.
            lock(&outcome.state).0 = group.failure().cloned();
            for effect in effects {
                carry_out(effect, &mut connections, &mut events);
            }
            // Only now: what it was sent last may still reach it.
            gone.map(|conn| connections.remove(&conn));
        }
        if group.is_over() {
            lock(&outcome.state).1 = true;
            outcome.changed.notify_all();
        }
    }
    connections.values().for_each(Connection::cut);
}

fn carry_out(effect: Effect, connections: &mut HashMap<Conn, Connection>, events: &mut VecDeque<Event>) {
    match effect {
        Effect::Send(conns, down) => match wire::encode(&down) {
            Ok(frame) => {
                let receivers = conns.into_iter().filter_map(|conn| Some((conn, connections.get(&conn)?)));
                let full = receivers.filter(|(_, connection)| connection.send(&frame).is_err());
                events.extend(full.map(|(conn, _)| Event::Gone(conn, Gone::Silent)));
            }
            Err(error) => events.push_back(Event::Reject(error.to_string())),
        },
        Effect::Close(conn) => {
            if let Some(connection) = connections.get_mut(&conn) {
                connection.finish();
            }
        }
    }
}

fn accept(listener: &TcpListener, inputs: &SyncSender<Input>, stop: &AtomicBool, timing: Timing) {
    let strangers = Arc::new(AtomicUsize::new(0));
    for conn in 0.. {
        let accepted = listener.accept();
        if stop.load(Ordering::SeqCst) {
            return;
        }
        let (stream, from) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "a control connection could not be accepted");
                // Out of descriptors, say: trying at once would only fail again.
                thread::sleep(timing.heartbeat);
                continue;
            }
        };
        if strangers.load(Ordering::SeqCst) >= STRANGERS {
            tracing::warn!(%from, "too many control connections that don't say who they are: one was turned away");
            continue;
        }
        strangers.fetch_add(1, Ordering::SeqCst);
        let (inputs, counted) = (inputs.clone(), Arc::clone(&strangers));
        let serving = spawn("group-read", move || serve(conn, stream, from, &inputs, timing, &counted));
        if let Err(error) = serving {
            strangers.fetch_sub(1, Ordering::SeqCst);
            tracing::warn!(%error, %from, "a control connection can't be served");
        }
    }
}

/// Serves one connection until it is gone.
fn serve(
    conn: Conn,
    stream: TcpStream,
    from: SocketAddr,
    inputs: &SyncSender<Input>,
    timing: Timing,
    strangers: &AtomicUsize,
) {
    let greeted =
        connection::configure(&stream, timing.heartbeat_timeout).and_then(|()| handshake::receive(&mut &stream));
    strangers.fetch_sub(1, Ordering::SeqCst);
    let stream = Arc::new(stream);
    let opened = greeted.and_then(|hello| Ok((hello, Connection::open(&stream)?)));
    let (hello, connection) = match opened {
        Ok(opened) => opened,
        Err(error) => return tracing::debug!(%error, %from, "a control connection came to nothing"),
    };
    if inputs.send(Input::Connected(conn, hello, connection)).is_err() {
        return;
    }
    let gone = connection::read(&stream, |up| inputs.send(Input::Happened(Event::Said(conn, up))).is_ok());
    let _ = inputs.send(Input::Happened(Event::Gone(conn, gone)));
}

pub(crate) fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, GroupError> {
    thread::Builder::new()
        .name(name.to_owned())
        .spawn(work)
        .map_err(GroupError::io(format!("the thread {name} can't be started")))
}

//! Serves `/status` for the pods of simulated nodes. Either every pod answers that it trains, or no pod answers. The
//! pods have addresses of the loopback device, and the server listens on no other device.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddrV4, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use socket2::{Domain, Socket, Type};
use stagecoach_api::contract::{HTTP_PORT, StagePhase, StageStatus};

/// The length of the listen queue, which is more than the number of simultaneous connection attempts.
const BACKLOG: i32 = 4096;
/// The stack size of a connection's thread, which only waits.
const STACK_BYTES: usize = 64 << 10;

/// The server for all pods, which runs until the program ends. All clones share one server.
#[derive(Clone, Default)]
pub(super) struct StatusServer(Arc<Pods>);

#[derive(Default)]
struct Pods {
    answer: AtomicBool,
    /// The status that the server returns at each address.
    statuses: Mutex<HashMap<IpAddr, StageStatus>>,
}

impl StatusServer {
    /// Starts the server. At first, it answers no request.
    pub(super) fn serve() -> StatusServer {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.bind_device(Some(b"lo")).unwrap();
        socket.set_reuse_address(true).unwrap();
        socket.bind(&SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, HTTP_PORT).into()).unwrap();
        socket.listen(BACKLOG).unwrap();
        let (listener, answers) = (TcpListener::from(socket), StatusServer::default());
        let served = answers.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (stream, answers) = (stream.unwrap(), served.clone());
                let thread = std::thread::Builder::new().stack_size(STACK_BYTES);
                // the only expected error is that a client closes its connection early, which does not matter
                thread.spawn(move || drop(answers.serve_one(stream))).unwrap();
            }
        });
        answers
    }

    /// Sets whether the pods answer requests after this call.
    pub(super) fn set(&self, answer: bool) {
        self.0.answer.store(answer, Ordering::Relaxed);
    }

    /// Adds the pod at `address`, with the status of a stage that trains.
    pub(super) fn insert(&self, address: IpAddr, job_uid: &str, attempt: u64, pod_uid: &str) {
        let status = StageStatus {
            job_uid: job_uid.into(),
            attempt,
            pod_uid: pod_uid.into(),
            phase: StagePhase::Training,
            revision: 1,
            ..StageStatus::default()
        };
        self.0.statuses.lock().unwrap().insert(address, status);
    }

    /// Answers the requests of a connection. A request asks for the status after its next change, or after
    /// `timeoutSeconds`. The status never changes here, so the server always waits for `timeoutSeconds`.
    fn serve_one(&self, stream: TcpStream) -> std::io::Result<()> {
        let address = stream.local_addr()?.ip();
        let mut reader = BufReader::new(stream.try_clone()?);
        loop {
            let (mut request, mut header) = (String::new(), String::new());
            if reader.read_line(&mut request)? == 0 {
                return Ok(());
            }
            while reader.read_line(&mut header)? > 2 {
                header.clear();
            }
            let seconds =
                request.split_once("timeoutSeconds=").and_then(|(_, rest)| rest.split(' ').next()?.parse().ok());
            std::thread::sleep(Duration::from_secs_f64(seconds.unwrap_or(0.0)));
            if !self.0.answer.load(Ordering::Relaxed) {
                // waits until the client closes the connection
                return reader.read_to_end(&mut Vec::new()).map(drop);
            }
            let status = self.0.statuses.lock().unwrap().get(&address).cloned().unwrap_or_default();
            let body = serde_json::to_string(&status)?;
            let head =
                format!("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n", body.len());
            (&stream).write_all((head + &body).as_bytes())?;
        }
    }
}

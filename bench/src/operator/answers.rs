//! Answers `/status` for the pods of simulated nodes: a pod trains, or does not answer. The pods have addresses of the
//! loopback device, and no other address is served.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddrV4, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use socket2::{Domain, Socket, Type};
use stagecoach_api::contract::{HTTP_PORT, StagePhase, StageStatus};

/// More than the number of connections that come at once.
const BACKLOG: i32 = 4096;
/// Stack size of a connection's thread, which only waits.
const STACK_BYTES: usize = 64 << 10;

/// The servers of all pods, which run until the program ends. Cheap to clone.
#[derive(Clone, Default)]
pub(super) struct Answers(Arc<Pods>);

#[derive(Default)]
struct Pods {
    answer: AtomicBool,
    /// The status that the server at each address answers.
    statuses: Mutex<HashMap<IpAddr, StageStatus>>,
}

impl Answers {
    /// Starts to serve. At first no request is answered.
    pub(super) fn serve() -> Answers {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.bind_device(Some(b"lo")).unwrap();
        socket.set_reuse_address(true).unwrap();
        socket.bind(&SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, HTTP_PORT).into()).unwrap();
        socket.listen(BACKLOG).unwrap();
        let (listener, answers) = (TcpListener::from(socket), Answers::default());
        let served = answers.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (stream, answers) = (stream.unwrap(), served.clone());
                let thread = std::thread::Builder::new().stack_size(STACK_BYTES);
                // the error of a client that leaves early does not matter
                thread.spawn(move || drop(answers.serve_one(stream))).unwrap();
            }
        });
        answers
    }

    /// Sets whether pods answer from now on.
    pub(super) fn set(&self, answer: bool) {
        self.0.answer.store(answer, Ordering::Relaxed);
    }

    /// Adds the pod at `address`, which trains.
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

    /// Answers each request of a connection after the request's wait time, because there is no news.
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
                // waits until the client gives up
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

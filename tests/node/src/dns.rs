//! A query to the cluster's name server, as a pod sends it.

use std::net::{Ipv4Addr, UdpSocket};
use std::time::Duration;

use super::place::ADDRESS;

/// Returns the address of `name`, or `None` if the server at `server` (port 53) returns no address within a second.
pub(crate) fn lookup(server: &str, name: &str) -> Option<Ipv4Addr> {
    let socket = UdpSocket::bind((ADDRESS, 0)).ok()?;
    socket.set_read_timeout(Some(Duration::from_secs(1))).ok()?;
    socket.connect((server, 53)).ok()?;
    let question = question(name);
    socket.send(&question).ok()?;
    let mut answer = [0; 512];
    let length = socket.recv(&mut answer).ok()?;
    address(&answer[..length], question.len())
}

/// Returns a query by RFC 1035: a header with one question, the name, type A, class IN.
fn question(name: &str) -> Vec<u8> {
    let mut bytes = vec![0x12, 0x34, 0x01, 0x00, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.split('.') {
        bytes.push(label.len() as u8);
        bytes.extend(label.as_bytes());
    }
    bytes.extend([0, 0, 1, 0, 1]);
    bytes
}

/// Returns the address in the first answer record. The record follows the header and the repeated question, which
/// together have `asked` bytes. The address is at the end of the record.
fn address(answer: &[u8], asked: usize) -> Option<Ipv4Addr> {
    let (failed, answers) = (answer.get(3)? & 0x0f, answer.get(7)?);
    (failed == 0 && *answers > 0).then_some(())?;
    // the length 4 precedes the four bytes of the address, whatever form the name of the record has
    let record = answer.get(asked..)?;
    let length = record.windows(2).skip(8).position(|pair| pair == [0, 4])? + 8;
    let bytes: [u8; 4] = record.get(length + 2..length + 6)?.try_into().ok()?;
    Some(Ipv4Addr::from(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_read() {
        let asked = question("kubernetes.default.svc.cluster.local");
        let mut answer = asked.clone();
        (answer[2], answer[3], answer[7]) = (0x85, 0x80, 1);
        answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 5, 0, 4, 10, 96, 0, 1]);
        assert_eq!(address(&answer, asked.len()), Some(Ipv4Addr::new(10, 96, 0, 1)));
        answer[3] = 0x83; // the response code of a name that does not exist
        assert_eq!(address(&answer, asked.len()), None);
    }
}

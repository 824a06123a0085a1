//! Stage 0's port on this machine.

use std::io::{Error, ErrorKind};
use std::net::TcpListener;

use stagecoach_api::contract::env::MASTER_PORT;

use super::LaunchError;

/// A port that nobody listens on at the moment. Should someone take it before stage 0 does, the attempt fails and the next
/// has another.
pub(super) fn free() -> Result<u16, LaunchError> {
    let found = TcpListener::bind(("127.0.0.1", 0)).and_then(|listener| listener.local_addr());
    Ok(found.map_err(LaunchError::system("find a free port"))?.port())
}

/// The port that `MASTER_PORT` in the environment asks for, checked to be free; none if it isn't set.
///
/// # Errors
/// Not a port, or somebody listens there.
pub fn wanted() -> Result<Option<u16>, LaunchError> {
    match std::env::var(MASTER_PORT) {
        Ok(text) => check(&text).map(Some),
        Err(_) => Ok(None),
    }
}

fn check(text: &str) -> Result<u16, LaunchError> {
    let Some(port) = text.parse().ok().filter(|port| *port > 0) else {
        let expected = Error::new(ErrorKind::InvalidInput, "expected a port from 1 to 65535, or the variable unset");
        return Err(LaunchError::system(format!("use {MASTER_PORT}={text:?} from the environment"))(expected));
    };
    TcpListener::bind(("127.0.0.1", port)).map(|_| port).map_err(LaunchError::system(format!(
        "listen at 127.0.0.1:{port} (set {MASTER_PORT} to a free port, or unset it to have one chosen)"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wanted_port_must_be_one_and_free() {
        let taken = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = taken.local_addr().unwrap().port().to_string();
        let error = check(&port).unwrap_err().to_string();
        assert!(error.contains(&port) && error.contains("MASTER_PORT"), "{error}");
        drop(taken);
        assert_eq!(check(&port).unwrap().to_string(), port);
        for wrong in ["", "0", "65536", "http"] {
            assert!(check(wrong).unwrap_err().to_string().contains("1 to 65535"));
        }
    }
}

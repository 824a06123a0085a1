//! Stage 0's port on this machine.

use std::io::{Error, ErrorKind};
use std::net::TcpListener;

use stagecoach_api::contract::env::MASTER_PORT;

use super::LaunchError;

/// A port that is free now. If another process takes it before stage 0 does, the attempt fails, and the next one gets
/// another port.
pub(super) fn free_port() -> Result<u16, LaunchError> {
    let address = TcpListener::bind(("127.0.0.1", 0)).and_then(|listener| listener.local_addr());
    Ok(address.map_err(LaunchError::system("find a free port"))?.port())
}

/// The port that `MASTER_PORT` in the environment sets; None if it isn't set.
///
/// # Errors
/// If it isn't a port, or is in use.
pub(crate) fn requested_port() -> Result<Option<u16>, LaunchError> {
    match std::env::var(MASTER_PORT) {
        Ok(text) => parse_and_check(&text).map(Some),
        Err(_) => Ok(None),
    }
}

fn parse_and_check(text: &str) -> Result<u16, LaunchError> {
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
    fn a_requested_port_must_be_valid_and_free() {
        let taken = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = taken.local_addr().unwrap().port().to_string();
        let error = parse_and_check(&port).unwrap_err().to_string();
        assert!(error.contains(&port) && error.contains("MASTER_PORT"), "{error}");
        drop(taken);
        assert_eq!(parse_and_check(&port).unwrap().to_string(), port);
        for wrong in ["", "0", "65536", "http"] {
            assert!(parse_and_check(wrong).unwrap_err().to_string().contains("1 to 65535"));
        }
    }
}

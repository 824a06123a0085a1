//! Errors of this process alone: the process or its machine has run out of a resource. No other process is the cause.

use std::io;

use rustix::io::Errno;

/// The remedy, if a call failed because this process or its machine has no free file descriptors, or no memory for
/// sockets. Another attempt would fail as well.
pub fn local_shortage(error: &io::Error) -> Option<&'static str> {
    match Errno::from_io_error(error)? {
        Errno::MFILE => Some("raise the limit of open files for a process (`ulimit -n`)"),
        Errno::NFILE => Some("raise the limit of open files for this machine (`sysctl fs.file-max`)"),
        Errno::NOMEM | Errno::NOBUFS => Some("this machine has no memory left for it"),
        _ => None,
    }
}

/// The remedy as the end of a sentence; empty if there is none.
pub(crate) fn remedy(error: &io::Error) -> String {
    local_shortage(error).map_or_else(String::new, |remedy| format!("; {remedy}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::GroupError;

    #[test]
    fn a_shortage_has_its_remedy_and_a_lost_peer_has_none() {
        let shown = |errno: Errno| GroupError::io("could not connect")(errno.into()).to_string();
        let limit = "could not connect: Too many open files (os error 24); raise the limit of open files for a process (`ulimit -n`)";
        assert_eq!(shown(Errno::MFILE), limit);
        assert!(shown(Errno::NFILE).ends_with("(`sysctl fs.file-max`)"));
        assert!(shown(Errno::CONNRESET).ends_with("(os error 104)"));
    }
}

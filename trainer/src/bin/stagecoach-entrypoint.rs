//! The entry point of the trainer's image. This program replaces itself with `stagecoach` by `exec`. If the command
//! runs a stage, the program blocks SIGTERM first.
//!
//! The kernel drops a SIGTERM to the first process of a container if that process has no handler. `stagecoach` installs
//! its handler only after libtorch is loaded. This program links no library and blocks the signal within a millisecond.
//! The stage unblocks the signal when its handler is installed.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::{env, io};

#[path = "../../../crates/os/src/termination_mask.rs"]
mod termination_mask;

/// The exit code with which a shell reports a program that it can't start.
const NOT_STARTED: u8 = 126;

fn main() -> ExitCode {
    let arguments: Vec<OsString> = env::args_os().skip(1).collect();
    // the commands that run no stage keep the default effects of signals
    if arguments.first().is_some_and(|command| command == "stage") {
        termination_mask::mask_termination(libc::SIG_BLOCK);
    }
    let error = start(&arguments);
    eprintln!("stagecoach-entrypoint: the program stagecoach beside this one could not be started: {error}");
    ExitCode::from(NOT_STARTED)
}

/// Replaces this program with `stagecoach`. Returns only if the replacement fails, with the error.
fn start(arguments: &[OsString]) -> io::Error {
    let program = env::current_exe().map(|own| own.with_file_name("stagecoach"));
    program.map_or_else(|error| error, |program| exec(&program, arguments))
}

fn exec(program: &Path, arguments: &[OsString]) -> io::Error {
    Command::new(program).args(arguments).exec()
}

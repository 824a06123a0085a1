//! `kubectl-stagecoach`: the plugin that kubectl runs as `kubectl stagecoach`.

use std::io;
use std::process::ExitCode;

use stagecoach_api::visible;
use stagecoach_kubectl::CommandEnded;

fn main() -> ExitCode {
    match stagecoach_kubectl::run("kubectl".as_ref(), std::env::args_os(), &mut io::stdout()) {
        Ok(()) => ExitCode::SUCCESS,
        // the reader has closed the output, as `head` does
        Err(error) if error.downcast_ref().is_some_and(is_closed) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("kubectl stagecoach: {}", visible(&format!("{error:#}")));
            error.downcast_ref().map_or(ExitCode::FAILURE, |ended: &CommandEnded| ended.exit_code.into())
        }
    }
}

fn is_closed(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::BrokenPipe
}

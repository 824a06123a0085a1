//! `stagecoach stage`: the container's entry point.

use std::path::Path;

use stagecoach_api::contract::{ContractError, FailureKind, HTTP_PORT, StageEnv, TerminationMessage};

use super::{Mount, complain};
use crate::fatal::Fatal;
use crate::observe::{Sink, serve};
use crate::plan::JobConfig;
use crate::train::{self, StageMonitor, StageOutcome, write_termination_message};

pub(super) fn main(mount: Mount) -> i32 {
    let env = match StageEnv::from_vars(std::env::vars()) {
        Ok(env) => env,
        Err(error) => return refuse(&error),
    };
    let monitor = StageMonitor::new(&env);
    report_panics(&monitor);
    if let Err(error) = crate::sys::on_terminate({
        let monitor = monitor.clone();
        move || monitor.request_stop()
    }) {
        monitor.exit(FailureKind::Error, &format!("could not handle signals: {error}"));
    }
    if let Err(error) = serve_status(&env, &monitor) {
        monitor.exit(FailureKind::Error, &error);
    }
    let sink = Sink::from_env();
    match read(&env).and_then(|config| train::run_stage(&env, &config, mount, &monitor, &sink)) {
        Ok(StageOutcome::Done) => monitor.exit(FailureKind::Done, "trained to the end"),
        Ok(StageOutcome::Drained) => monitor.exit(FailureKind::Drained, "stopped as asked, with a checkpoint"),
        Err(fatal) => monitor.exit(fatal.kind, &fatal.message),
    }
}

/// The pod's HTTP port, or the one that STAGECOACH_HTTP_PORT says; 0 is none, as under the local launcher.
fn serve_status(env: &StageEnv, monitor: &StageMonitor) -> Result<(), String> {
    let port = match std::env::var("STAGECOACH_HTTP_PORT") {
        Ok(text) => text.parse().map_err(|_| format!("STAGECOACH_HTTP_PORT is {text:?}, expected a port or 0"))?,
        Err(_) => HTTP_PORT,
    };
    match port {
        0 => Ok(()),
        port => serve(&env.pod_ip, port, monitor.telemetry().clone()).map_err(|e| {
            format!(
                "could not serve /status at {}:{port} ({e}): set STAGECOACH_HTTP_PORT to a free port, or to 0",
                env.pod_ip
            )
        }),
    }
}

fn read(env: &StageEnv) -> Result<JobConfig, Fatal> {
    let job = super::read::job(Path::new(&env.config), &[])?;
    if job.spec.stages != env.world_size {
        return Err(Fatal::invalid(format!(
            "WORLD_SIZE is {}, the job {} has spec.stages {}: they must be the same",
            env.world_size, env.config, job.spec.stages
        )));
    }
    JobConfig::new(job, Path::new(&env.workspace))
}

fn refuse(error: &ContractError) -> i32 {
    let kind = FailureKind::InvalidConfig;
    complain(error);
    write_termination_message(&TerminationMessage::new(kind, 0, error.to_string()));
    kind.exit_code().code()
}

/// A panic anywhere is the end of the stage: its group must not wait for a thread that is gone.
fn report_panics(monitor: &StageMonitor) {
    let default = std::panic::take_hook();
    let monitor = monitor.clone();
    std::panic::set_hook(Box::new(move |info| {
        default(info);
        let message = info.to_string();
        let kind = if message.contains("out of memory") { FailureKind::OutOfMemory } else { FailureKind::Error };
        monitor.exit(kind, message.lines().take(3).collect::<Vec<_>>().join(" ").as_str());
    }));
}

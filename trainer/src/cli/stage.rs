//! `stagecoach stage`: runs one stage, in a pod or as a process of the launcher.

use std::path::Path;

use clap::Args;
use stagecoach_api::PipelineJob;
use stagecoach_api::contract::{ContractError, FailureKind, StageEnv, TerminationMessage, env};
use stagecoach_api::job::Kernels;
use stagecoach_engine::StageError;
use stagecoach_replay::ReplayOptions;
use stagecoach_telemetry::{export, http_port, serve};

use super::VolumeOpener;
use super::job_args::read_job;
use super::output::print_error;
use crate::train::{self, StageMonitor, StageOutcome, write_termination_message};

/// Run one stage: the entry point of a pod, configured by environment variables.
#[derive(Debug, Args)]
pub(super) struct StageCommand {
    /// `ReplayOptions` in JSON.
    #[arg(long, hide = true, value_parser = parse_replay)]
    replay: Option<ReplayOptions>,
}

fn parse_replay(text: &str) -> Result<ReplayOptions, String> {
    serde_json::from_str(text).map_err(|error| error.to_string())
}

pub(super) fn main(command: StageCommand, open_volume: VolumeOpener) -> i32 {
    stagecoach_os::hold_termination();
    let env = match StageEnv::from_vars(std::env::vars()) {
        Ok(env) => env,
        Err(error) => return report_contract_error(&error),
    };
    let job = read_stage_job(&env).and_then(|job| {
        // this call may restart the process, so it precedes every computation and the start of other threads
        if job.spec.training.as_ref().is_some_and(|training| training.kernels == Kernels::Portable) {
            stagecoach_os::pin_instruction_set()?;
        }
        Ok(job)
    });
    stagecoach_os::keep_freed_memory();
    stagecoach_kernels::use_malloc();
    let monitor = StageMonitor::new(&env);
    exit_on_panic(&monitor);
    stagecoach_data::hide_caught_panics();
    if let Err(error) = stagecoach_os::on_terminate({
        let monitor = monitor.clone();
        move || monitor.request_stop()
    }) {
        monitor.exit(FailureKind::Error, &format!("could not handle signals: {error}"));
    }
    if let Err(error) = serve_status(&env, &monitor) {
        monitor.exit(FailureKind::Error, &error);
    }
    // a replay exports no telemetry, because its steps are not steps of the run
    if command.replay.is_none() {
        export(&env, monitor.telemetry());
    }
    let replay = command.replay.unwrap_or_default();
    let config = job.and_then(|job| train::job_config(job, &env, &monitor));
    match config.and_then(|config| train::run_stage(&env, &config, open_volume, &monitor, &replay)) {
        Ok(StageOutcome::Done) => monitor.exit(FailureKind::Done, "trained to the end"),
        Ok(StageOutcome::Drained) => monitor.exit(FailureKind::Drained, "stopped as asked, with a checkpoint"),
        Err(error) => monitor.exit(error.kind, &error.message),
    }
}

/// Serves `/status` and `/metrics`, unless the environment variable with their port is 0.
fn serve_status(stage_env: &StageEnv, monitor: &StageMonitor) -> Result<(), String> {
    let Some(port) = http_port()? else { return Ok(()) };
    serve(&stage_env.pod_ip, port, monitor.telemetry().clone()).map_err(|e| {
        let (ip, variable) = (&stage_env.pod_ip, env::HTTP_PORT);
        format!("could not serve /status at {ip}:{port} ({e}): set {variable} to a free port, or to 0")
    })
}

fn read_stage_job(env: &StageEnv) -> Result<PipelineJob, StageError> {
    let job = read_job(Path::new(&env.config), &[])?;
    let mesh = job.spec.mesh();
    if mesh != env.mesh {
        return Err(StageError::invalid(format!(
            "WORLD_SIZE is {}, which means {}, and the job {} has {mesh}: set WORLD_SIZE to the job's number of \
             processes",
            env.mesh.ranks(),
            env.mesh,
            env.config
        )));
    }
    Ok(job)
}

fn report_contract_error(error: &ContractError) -> i32 {
    let kind = FailureKind::InvalidConfig;
    print_error(error);
    write_termination_message(&TerminationMessage::new(kind, 0, error.to_string()));
    kind.exit_code().code()
}

/// Exits the process when any thread panics, except for the threads that serve the page and export telemetry. The group
/// must not wait for a stage that lacks a thread.
fn exit_on_panic(monitor: &StageMonitor) {
    let default = std::panic::take_hook();
    let monitor = monitor.clone();
    std::panic::set_hook(Box::new(move |info| {
        default(info);
        let thread = std::thread::current();
        if thread.name().is_some_and(|name| [stagecoach_dashboard::THREAD, stagecoach_otlp::THREAD].contains(&name)) {
            return; // no computation depends on these threads
        }
        monitor.exit_after_panic(&info.to_string());
    }));
}

//! Sends metrics and traces of a stage to an OpenTelemetry collector, if the environment names a collector.

use std::time::Duration;

use stagecoach_api::contract::StageEnv;
use stagecoach_otlp::{Exporter, MetricProducer, OtlpConfig};

use super::StageTelemetry;

/// The longest time that a stage waits at its end for the collector to accept the remaining telemetry.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// Exports the telemetry of the stage that `env` describes until the process ends, if the environment names a
/// collector. If the environment is invalid, this function logs the error, and training continues without export.
pub fn export(env: &StageEnv, telemetry: &StageTelemetry) {
    let started = OtlpConfig::from_vars(|name| std::env::var(name).ok()).map_err(|error| error.to_string());
    let started = started.and_then(|config| {
        let Some(config) = config else { return Ok(()) };
        let producer = StageMetricProducer { job: env.job.clone(), telemetry: telemetry.clone() };
        let exporter =
            Exporter::start(config, producer).map_err(|error| format!("could not start a thread: {error}"))?;
        telemetry.traces().send_to(exporter);
        Ok(())
    });
    if let Err(error) = started {
        tracing::warn!("metrics and traces are not exported: {error}");
    }
}

/// Sends the remaining telemetry, if the stage exports telemetry. The call takes at most a second, and returns at once
/// if the last request to the collector failed.
pub fn flush(telemetry: &StageTelemetry) {
    if let Some(exporter) = telemetry.traces().exporter() {
        exporter.flush(FLUSH_TIMEOUT);
    }
}

struct StageMetricProducer {
    job: String,
    telemetry: StageTelemetry,
}

impl MetricProducer for StageMetricProducer {
    fn attributes(&self) -> Vec<(String, String)> {
        let status = self.telemetry.snapshot();
        let role = match status.spare {
            Some(spare) => ("stagecoach.spare", spare.to_string()),
            None => ("stagecoach.stage", status.stage.to_string()),
        };
        // a process without a pod has no other unique name
        let process = format!("{}-{}-{}", self.job, status.attempt, std::process::id());
        let instance = Some(status.pod_uid).filter(|uid| !uid.is_empty()).unwrap_or(process);
        let attributes = [
            ("service.name", "stagecoach-trainer".to_owned()),
            ("service.instance.id", instance),
            ("stagecoach.job", self.job.clone()),
            ("stagecoach.attempt", status.attempt.to_string()),
            role,
        ];
        attributes.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
    }

    fn openmetrics(&self) -> String {
        self.telemetry.openmetrics()
    }
}

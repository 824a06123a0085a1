//! Serves `/healthz`, `/readyz`, `/metrics` and `/status`. The operator requests the status from the pod, so the pod
//! needs no credentials for reporting it.

use std::net::TcpListener;

use axum::extract::Query;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::routing::get;
use axum::{Json, Router};
use stagecoach_api::contract::{HTTP_PORT, env};

use super::StageTelemetry;

/// Returns the port in the environment, [`HTTP_PORT`] by default; `None` if the port is 0, as under the local launcher.
///
/// # Errors
/// Fails if the variable is not a port.
pub fn http_port() -> Result<Option<u16>, String> {
    let variable = env::HTTP_PORT;
    let port = match std::env::var(variable) {
        Ok(text) => text.parse().map_err(|_| format!("{variable} is {text:?}, expected a port or 0"))?,
        Err(_) => HTTP_PORT,
    };
    Ok((port != 0).then_some(port))
}

/// Serves the telemetry from a new thread until the process exits.
///
/// # Errors
/// Fails if the port can't be bound or the thread can't be started.
pub fn serve(host: &str, port: u16, telemetry: StageTelemetry) -> std::io::Result<()> {
    let listener = TcpListener::bind((host, port))?;
    listener.set_nonblocking(true)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    std::thread::Builder::new().name("http".into()).spawn(move || {
        runtime.block_on(async move {
            let served = async { axum::serve(tokio::net::TcpListener::from_std(listener)?, router(telemetry)).await };
            if let Err(error) = served.await {
                tracing::warn!("the status server stopped: {error}");
            }
        });
    })?;
    Ok(())
}

fn router(telemetry: StageTelemetry) -> Router {
    let (ready, metrics, status) = (telemetry.clone(), telemetry.clone(), telemetry);
    Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route(
            "/readyz",
            get(move || async move {
                match ready.is_ready() {
                    true => (StatusCode::OK, "ready\n"),
                    false => (StatusCode::SERVICE_UNAVAILABLE, "the group has not formed yet\n"),
                }
            }),
        )
        .route(
            "/metrics",
            get(move || async move {
                ([(CONTENT_TYPE, "application/openmetrics-text; version=1.0.0; charset=utf-8")], metrics.openmetrics())
            }),
        )
        .route("/status", get(move |Query(query)| async move { Json(status.answer(query).await) }))
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use stagecoach_api::contract::{StageEnv, StagePhase, StageStatus, StatusQuery};
    use stagecoach_api::job::ProgressStatus;

    use super::super::super::TrainingEvent;
    use super::super::super::event::{BestEvaluation, RunSummary, SaveRecord, StepRecord};
    use super::super::super::event_formatter::tests::{record, started};
    use super::*;

    fn http_get(port: u16, path: &str) -> (String, String) {
        let mut stream = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
        let mut response = String::new();
        stream.read_to_string(&mut response).unwrap();
        let (head, body) = response.split_once("\r\n\r\n").unwrap();
        (head.lines().next().unwrap().to_owned(), body.to_owned())
    }

    /// Returns the telemetry of a stage that has started, and the port that serves it.
    fn serve_stage() -> (StageTelemetry, u16) {
        let vars =
            [(env::RANK, "0"), (env::WORLD_SIZE, "1"), (env::JOB, "j"), (env::JOB_UID, "u"), (env::ATTEMPT, "3")];
        let more = [(env::MASTER_ADDR, "127.0.0.1"), (env::POD_IP, "127.0.0.1"), (env::POD_UID, "p")];
        let telemetry = StageTelemetry::new(&StageEnv::from_vars(vars.into_iter().chain(more)).unwrap());
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        serve("127.0.0.1", port, telemetry.clone()).unwrap();
        (telemetry, port)
    }

    fn status(port: u16) -> StageStatus {
        serde_json::from_str(&http_get(port, "/status").1).unwrap()
    }

    fn measured(step: u64) -> TrainingEvent {
        TrainingEvent::Step(StepRecord {
            bubble: vec![0.1, 0.2, 0.24],
            exposed_communication: vec![0.0, 0.03, 0.0],
            imbalance: vec![0.75, 1.25, 1.0],
            ..record(step)
        })
    }

    fn save(error: Option<&str>) -> SaveRecord {
        SaveRecord {
            step: 6,
            due: 6,
            seconds: 0.1,
            bytes: 10,
            error: error.map(str::to_owned),
            ..SaveRecord::default()
        }
    }

    #[test]
    fn the_endpoints_report_identity_progress_and_readiness() {
        let (telemetry, port) = serve_stage();
        assert!(http_get(port, "/healthz").0.contains("200"));
        assert!(http_get(port, "/readyz").0.contains("503"));
        telemetry.set_phase(StagePhase::Training);
        telemetry.record(&TrainingEvent::Started(started()));
        telemetry.record(&measured(7));
        assert!(http_get(port, "/readyz").0.contains("200"));
        let status = status(port);
        assert_eq!((status.job_uid.as_str(), status.attempt, status.pod_uid.as_str()), ("u", 3, "p"));
        assert_eq!(status.progress.step, 7);
        let reported = [status.progress.bubble, status.progress.exposed_communication, status.progress.imbalance];
        assert_eq!(reported.map(|value| value.map(|value| value.0)), [Some(0.18), Some(0.01), Some(1.25)]);
    }

    #[test]
    fn the_status_shows_the_progress_of_the_preparation_if_it_is_measured() {
        let (telemetry, port) = serve_stage();
        let message = |what: &str, done, total| {
            telemetry.record(&TrainingEvent::Preparing { what: what.into(), done, total });
            status(port).message
        };
        assert_eq!(message("tokenising", 3 << 19, 4 << 20), "tokenising, 1.50 MiB of 4.00 MiB");
        assert_eq!(message("the hub is busy: waiting 56 s", 0, 0), "the hub is busy: waiting 56 s");
    }

    #[test]
    fn the_best_evaluation_stays_and_the_end_has_its_reason() {
        let (telemetry, port) = serve_stage();
        let best = BestEvaluation::after(None, 7, 2.345_678);
        telemetry.record(&TrainingEvent::Step(StepRecord { best_evaluation: best, ..record(7) }));
        telemetry.record(&TrainingEvent::Step(record(8)));
        let described = |progress: ProgressStatus| {
            let loss = progress.best_evaluation_loss.map(|loss| loss.0);
            (loss, progress.best_evaluation_step, progress.ended_early)
        };
        assert_eq!(described(status(port).progress), (Some(2.3457), Some(7), None));
        let ended_early = Some("the held-out loss has not improved in 1 evaluation since step 9".to_owned());
        let best_evaluation = BestEvaluation::after(BestEvaluation::after(None, 9, 2.25), 10, 2.5);
        let summary = RunSummary { best_evaluation, ended_early: ended_early.clone(), ..RunSummary::default() };
        telemetry.record(&TrainingEvent::Finished(summary));
        let status = status(port);
        assert_eq!(status.phase, StagePhase::Done);
        assert_eq!(described(status.progress), (Some(2.25), Some(9), ended_early));
    }

    #[test]
    fn a_failed_save_is_reported_until_one_succeeds() {
        let (telemetry, port) = serve_stage();
        telemetry.record(&TrainingEvent::SaveFailed(save(Some("no space left"))));
        assert!(status(port).save_failure.unwrap().contains("no space left"));
        telemetry.record(&TrainingEvent::Step(record(8)));
        assert!(status(port).save_failure.is_some());
        telemetry.record(&TrainingEvent::Saved(save(None)));
        assert_eq!(status(port).save_failure, None);
    }

    #[test]
    fn a_client_with_the_newest_status_waits_for_another_which_a_step_is_not() {
        let (telemetry, port) = serve_stage();
        let query = |seconds| {
            let revision = Some(telemetry.snapshot().revision);
            StatusQuery { revision, timeout_seconds: seconds }.path()
        };
        let (at_once, patient) = (query(0.0), query(600.0));
        let waiting = std::thread::spawn(move || http_get(port, &patient).1);
        telemetry.record(&TrainingEvent::Step(record(9)));
        let known: StageStatus = serde_json::from_str(&http_get(port, &at_once).1).unwrap();
        assert_eq!(known.progress.step, 9);
        telemetry.group_joined(7, &[0, 1], vec![Some(0), Some(1)]);
        let newer: StageStatus = serde_json::from_str(&waiting.join().unwrap()).unwrap();
        assert_eq!(newer.revision, known.revision + 1);
        let group = newer.group.unwrap();
        assert_eq!((group.fence, group.incarnations), (7, vec![Some(0), Some(1)]));
    }

    #[test]
    fn metrics_are_in_the_openmetrics_text_format() {
        let (telemetry, port) = serve_stage();
        telemetry.record(&measured(7));
        telemetry.record(&TrainingEvent::SaveFailed(save(Some("no space left"))));
        telemetry.record(&TrainingEvent::Saved(save(None)));
        telemetry.record(&TrainingEvent::Step(record(9)));
        let metrics = http_get(port, "/metrics").1;
        assert!(metrics.trim_end().ends_with("# EOF"), "{metrics}");
        for line in [
            "step 9",
            "checkpoints_total 1",
            "checkpoint_failures_total 1",
            "bubble_ratios 0.18",
            "stage_bubble_ratios{stage=\"2\"} 0.24",
            "stage_imbalance_ratios{stage=\"1\"} 1.25",
        ] {
            assert!(metrics.contains(&format!("stagecoach_{line}")), "{line} in {metrics}");
        }
    }
}

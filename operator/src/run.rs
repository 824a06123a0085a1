//! The operator's process: serve HTTP, acquire the Lease, run the controller, shut down.

use std::io::IsTerminal;
use std::sync::Arc;

use anyhow::Context as _;
use kube::Client;
use kube::runtime::events::Reporter;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, fmt, reload};

use crate::config::{LogFormat, OperatorConfig};
use crate::context::Context;
use crate::{controller, leader, serve};

/// The reporting controller in events.
const REPORTER: &str = "stagecoach-operator";

/// Runs until SIGTERM or Ctrl-C. The operator then finishes reconciles in progress and releases the Lease.
///
/// # Errors
/// Returns any error that prevents the operator from running. Kubernetes restarts the operator.
pub async fn run(config: OperatorConfig) -> anyhow::Result<()> {
    let log_filter = init_logging(&config)?;
    let client = Client::try_default()
        .await
        .context("no connection to the API server: found neither a kubeconfig nor a pod's service account")?;
    let reporter = Reporter { controller: REPORTER.into(), instance: Some(config.identity.clone()) };
    let context = Arc::new(Context::new(client.clone(), config.clone(), reporter));
    let listener = serve::listen(config.listen).await.with_context(|| format!("can't listen at {}", config.listen))?;
    tracing::info!(address = %listener.local_addr()?, "serving");
    let server = tokio::spawn(serve::serve(listener, context.telemetry.clone(), log_filter));

    let (stop, stopped) = watch::channel(false);
    tokio::spawn(async move {
        wait_for_termination().await;
        tracing::info!("shutting down");
        stop.send_replace(true);
    });
    let work = run_as_leader(client, &context, &config, stopped);
    tokio::select! {
        ended = work => ended,
        ended = server => Err(anyhow::anyhow!("the server stopped: {ended:?}")),
    }
}

async fn run_as_leader(
    client: Client,
    context: &Arc<Context>,
    config: &OperatorConfig,
    mut stopped: watch::Receiver<bool>,
) -> anyhow::Result<()> {
    if !config.leader_election {
        context.telemetry.set_leader(true);
        controller::run(Arc::clone(context), stopped).await;
        return Ok(());
    }
    tracing::info!(lease = config.lease, "waiting for the Lease");
    let mut lease = tokio::select! {
        lease = leader::acquire(client, config) => lease,
        _ = stopped.wait_for(|stop| *stop) => return Ok(()),
    };
    tracing::info!(identity = config.identity, "leading");
    context.telemetry.set_leader(true);
    tokio::select! {
        () = controller::run(Arc::clone(context), stopped) => {}
        // abort without graceful shutdown: another replica may take the Lease
        reason = lease.keep() => anyhow::bail!("the Lease is lost: {reason}"),
    }
    lease.release().await.context("the Lease was not released")
}

/// Waits for SIGTERM or Ctrl-C.
async fn wait_for_termination() {
    let (Ok(mut term), Ok(mut int)) = (signal(SignalKind::terminate()), signal(SignalKind::interrupt())) else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = term.recv() => {}
        _ = int.recv() => {}
    }
}

/// Starts logging. Returns the handle that changes the filter at run time.
fn init_logging(config: &OperatorConfig) -> anyhow::Result<serve::LogFilterHandle> {
    let filter: EnvFilter = config.log_level.parse().context("--log-level")?;
    let (filter, log_filter) = reload::Layer::new(filter);
    let registry = tracing_subscriber::registry().with(filter);
    match config.log_format {
        LogFormat::Text => {
            let colours = std::io::stderr().is_terminal();
            registry.with(fmt::layer().with_ansi(colours).with_writer(std::io::stderr)).init();
        }
        LogFormat::Json => registry.with(fmt::layer().json().with_writer(std::io::stderr)).init(),
    }
    Ok(log_filter)
}

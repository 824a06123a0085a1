//! The operator's life: serve, wait for the Lease, work, leave.

use std::io::IsTerminal;
use std::sync::Arc;

use anyhow::Context as _;
use kube::Client;
use kube::runtime::events::{Recorder, Reporter};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, fmt, reload};

use crate::context::Context;
use crate::settings::{LogFormat, Settings};
use crate::{controller, leader, serve};

/// Who reports events.
const REPORTER: &str = "stagecoach-operator";

/// Runs until SIGTERM or Ctrl-C: then what is under way is finished and the Lease given back.
///
/// # Errors
/// What keeps the operator from working; another start may help.
pub async fn run(settings: Settings) -> anyhow::Result<()> {
    let level = log(&settings)?;
    let client =
        Client::try_default().await.context("no way to the API server: neither a kubeconfig nor a pod's account")?;
    let reporter = Reporter { controller: REPORTER.into(), instance: Some(settings.identity.clone()) };
    let recorder = Recorder::new(client.clone(), reporter);
    let context = Arc::new(Context::new(client.clone(), settings.clone(), recorder));
    let listener =
        TcpListener::bind(settings.listen).await.with_context(|| format!("can't listen at {}", settings.listen))?;
    tracing::info!(address = %listener.local_addr()?, "serving");
    let server = tokio::spawn(serve::serve(listener, context.telemetry.clone(), level));

    let (stop, stopped) = watch::channel(false);
    tokio::spawn(async move {
        leave().await;
        tracing::info!("leaving");
        stop.send_replace(true);
    });
    let work = lead_and_work(client, &context, &settings, stopped);
    tokio::select! {
        ended = work => ended,
        ended = server => Err(anyhow::anyhow!("the server stopped: {ended:?}")),
    }
}

async fn lead_and_work(
    client: Client,
    context: &Arc<Context>,
    settings: &Settings,
    mut stopped: watch::Receiver<bool>,
) -> anyhow::Result<()> {
    if !settings.leader_election {
        context.telemetry.lead(true);
        controller::run(Arc::clone(context), stopped).await;
        return Ok(());
    }
    let (mut leads, keeper) = leader::run(client, settings).await.context("the Lease can't be had")?;
    tracing::info!(lease = settings.lease, "waiting for the Lease");
    tokio::select! {
        held = leads.wait_for(|leads| *leads) => drop(held.context("the Lease can't be kept")?),
        _ = stopped.wait_for(|stop| *stop) => return Ok(()),
    }
    tracing::info!(identity = settings.identity, "leading");
    context.telemetry.lead(true);
    tokio::select! {
        () = controller::run(Arc::clone(context), stopped) => {}
        // at once and without ceremony: another one may be at work already
        _ = leads.wait_for(|leads| !*leads) => anyhow::bail!("the Lease is lost"),
    }
    drop(leads); // gives it back
    match keeper.await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(e)) => Err(e).context("the Lease was not given back"),
        Err(e) => Err(e).context("the Lease was not given back"),
    }
}

/// Waits for SIGTERM or Ctrl-C.
async fn leave() {
    let (Ok(mut term), Ok(mut int)) = (signal(SignalKind::terminate()), signal(SignalKind::interrupt())) else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = term.recv() => {}
        _ = int.recv() => {}
    }
}

/// Starts logging; what is logged can be changed later.
fn log(settings: &Settings) -> anyhow::Result<serve::Level> {
    let filter: EnvFilter = settings.log_level.parse().context("--log-level")?;
    let (filter, level) = reload::Layer::new(filter);
    let registry = tracing_subscriber::registry().with(filter);
    match settings.log_format {
        LogFormat::Text => {
            let colours = std::io::stderr().is_terminal();
            registry.with(fmt::layer().with_ansi(colours).with_writer(std::io::stderr)).init();
        }
        LogFormat::Json => registry.with(fmt::layer().json().with_writer(std::io::stderr)).init(),
    }
    Ok(level)
}

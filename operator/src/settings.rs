//! How the operator is run: flags, each also an environment variable.

use std::net::SocketAddr;
use std::time::Duration;

use clap::{Args, ValueEnum};
use serde_json::Value;

use crate::build::Readers;

/// How logs are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people.
    Text,
    /// A JSON object a line.
    Json,
}

/// How the operator is run.
#[derive(Clone, Debug, Args)]
pub struct Settings {
    /// The image of trainers whose template names none
    #[arg(long, env = "STAGECOACH_TRAINER_IMAGE")]
    pub trainer_image: String,
    /// Namespaces to watch, separated by commas; all by default
    #[arg(long, env = "STAGECOACH_NAMESPACES", value_delimiter = ',')]
    pub namespaces: Vec<String>,
    /// Where /healthz, /readyz, /metrics and /log-level are served
    #[arg(long, env = "STAGECOACH_LISTEN", default_value = "0.0.0.0:8080")]
    pub listen: SocketAddr,
    /// How logs are written
    #[arg(long, env = "STAGECOACH_LOG_FORMAT", value_enum, default_value = "text")]
    pub log_format: LogFormat,
    /// Which logs are written, such as `debug` or `info,kube=debug`; PUT /log-level changes it at run time
    // what the client logs of failed requests, the operator tells in its own words
    #[arg(long, env = "STAGECOACH_LOG_LEVEL", default_value = "info,kube_client=off")]
    pub log_level: String,
    /// Jobs that are worked on at the same time
    #[arg(long, env = "STAGECOACH_WORKERS", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..))]
    pub workers: u16,
    /// Work only while holding the Lease, so that several replicas may run
    #[arg(long, env = "STAGECOACH_LEADER_ELECTION", default_value_t = false, action = clap::ArgAction::Set)]
    pub leader_election: bool,
    /// The Lease's name
    #[arg(long, env = "STAGECOACH_LEASE", default_value = "stagecoach-operator")]
    pub lease: String,
    /// The operator's own namespace, where the Lease is
    #[arg(long, env = "POD_NAMESPACE", default_value = "default")]
    pub namespace: String,
    /// The operator's own pod: its identity
    #[arg(long, env = "POD_NAME", default_value_t = format!("stagecoach-operator-{}", std::process::id()))]
    pub identity: String,
    /// Who may read the trainers' status, as a JSON list of a NetworkPolicy's peers
    #[arg(long, env = "STAGECOACH_READERS", default_value = "[]", value_parser = peers)]
    readers: Readers,
    /// Seconds between two questions to a job's stage 0
    #[arg(long, env = "STAGECOACH_POLL_SECONDS", default_value_t = 10.0, value_parser = seconds)]
    poll_seconds: f64,
}

impl Settings {
    /// Who may read the trainers' status.
    pub const fn readers(&self) -> &Readers {
        &self.readers
    }

    /// The time between two questions to a job's stage 0.
    pub fn poll(&self) -> Duration {
        Duration::from_secs_f64(self.poll_seconds)
    }
}

fn peers(text: &str) -> Result<Readers, String> {
    match serde_json::from_str(text) {
        Ok(Value::Array(peers)) if peers.iter().all(Value::is_object) => Ok(Readers(peers)),
        _ => Err("must be a JSON list of a NetworkPolicy's peers, such as [{\"podSelector\": {}}]".into()),
    }
}

fn seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.05..=3600.0).contains(seconds));
    seconds.ok_or_else(|| "must be a number of seconds from 0.05 to 3600".into())
}

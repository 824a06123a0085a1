//! The operator's configuration. Each flag also has an environment variable.

use std::net::SocketAddr;
use std::time::Duration;

use clap::{Args, ValueEnum};
use k8s_openapi::api::networking::v1::NetworkPolicyPeer;
use serde_json::Value;

use crate::build::PolicyPeers;
use crate::observe::field_manager;

/// The format of logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Text for people.
    Text,
    /// One JSON object per line.
    Json,
}

/// The peers of a NetworkPolicy.
#[derive(Clone, Debug)]
struct Peers(Vec<NetworkPolicyPeer>);

/// The operator's configuration.
#[derive(Clone, Debug, Args)]
pub struct OperatorConfig {
    /// The image of trainers whose pod template names no image
    #[arg(long, env = "STAGECOACH_TRAINER_IMAGE")]
    pub trainer_image: String,
    /// Namespaces to watch, separated by commas; all namespaces by default
    #[arg(long, env = "STAGECOACH_NAMESPACES", value_delimiter = ',')]
    pub namespaces: Vec<String>,
    /// The address at which /healthz, /readyz, /metrics and /log-level are served
    #[arg(long, env = "STAGECOACH_LISTEN", default_value = "[::]:8080")]
    pub listen: SocketAddr,
    /// The format of logs
    #[arg(long, env = "STAGECOACH_LOG_FORMAT", value_enum, default_value = "text")]
    pub log_format: LogFormat,
    /// The filter of logs, such as `debug` or `info,kube=debug`; PUT /log-level changes the filter at run time
    // the operator itself logs failed requests, so kube_client need not
    #[arg(long, env = "STAGECOACH_LOG_LEVEL", default_value = "info,kube_client=off")]
    pub log_level: String,
    /// The number of jobs that are reconciled at the same time
    #[arg(long, env = "STAGECOACH_WORKERS", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..))]
    pub workers: u16,
    /// Reconcile only while holding the Lease, so that several replicas may run
    #[arg(long, env = "STAGECOACH_LEADER_ELECTION", default_value_t = false, action = clap::ArgAction::Set)]
    pub leader_election: bool,
    /// The Lease's name
    #[arg(long, env = "STAGECOACH_LEASE", default_value = "stagecoach-operator")]
    pub lease: String,
    /// The operator's namespace, which contains the Lease
    #[arg(long, env = "POD_NAMESPACE", default_value = "default")]
    pub namespace: String,
    /// The name of the operator's pod, which identifies the holder of the Lease
    #[arg(long, env = "POD_NAME", default_value_t = format!("stagecoach-operator-{}", std::process::id()))]
    pub identity: String,
    /// The peers that may read the trainers' status, as a JSON list of a NetworkPolicy's peers
    #[arg(long, env = "STAGECOACH_READERS", default_value = "[]", value_parser = parse_peers)]
    readers: Peers,
    /// The cluster's DNS, as a JSON list of a NetworkPolicy's peers; jobs reach port 53 of only these peers, or of any
    /// peer if the list is empty
    #[arg(long, env = "STAGECOACH_DNS", default_value = "[]", value_parser = parse_peers)]
    dns: Peers,
    /// Create Workloads of Kueue for jobs with a queue
    #[arg(long, env = "STAGECOACH_KUEUE", default_value_t = false, action = clap::ArgAction::Set)]
    pub kueue: bool,
    /// Seconds between two polls of a job's leader
    #[arg(long, env = "STAGECOACH_POLL_SECONDS", default_value_t = 10.0, value_parser = parse_poll_seconds)]
    poll_seconds: f64,
}

impl OperatorConfig {
    /// Returns the peers in every job's NetworkPolicy.
    pub fn peers(&self) -> PolicyPeers<'_> {
        PolicyPeers { readers: &self.readers.0, dns: &self.dns.0, egress_cidrs: &[] }
    }

    /// Returns the field manager of the operator's writes.
    pub(crate) fn field_manager(&self) -> String {
        field_manager(&self.namespace, &self.lease)
    }

    /// Returns the time between two polls of a pod that has no news.
    pub(crate) fn poll_interval(&self) -> Duration {
        Duration::from_secs_f64(self.poll_seconds)
    }
}

fn parse_peers(text: &str) -> Result<Peers, String> {
    let expected = || "must be a JSON list of a NetworkPolicy's peers, such as [{\"podSelector\": {}}]".to_owned();
    let peers: Value = serde_json::from_str(text).map_err(|_| expected())?;
    let typed: Vec<NetworkPolicyPeer> = serde_json::from_value(peers.clone()).map_err(|_| expected())?;
    // reject a field that k8s-openapi would drop because the field is misspelled or too new: without the field, the
    // policy would allow other peers
    if serde_json::to_value(&typed).ok() != Some(peers) {
        return Err(expected());
    }
    Ok(Peers(typed))
}

fn parse_poll_seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.05..=3600.0).contains(seconds));
    seconds.ok_or_else(|| "must be a number of seconds from 0.05 to 3600".into())
}

//! `stagecoach-operator`: runs PipelineJobs as pods.
#![forbid(unsafe_code)]

use clap::Parser;
use stagecoach_operator::OperatorConfig;

/// Runs PipelineJobs as pods
#[derive(Parser)]
#[command(version)]
struct Arguments {
    #[command(flatten)]
    config: OperatorConfig,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    stagecoach_operator::run::run(Arguments::parse().config).await
}

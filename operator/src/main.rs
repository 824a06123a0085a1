//! `stagecoach-operator`: turns PipelineJobs into pods, and keeps them right.
#![forbid(unsafe_code)]

use clap::Parser;
use stagecoach_operator::OperatorConfig;

/// Turns PipelineJobs into pods, and keeps them right
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

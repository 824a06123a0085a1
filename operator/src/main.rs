//! `stagecoach-operator`: turns PipelineJobs into pods, and keeps them right.
#![forbid(unsafe_code)]

use clap::Parser;
use stagecoach_operator::Settings;

/// Turns PipelineJobs into pods, and keeps them right
#[derive(Parser)]
#[command(version)]
struct Arguments {
    #[command(flatten)]
    settings: Settings,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    stagecoach_operator::run::run(Arguments::parse().settings).await
}

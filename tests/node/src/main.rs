//! Starts and ends a real one-node Kubernetes cluster for tests.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use clap::Parser;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use stagecoach_node::TestNode;

/// A real one-node Kubernetes on this machine, for tests. Needs root and Linux.
#[derive(Parser)]
enum Command {
    /// Start a node and wait until it is ready. The node has a shared volume, which the first PersistentVolumeClaim
    /// without a storage class binds.
    Up {
        /// A new or empty folder for all files of the node.
        folder: PathBuf,
        /// The OCI archive of the image localhost/pause:1.
        #[arg(long, env = "STAGECOACH_PAUSE")]
        pause: PathBuf,
        /// The OCI archive of another image for the node; may be repeated.
        #[arg(long = "image")]
        images: Vec<PathBuf>,
    },
    /// End the node and undo its changes to the machine; only FOLDER/logs stays.
    Down {
        /// The folder given to `up`. The default is the folder of this machine's node.
        folder: Option<PathBuf>,
    },
}

fn main() -> ExitCode {
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        if let Err(error) = signal_hook::flag::register(signal, interrupted.clone()) {
            eprintln!("signal {signal} can't be caught: {error}");
        }
    }
    let result = match Command::parse() {
        Command::Up { folder, pause, images } => up(&folder, &pause, &images, &interrupted),
        Command::Down { folder: Some(folder) } => stagecoach_node::down(&folder),
        Command::Down { folder: None } => stagecoach_node::down_any(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("stagecoach-node: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn up(folder: &Path, pause: &Path, images: &[PathBuf], interrupted: &AtomicBool) -> anyhow::Result<()> {
    stagecoach_node::up(folder, pause, images, interrupted)?;
    let node = TestNode::attach(folder);
    node.volume("shared", &node.shared_folder("shared"), None);
    println!("export KUBECONFIG={}", node.kubeconfig().display());
    Ok(())
}

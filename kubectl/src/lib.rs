//! `kubectl stagecoach`: shows jobs in a cluster, in the same form in which `stagecoach` shows the jobs in a folder.
//! The plugin reaches the cluster only through `kubectl`, and so uses the user's contexts, credentials and proxies. The
//! code that processes kubectl's output is pure.

#![forbid(unsafe_code)]

mod cluster;
mod job;
mod kubectl;
mod logs;
mod page;
mod top;
mod volume;
mod volume_job;
mod why;

use std::ffi::{OsStr, OsString};
use std::io::Write;

use clap::{Args, Parser, Subcommand};

use kubectl::Kubectl;
pub use volume_job::CommandEnded;

/// Jobs in a cluster: their state, their failures, their logs and their live page.
#[derive(Debug, Parser)]
#[command(name = "kubectl-stagecoach", bin_name = "kubectl stagecoach", version, about, max_term_width = 110)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    connection: Connection,
}

/// The flags of kubectl that select the cluster and the namespace.
#[derive(Debug, Args)]
struct Connection {
    /// The namespace; by default, the namespace of the context.
    #[arg(long, short, global = true, value_name = "NAME")]
    namespace: Option<OsString>,
    /// The context of the kubeconfig.
    #[arg(long, global = true, value_name = "NAME")]
    context: Option<OsString>,
    /// The kubeconfig.
    #[arg(long, global = true, value_name = "FILE")]
    kubeconfig: Option<OsString>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show jobs, a line each: phase, steps, loss, speed, stages, restarts, checkpoint, slowest stage.
    Top(top::TopCommand),
    /// Explain the last failure of a job, what followed, the state of the job, and what to do.
    Why(why::WhyCommand),
    /// Show the logs of all stages and spares, merged by time; of a failed job, the log of the first failure comes
    /// first.
    Logs(logs::LogsCommand),
    /// Forward a port to the job's live page, print its address, and serve it until Ctrl-C.
    Page(page::PageCommand),
    /// List the job's checkpoints.
    Checkpoints(volume::CheckpointsCommand),
    /// Show the actions of every stage in a trained step, above a simulation of the step.
    Timeline(volume::TimelineCommand),
    /// Train steps of the job again in a pod, and compare them bit for bit with the record, as `stagecoach replay`
    /// does.
    Replay(volume_job::VolumeCommand),
    /// Prove the job's record by training intervals again in a pod, as `stagecoach audit` does.
    Audit(volume_job::VolumeCommand),
    /// Compute in a pod what each document adds to a step's loss and gradient, as `stagecoach blame` does.
    Blame(volume_job::VolumeCommand),
}

/// Runs the command in `arguments` with the program `kubectl`, and writes the result to `out`. The first item of
/// `arguments` is the plugin's own name. Ends the process for `--help`, for `--version`, and for invalid arguments.
///
/// # Errors
/// Returns the error of kubectl, or an error about the job. Returns [`CommandEnded`] if a command in the cluster
/// failed.
pub fn run(kubectl: &OsStr, arguments: impl IntoIterator<Item = OsString>, out: &mut dyn Write) -> anyhow::Result<()> {
    let Arguments { command, connection } = Arguments::parse_from(arguments);
    let flags = [
        ("--namespace", connection.namespace),
        ("--context", connection.context),
        ("--kubeconfig", connection.kubeconfig),
    ];
    let given = flags.into_iter().filter_map(|(flag, value)| Some([flag.into(), value?]));
    let kubectl = Kubectl::new(kubectl, given.flatten().collect());
    match command {
        Command::Top(command) => command.run(&kubectl, out),
        Command::Why(command) => command.run(&kubectl, out),
        Command::Logs(command) => command.run(&kubectl, out),
        Command::Page(command) => command.run(&kubectl, out),
        Command::Checkpoints(command) => command.run(&kubectl, out),
        Command::Timeline(command) => command.run(&kubectl, out),
        Command::Replay(command) => command.run("replay", &kubectl, out),
        Command::Audit(command) => command.run("audit", &kubectl, out),
        Command::Blame(command) => command.run("blame", &kubectl, out),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs the plugin with the script `tests/kubectl.sh` as kubectl. Returns the output and the result.
    fn plugin(arguments: &[&str]) -> (String, Result<(), String>) {
        let kubectl = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/kubectl.sh");
        let all = ["kubectl-stagecoach"].iter().chain(arguments).map(OsString::from);
        let mut out = Vec::new();
        let result = run(kubectl.as_ref(), all, &mut out).map_err(|error| format!("{error:#}"));
        (String::from_utf8(out).unwrap(), result)
    }

    #[test]
    fn the_volume_is_read_in_a_pod_that_runs() {
        let (printed, result) = plugin(&["timeline", "small", "--step", "7", "-n", "team", "--context", "far"]);
        result.unwrap();
        let exec = "exec small-0-1 --container trainer -- stagecoach timeline /workspace/jobs/small --step 7";
        assert_eq!(printed, format!("--namespace team --context far {exec}\n"));
        let (printed, _) = plugin(&["checkpoints", "small"]);
        assert!(printed.ends_with(" -- stagecoach checkpoint list /workspace/jobs/small\n"), "{printed}");
        let (printed, _) = plugin(&["checkpoints", "small", "--context", "\u{1b}[2J"]);
        assert!(printed.starts_with("--context ^[[2J exec "), "{printed:?}");
        let (_, result) = plugin(&["checkpoints", "ended"]);
        let refused = result.unwrap_err();
        let problem = "no pod of job ended runs, and this command reads the job's volume in a running pod: ";
        assert!(refused.starts_with(problem), "{refused}");
        assert!(refused.contains("run `stagecoach checkpoint list` on the job's folder"), "{refused}");
    }

    #[test]
    fn what_runs_in_a_pod_of_its_own_gives_its_log_and_its_exit_code() {
        let (printed, result) = plugin(&["replay", "ended", "--", "--step", "7"]);
        assert_eq!(printed, "step 7 differs\n");
        assert_eq!(result.unwrap_err(), "stagecoach ended with exit code 74 in the pod of job made");
        let (printed, result) = plugin(&["audit", "ended", "--dry-run", "--", "--all"]);
        result.unwrap();
        let manifest: serde_json::Value = serde_json::from_str(&printed).unwrap();
        let arguments = &manifest["spec"]["template"]["spec"]["containers"][0]["args"];
        assert_eq!(arguments, &serde_json::json!(["audit", "/workspace/jobs/ended", "--all"]));
    }

    #[test]
    fn the_page_has_the_address_of_the_forwarded_port() {
        let (printed, result) = plugin(&["page", "small"]);
        assert_eq!(printed, "http://127.0.0.1:4567/token/\n");
        assert!(result.unwrap_err().starts_with("kubectl port-forward to pod small-0-1 ended (exit status: 0)"));
        let (_, result) = plugin(&["page", "pending"]);
        assert!(result.unwrap_err().starts_with("no running pod of job pending has the address of a page in its log"));
    }

    #[test]
    fn kubectls_errors_are_passed_on() {
        let (_, result) = plugin(&["why", "nobody"]);
        let refused = result.unwrap_err();
        assert_eq!(refused, "kubectl get: unexpected: get pipelinejobs.stagecoach.dev nobody --output json");
        let error = Kubectl::new("/nowhere/kubectl".as_ref(), Vec::new()).output(&["get"]).unwrap_err();
        assert!(error.to_string().starts_with("could not start /nowhere/kubectl: it must be on the PATH"), "{error}");
    }
}

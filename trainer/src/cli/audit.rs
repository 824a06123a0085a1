//! `stagecoach audit`

use anyhow::bail;
use clap::Args;
use stagecoach_files::random_hex;
use stagecoach_replay::{
    Interval, ReplayConfig, ReplayDifference, RunRecord, check_chain, compare_checkpoints, compare_results,
    compare_steps, intervals, replay, sample,
};
use stagecoach_telemetry::ProgressDisplay;

use super::output::print_line;
use super::replay::{RunArgs, differs, note_environments};

/// Train parts of a run again, and check bit for bit that each checkpoint follows from the one before.
///
/// The audit first checks the record against its receipts. Then it replays intervals between checkpoints, whose losses,
/// norms, weights, optimizer state and receipt must equal the record. It prints the first difference and exits with
/// code 74.
#[derive(Debug, Args)]
pub(super) struct AuditCommand {
    #[command(flatten)]
    run: RunArgs,
    /// The number of intervals to replay, drawn at random.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    sample: u32,
    /// Replay every interval.
    #[arg(long, conflicts_with_all = ["sample", "seed"])]
    all: bool,
    /// Draw the intervals of an earlier audit, which printed this seed.
    #[arg(long, value_name = "SEED", value_parser = parse_seed)]
    seed: Option<u64>,
}

impl AuditCommand {
    pub(super) fn main(self) -> anyhow::Result<()> {
        let (record, config) = self.run.open()?;
        let steps: Vec<u64> = record.checkpoints.iter().map(|checkpoint| checkpoint.manifest.step).collect();
        let all = intervals(&steps, record.last_step());
        if let Some(damage) = record.damage.first() {
            bail!(differs(&ReplayDifference { step: damage.step, what: damage.to_string() }));
        }
        if all.is_empty() {
            bail!("{} has neither checkpoints nor metrics: nothing was trained there", record.folder.display());
        }
        if let Some(contradiction) = check_chain(&record) {
            bail!(differs(&located(contradiction, &record, &all, &config)));
        }
        let has_receipts = record.checkpoints.iter().any(|checkpoint| !checkpoint.state.receipt.is_missing());
        print_line(if has_receipts { "the record agrees with its receipts" } else { "the record has no receipts" });
        let chosen = if self.all {
            all
        } else {
            let seed = self.seed.map_or_else(|| parse_seed(&random_hex()), Ok).map_err(anyhow::Error::msg)?;
            print_line(format!(
                "replaying {} of {} intervals, drawn with --seed {seed:016x}",
                self.sample.min(all.len() as u32),
                all.len()
            ));
            sample(&all, self.sample as usize, seed)
        };
        for interval in chosen {
            if let Some(difference) = audit(&record, interval, &config)? {
                bail!(differs(&difference));
            }
            print_line(format!("{interval}: equal"));
        }
        Ok(())
    }
}

/// Replays the interval that contains the contradiction `found`. Returns the first difference of the replay, which is
/// more exact, or `found` if the replay finds no difference.
fn located(found: ReplayDifference, record: &RunRecord, all: &[Interval], config: &ReplayConfig) -> ReplayDifference {
    let containing = all.iter().find(|interval| found.step <= interval.until);
    let Some(Ok(Some(exact))) = containing.map(|interval| audit(record, *interval, config)) else { return found };
    // the replay compares the same lines of metrics.jsonl: a difference at an earlier step is the cause of the
    // contradiction
    if exact.step >= found.step { ReplayDifference { what: format!("{exact} ({found})"), ..exact } } else { exact }
}

/// Returns the first difference between an interval of the record and its replay.
fn audit(record: &RunRecord, interval: Interval, config: &ReplayConfig) -> anyhow::Result<Option<ReplayDifference>> {
    let Interval { after, until } = interval;
    for step in [after, until] {
        if record.checkpoint(step).is_some()
            && let Some(damage) = record.verify(step)?
        {
            return Ok(Some(ReplayDifference { step, what: damage.to_string() }));
        }
    }
    let replayed = match replay(record, record.checkpoint(after), until, config, &mut ProgressDisplay::notes())? {
        Ok(replayed) => replayed,
        Err(difference) => return Ok(Some(difference)),
    };
    let environments = note_environments(record, &replayed, until);
    let result = record.result.as_ref().filter(|result| result.steps == until);
    let difference = compare_steps(&record.steps, &replayed.steps)
        .or_else(|| {
            let checkpoint = record.checkpoint(until)?;
            compare_checkpoints((&checkpoint.manifest, &checkpoint.state), (&replayed.manifest, &replayed.state))
        })
        .or_else(|| compare_results(result?, &replayed.result));
    Ok(difference.map(|difference| ReplayDifference { what: format!("{difference}{environments}"), ..difference }))
}

fn parse_seed(text: &str) -> Result<u64, String> {
    u64::from_str_radix(text, 16).map_err(|_| format!("`{text}` is no seed: it has up to 16 hexadecimal digits"))
}

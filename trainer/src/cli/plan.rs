//! `stagecoach plan`. The command reads no corpus. The vocabulary size comes from the job's settings of the tokenizer
//! or the model, or from the tokenizer's file.

use std::path::PathBuf;

use clap::Args;
use indicatif::HumanBytes;
use stagecoach_api::contract::Mesh;
use stagecoach_api::job::{Device, Kernels};
use stagecoach_dashboard::{Planner, serve_planner};
use stagecoach_display::table;
use stagecoach_engine::StageError;
use stagecoach_model::ParameterBytes;
use stagecoach_pipeline::{
    Limits, PartitionError, RankSpeeds, StageMemory, balance_ratio, timeline_svg, timeline_text, timeline_trace,
    to_csv, verify,
};
use stagecoach_planner::{
    Alternative, MeshPlan, ModuleSeconds, OperationCost, PipelineLayout, PlannedStage, Profile, Roofline, StageBytes,
    every_mesh, gpu_names, measure_profile, measured_speeds, plan_pipeline,
};

use super::job_args::JobArgs;
use super::output::{print_line, write_requested_file};
use super::page::{PagePort, serve_until_killed};

/// Show how a job would run: partition, timeline, bubble, memory.
#[derive(Debug, Args)]
pub(super) struct PlanCommand {
    #[command(flatten)]
    job: JobArgs,
    /// First measure the time of the model's layers and of a message on this machine, for this plan and later ones.
    ///
    /// The measurements are kept in the workspace's token cache. Without them, plans and runs assume a speed.
    #[arg(long)]
    profile: bool,
    /// Search for the shortest schedule of the job's partition with the same memory, and show it. The search may take a
    /// minute.
    #[arg(long)]
    optimal: bool,
    /// The relative speeds of the stages, one number for each stage, as in 1,1,0.5.
    ///
    /// By default the speeds measured in the job's last steps, if the job has run with the same number of stages;
    /// otherwise equal speeds.
    #[arg(long, value_name = "SPEEDS", value_delimiter = ',')]
    speeds: Option<Vec<f64>>,
    /// Predict the step on GPUs of this model, in bf16: time, tokens per second, MFU, and the time of each operation.
    #[arg(long, value_name = "GPU", value_parser = gpu_names(), conflicts_with = "profile")]
    device: Option<String>,
    /// Show every way to divide this number of GPUs between stages and replicas, the shortest simulated step first.
    #[arg(long, value_name = "GPUS", value_parser = clap::value_parser!(u32).range(1..=256), conflicts_with_all = ["optimal", "speeds", "svg", "csv", "trace", "page"])]
    gpus: Option<u32>,
    /// Write the timeline as SVG.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Write the schedule as CSV, in the format of torch.distributed.pipelining.
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// Write the timeline for Perfetto or chrome://tracing.
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Serve the plan as a page for a browser on this machine, until Ctrl-C. The page simulates each change at once.
    #[arg(long, conflicts_with_all = ["optimal", "svg", "csv", "trace"])]
    page: bool,
    #[command(flatten)]
    port: PagePort,
}

impl PlanCommand {
    pub(super) fn main(self) -> anyhow::Result<()> {
        let mut config = self.job.config()?;
        if config.training.kernels == Kernels::Portable {
            stagecoach_os::pin_instruction_set()?; // the measurements then use the instruction set of the stages
        }
        let stages = config.job.spec.stages as usize;
        let vocab_size = config.vocab_size(config.planned_vocab_size()?)?;
        let architecture = config.architecture(vocab_size, tch::Device::Cpu);
        if self.profile {
            stagecoach_os::keep_freed_memory(); // a stage does the same
            let profile = measure_profile(&config, vocab_size)?;
            let file = profile.save(&config, architecture.as_ref())?;
            print_line(format!("{}\nwrote {}\n", profile_table(&profile), file.display()));
        }
        let roofline = match &self.device {
            Some(device) => {
                config.training.device = Device::Cuda; // the planned memory is then the GPU's
                let roofline = Roofline::new(&config, architecture.as_ref(), device)?;
                config.assumed_profile = Some(roofline.profile.clone());
                Some(roofline)
            }
            None => None,
        };
        if let Some(gpus) = self.gpus {
            print_line(mesh_table(&every_mesh(&config, architecture.as_ref(), gpus), gpus));
            return Ok(());
        }
        let speeds = match &self.speeds {
            Some(given) => given_speeds(given, stages)?,
            None => measured_speeds(&config, stages),
        };
        if self.page {
            return serve_until_killed(self.port, |port| serve_planner(Planner::new(config, vocab_size, speeds), port));
        }
        let mut layout = plan_pipeline(&config, architecture.as_ref(), stages, &speeds)?;
        if self.optimal {
            layout = layout.into_optimal(&config, architecture.as_ref())?;
        }
        verify(&layout.programs, &Limits::default()).map_err(|e| StageError::invalid(e.to_string()))?;
        for note in &layout.notes {
            print_line(format!("note: {note}"));
        }
        if !layout.alternatives.is_empty() {
            print_line(alternatives_table(&layout));
        }
        print_line(stage_table(&layout, &speeds));
        print_line(memory_table(&layout.memory));
        let panels = [(&layout.timeline).into()];
        print_line(timeline_text(&panels, 100));
        if let Some(roofline) = &roofline {
            print_line(prediction_table(roofline, &layout, config.job.spec.data_parallel));
        }
        let title = format!("{}: {} over {stages} stages", config.job.metadata.name, layout.schedule.name);
        write_requested_file(self.svg.as_deref(), || timeline_svg(&panels, &title))?;
        write_requested_file(self.trace.as_deref(), || timeline_trace(&panels))?;
        write_requested_file(self.csv.as_deref(), || to_csv(&layout.schedule))
    }
}

/// Returns a table of the ways to divide `gpus` GPUs into stages and replicas. Below the table are the settings that
/// select the first of these ways.
fn mesh_table(plans: &[MeshPlan], gpus: u32) -> String {
    let shortest = plans.first().map_or(f64::INFINITY, MeshPlan::seconds);
    let row = |plan: &MeshPlan| {
        let mesh = [plan.mesh.stages, plan.mesh.data_parallel].map(|count| count.to_string());
        let (what, numbers) = match &plan.layout {
            Ok(layout) => (
                layout.schedule.name.clone(),
                [
                    format!("+{:.1}%", 100.0 * (plan.seconds() / shortest - 1.0)),
                    format!("{:.1}%", 100.0 * layout.bubble()),
                    HumanBytes(layout.largest_stage()).to_string(),
                ],
            ),
            Err(error) => (format!("impossible: {error}"), Default::default()),
        };
        mesh.into_iter().chain(numbers).chain([what]).collect()
    };
    let header = ["stages", "dataParallel", "step", "bubble", "memory of each", "schedule"];
    let table = table(Some(&header), &[0, 1, 2, 3, 4], plans.iter().map(row).collect());
    match plans.first().filter(|plan| plan.layout.is_ok()) {
        Some(MeshPlan { mesh: Mesh { stages, data_parallel }, .. }) => format!(
            "{table}\n\nthe shortest step of {gpus} GPUs, by simulation: --set stages={stages} --set \
             dataParallel={data_parallel}\n"
        ),
        None => format!("{table}\n\nno division into stages and replicas is possible with {gpus} GPUs\n"),
    }
}

fn given_speeds(given: &[f64], stages: usize) -> Result<RankSpeeds, StageError> {
    if given.len() != stages {
        return Err(StageError::invalid(format!(
            "--speeds has {} numbers and the job {stages} stages: give one number a stage, as in {}",
            given.len(),
            vec!["1"; stages].join(",")
        )));
    }
    RankSpeeds::new(given).map_err(|e| StageError::invalid(format!("--speeds: {e}")))
}

/// Returns a table of the operations with their times and shares, and the prediction for a whole step.
fn prediction_table(roofline: &Roofline, layout: &PipelineLayout, replicas: u32) -> String {
    let Roofline { gpu, costs, peak_flops, step_flops, step_tokens, update_seconds, .. } = roofline;
    let gpus = f64::from(replicas) * layout.memory.len() as f64;
    let seconds = layout.timeline.makespan + update_seconds / gpus;
    let all: f64 = costs.values().map(|cost| cost.seconds).sum();
    let row = |(name, cost): (&&str, &OperationCost)| {
        let OperationCost { seconds, flops, bytes, .. } = cost;
        vec![
            (*name).to_owned(),
            format!("{:.1} ms", 1e3 * seconds),
            format!("{:.1}%", 100.0 * seconds / all),
            format!("{:.1}", flops / 1e12),
            format!("{:.1}", bytes / 1e9),
            if cost.is_bound_by_memory() { "memory" } else { "arithmetic" }.to_owned(),
        ]
    };
    let header = ["a step computes", "time", "", "TFLOP", "GB", "bound by"];
    let mut sorted: Vec<_> = costs.iter().collect();
    sorted.sort_by(|(_, one), (_, other)| other.seconds.total_cmp(&one.seconds));
    let table = table(Some(&header), &[1, 2, 3, 4], sorted.into_iter().map(row).collect());
    let largest = layout.largest_stage();
    let fits = match largest <= gpu.memory_bytes {
        true => format!("the largest stage takes {} of {}", HumanBytes(largest), HumanBytes(gpu.memory_bytes)),
        false => format!(
            "the largest stage takes {}, and a GPU has {}: add stages, or set pipeline.recompute",
            HumanBytes(largest),
            HumanBytes(gpu.memory_bytes)
        ),
    };
    format!(
        "{table}\n\nprediction for {gpus} x {}: a step of {:.3} s, {:.0} tokens/s, MFU {:.1}%, update {:.1} ms; \
         {fits}\n",
        gpu.name,
        seconds,
        step_tokens / seconds,
        100.0 * step_flops / (peak_flops * gpus * seconds),
        1e3 * update_seconds / gpus,
    )
}

/// Returns a table of the measured times, in milliseconds.
fn profile_table(profile: &Profile) -> String {
    let milliseconds = |seconds: f64| format!("{:.3} ms", 1e3 * seconds);
    let row = |name: &str, seconds: &ModuleSeconds| {
        let ModuleSeconds { forward, backward_input, backward_weight } = *seconds;
        let times = [forward, backward_input, backward_weight].map(milliseconds);
        std::iter::once(name.to_owned()).chain(times).collect::<Vec<String>>()
    };
    let mut rows = vec![row("embedding", &profile.embedding)];
    rows.extend(profile.layer.iter().map(|(mode, seconds)| row(&format!("layer, recompute {mode}"), seconds)));
    rows.push(row("head and loss", &profile.head));
    rows.push(vec!["message".into(), milliseconds(profile.link_seconds)]);
    table(Some(&["a microbatch", "F", "I", "W"]), &[1, 2, 3], rows)
}

/// Returns a table of the alternatives that the schedule type `Auto` has compared. The fastest one is first, and those
/// that do not fit into memory are at the end.
fn alternatives_table(layout: &PipelineLayout) -> String {
    let row = |alternative: &&Alternative| {
        let Alternative { schedule, chunks_per_stage, recompute, step } = alternative;
        let (step, memory) = match step {
            Ok((seconds, bytes)) => {
                let longer = 100.0 * (seconds / layout.timeline.makespan - 1.0);
                (format!("+{longer:.1}%"), HumanBytes(*bytes).to_string())
            }
            Err(PartitionError::Memory { needed_bytes, .. }) => {
                ("does not fit".to_owned(), HumanBytes(*needed_bytes).to_string())
            }
            Err(_) => ("impossible".to_owned(), String::new()),
        };
        vec![schedule.clone(), chunks_per_stage.to_string(), recompute.to_string(), step, memory]
    };
    let header = ["schedule", "chunks a stage", "recompute", "step", "memory"];
    format!("{}\n", table(Some(&header), &[1, 3, 4], layout.ranked_alternatives().iter().map(row).collect()))
}

/// Returns the partition's balance and bubble, and a table of the stages with the layers of each chunk.
fn stage_table(layout: &PipelineLayout, speeds: &RankSpeeds) -> String {
    let PipelineLayout { partition, programs, cost, schedule, .. } = layout;
    let row = |(rank, stage): (usize, PlannedStage)| {
        vec![
            rank.to_string(),
            stage.layers_text(),
            format!("{:.1}%", 100.0 * stage.work),
            stage.in_flight.to_string(),
            HumanBytes(stage.bytes).to_string(),
            format!("{:.1}%", 100.0 * stage.bubble),
        ]
    };
    let header = ["stage", "layers", "work", "in flight", "memory", "bubble"];
    format!(
        "{}, {} microbatches, balance {:.3}, bubble {:.1}%\n\n{}\n",
        schedule.name,
        programs.microbatches,
        balance_ratio(cost, partition, &schedule.placement, speeds),
        100.0 * layout.bubble(),
        table(Some(&header), &[0, 1, 2, 3, 4, 5], layout.stages().enumerate().map(row).collect())
    )
}

/// Returns a table of the peak memory of each stage, in MiB.
fn memory_table(stages: &[StageBytes]) -> String {
    let row = |(rank, stage): (usize, &StageBytes)| {
        let ParameterBytes { weights, gradients, optimizer, snapshot, memory_checkpoints } = stage.parameters;
        let StageMemory { parameters: _, copies, activations, weight_gradient_inputs, temporaries, links, process } =
            stage.parts;
        let held = [weights, gradients, optimizer, snapshot, memory_checkpoints + copies, activations];
        let parts = held.into_iter().chain([weight_gradient_inputs, temporaries, links, process, stage.parts.total()]);
        std::iter::once(rank.to_string()).chain(parts.map(|bytes| (bytes >> 20).to_string())).collect()
    };
    let header = [
        "stage",
        "weights",
        "gradients",
        "moments",
        "snapshot",
        "copies",
        "activations",
        "for W",
        "temporary",
        "links",
        "process",
        "MiB",
    ];
    let right: Vec<usize> = (0..header.len()).collect();
    format!("{}\n", table(Some(&header), &right, stages.iter().enumerate().map(row).collect()))
}

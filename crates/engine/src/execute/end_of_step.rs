//! The end of a step. This rank votes: it sends its gradient norms and losses to the group. The group answers with a
//! verdict: whether all ranks apply the update.

use stagecoach_group::{BlockLosses, StepVote, Verdict};
use stagecoach_kernels as kernels;
use stagecoach_kernels::device::Timestamp;
use stagecoach_os::peak_resident_bytes;
use stagecoach_pipeline::Action;
use tch::{Device, Tensor};

use super::{Executor, StageGpu, StepError, StepInputs, StepMeasurements, StepTimer, StopRequest};

impl Executor<'_, '_> {
    /// Ends the step's timing, calls the control's `before_vote`, votes, and waits for the group's decision.
    pub(super) fn exchange(
        &mut self,
        program: &[Action],
        inputs: &StepInputs,
        losses: &[Tensor],
        token_losses: &[(usize, Vec<Tensor>)],
        timer: &mut StepTimer,
    ) -> Result<Verdict, StepError> {
        self.stage.set_activity(self.activity, "EXCHANGE", None);
        let (parameters, squared_norms) = self.stage.squared_norms();
        // without an audit or a dump, the host waits for a GPU only here
        let token_loss_tensors = token_losses.iter().flat_map(|(_, losses)| losses);
        let mut losses_and_norms = host_values(losses.iter().chain([&squared_norms]).chain(token_loss_tensors));
        let mut squared_norms = losses_and_norms.split_off(losses.len());
        let host_token_losses = squared_norms.split_off(parameters.len());
        let has_head = self.stage.chunks.values().any(|chunk| chunk.head.is_some());
        let losses = has_head.then(|| BlockLosses {
            blocks: inputs.blocks.all().count() as u32,
            target_count: inputs.target_count,
            sums: (inputs.blocks.first() as u32..).zip(losses_and_norms).collect(),
        });
        let all_finite = squared_norms.iter().all(|square| square.is_finite());
        let squared_norms = parameters.into_iter().zip(squared_norms).collect();
        // the norms and losses have arrived, so the device has finished all work that they depend on
        self.links.check()?;
        timer.end(Timestamp::now());
        let measurements = StepMeasurements {
            bytes_sent: self.links.bytes_sent() as f64,
            peak_bytes: peak_bytes(self.stage.device) as f64,
            source_losses: source_losses(
                inputs,
                token_losses.iter().map(|(microbatch, _)| *microbatch),
                &host_token_losses,
            ),
            // only the timeline of the first replica is recorded, because all replicas run the same program
            spans: if self.stage.replica.index == 0 { timer.spans(program) } else { Vec::new() },
        };
        let measurements = measurements.to_vec();
        self.stage.gpu.iter_mut().for_each(StageGpu::set_clock);
        self.control.before_vote()?;
        let step = inputs.step.unwrap_or_default();
        let vote = StepVote { step, losses, squared_norms, all_finite, measurements, ..inputs.vote.clone() };
        self.vote(vote)
    }

    /// Abandons the step. This stage closes its links, so that other stages that wait for its tensors get an error.
    pub(super) fn abort_step(&mut self, inputs: &StepInputs) -> Result<Verdict, StepError> {
        self.links.close();
        let vote = StepVote { step: inputs.step.unwrap_or_default(), unfinished: true, ..inputs.vote.clone() };
        self.vote(vote)
    }

    /// Votes, with the current stop request, and waits for the group's decision.
    pub(super) fn vote(&self, vote: StepVote) -> Result<Verdict, StepError> {
        self.activity.set("EXCHANGE", None);
        Ok(self.member.vote(StepVote { stop_requested: self.control.stop() != StopRequest::None, ..vote })?)
    }
}

/// Returns, for each source of the corpus, the sum of its tokens' losses and the number of its targets. `losses` holds
/// the loss of each token of `microbatches`.
fn source_losses(
    inputs: &StepInputs,
    microbatches: impl Iterator<Item = usize>,
    mut losses: &[f64],
) -> Vec<(f64, f64)> {
    let mut sums: Vec<(f64, f64)> = Vec::new();
    for microbatch in microbatches {
        let length = inputs.layouts[microbatch].length;
        for row in &inputs.rows[microbatch] {
            let (of_row, rest) = losses.split_at(length.min(losses.len()));
            losses = rest;
            sums.resize(sums.len().max(row.source + 1), (0.0, 0.0));
            let (loss, targets) = &mut sums[row.source];
            *loss += of_row.iter().sum::<f64>();
            *targets += row.targets as f64;
        }
    }
    sums
}

/// Returns the peak memory use of this stage so far, in bytes: of its GPU, or of its process if it computes on the CPU.
fn peak_bytes(device: Device) -> u64 {
    match device {
        Device::Cuda(gpu) => kernels::peak_device_bytes(gpu),
        _ => peak_resident_bytes(),
    }
}

/// Copies the values of `scalars` to the host, concatenated. The host waits for the GPU.
pub(super) fn host_values<'t>(scalars: impl IntoIterator<Item = &'t Tensor>) -> Vec<f64> {
    let scalars: Vec<Tensor> = scalars.into_iter().map(|scalar| scalar.view([-1])).collect();
    if scalars.is_empty() {
        return Vec::new();
    }
    let all = Tensor::cat(&scalars, 0);
    let mut read = vec![0.0; all.numel()];
    all.copy_data(&mut read, all.numel());
    read
}

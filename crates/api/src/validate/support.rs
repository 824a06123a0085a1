//! What this version lacks: the fields and values are there, so that a later version may have it.

use super::Problems;
use crate::job::{Device, Kernels, ModelSpec, PipelineJobSpec, Transport};

pub(super) fn check(spec: &PipelineJobSpec, problems: &mut Problems) {
    problems.require(spec.pipeline.transport != Transport::Nccl, "spec.pipeline.transport", || {
        "is Nccl, which this version lacks: set Auto, Tcp or Shm".into()
    });
    let is_portable_gpu =
        spec.training.as_ref().is_some_and(|t| t.kernels == Kernels::Portable && t.device == Device::Cuda);
    problems.require(!is_portable_gpu, "spec.training.kernels", || {
        "is Portable, and spec.training.device is Cuda: only CPUs of all makers compute the same; set kernels to Fastest or device \
         to Cpu"
            .into()
    });
    let has_weights_twice = matches!(spec.model, Some(ModelSpec::Pretrained(_))) && spec.checkpoint.init_from.is_some();
    problems.require(!has_weights_twice, "spec.checkpoint.initFrom", || {
        "is given, and a model of type Pretrained brings its weights along: set one of both".into()
    });
}

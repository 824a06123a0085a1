//! Fields that are right by themselves and not together.

use super::Problems;
use crate::job::{Device, Encryption, Kernels, ModelSpec, PipelineJobSpec, Transport};

pub(super) fn check(spec: &PipelineJobSpec, problems: &mut Problems) {
    let is_nccl = spec.pipeline.transport == Transport::Nccl;
    let has_device = |device| spec.training.as_ref().is_some_and(|training| training.device == device);
    problems.require(!(is_nccl && has_device(Device::Cpu)), "spec.pipeline.transport", || {
        "is Nccl, which sends between GPUs, and spec.training.device is Cpu: set the transport to Auto, Tcp or Shm, or the device to \
         Cuda"
            .into()
    });
    let is_encrypted = spec.pipeline.encryption == Encryption::Required;
    problems.require(!(is_nccl && is_encrypted), "spec.pipeline.transport", || {
        "is Nccl, which does not encrypt, and spec.pipeline.encryption is Required: set the transport to Tcp, or encryption to None"
            .into()
    });
    let is_portable_gpu =
        has_device(Device::Cuda) && spec.training.as_ref().is_some_and(|t| t.kernels == Kernels::Portable);
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

//! Model FLOPs utilization: the time that a step's matrix products and attention would take at the peak FLOP/s of the
//! GPUs, divided by the duration of the step.

use stagecoach_api::job::Precision;

/// Dense FLOP/s of one GPU in bf16 on tensor cores and in fp32 without them, from NVIDIA's data sheets. A GPU has the
/// peaks of the first entry whose words all occur in the driver's name for the GPU.
const PEAKS: &[(&str, f64, f64)] = &[
    ("B200", 2250e12, 75e12),
    ("GH200", 989e12, 67e12),
    ("H200 NVL", 835e12, 60e12),
    ("H200", 989e12, 67e12),
    ("H100 PCIe", 756e12, 51e12),
    ("H100 NVL", 835e12, 60e12),
    ("H100", 989e12, 67e12),
    ("A100", 312e12, 19.5e12),
    ("L40S", 362e12, 91.6e12),
    ("L4", 121e12, 30.3e12),
];

/// Returns the total peak of GPUs with these driver names, in FLOP/s; `None` if the peak of any of them is unknown.
pub fn total_peak_flops<'a>(gpus: impl Iterator<Item = &'a str>, precision: Precision) -> Option<f64> {
    gpus.map(|gpu| peak_flops(gpu, precision)).sum()
}

/// Returns the peak of one GPU by its driver's name, in FLOP/s, if it is known.
pub fn peak_flops(gpu: &str, precision: Precision) -> Option<f64> {
    let words: Vec<&str> = gpu.split([' ', '-']).collect();
    if words.contains(&"MIG") {
        return None; // a MIG device is a slice of a GPU, of unknown size
    }
    let matches = |name: &str| name.split(' ').all(|word| words.contains(&word));
    let &(_, bf16, fp32) = PEAKS.iter().find(|(name, ..)| matches(name))?;
    Some(match precision {
        Precision::BFloat16 => bf16,
        Precision::Float32 => fp32,
    })
}

/// The constants from which the utilization of each step is computed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FlopsUtilization {
    /// FLOPs of a step, forward and backward, without recomputation.
    pub step_flops: f64,
    /// The peak FLOP/s of all ranks together.
    pub peak_flops: f64,
}

impl FlopsUtilization {
    /// Returns the utilization of a step of `seconds` seconds, 0 to 1.
    pub fn of_step(self, seconds: f64) -> f64 {
        self.step_flops / (self.peak_flops * seconds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peak_is_that_of_the_driver_s_name() {
        for (name, bf16) in [
            ("NVIDIA H100 80GB HBM3", Some(989e12)),
            ("NVIDIA H100 PCIe", Some(756e12)),
            ("NVIDIA H100 NVL", Some(835e12)),
            ("NVIDIA H200", Some(989e12)),
            ("NVIDIA H200 NVL", Some(835e12)),
            ("NVIDIA A100-SXM4-80GB", Some(312e12)),
            ("NVIDIA L4", Some(121e12)),
            ("NVIDIA L40S", Some(362e12)),
            ("NVIDIA L40", None),
            ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", None),
            ("NVIDIA GH200 480GB", Some(989e12)),
            ("", None),
        ] {
            assert_eq!(peak_flops(name, Precision::BFloat16), bf16, "{name}");
        }
        assert_eq!(peak_flops("NVIDIA H200", Precision::Float32), Some(67e12));
    }

    #[test]
    fn gpus_of_several_models_have_their_peaks_together() {
        let total = |gpus: &[&str]| total_peak_flops(gpus.iter().copied(), Precision::BFloat16);
        assert_eq!(total(&["NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB"]), Some(989e12 + 312e12));
        assert_eq!(total(&["NVIDIA H100 80GB HBM3", "NVIDIA L40"]), None);
        assert_eq!(total(&["", ""]), None);
    }

    #[test]
    fn half_the_peak_is_a_half() {
        let utilization = FlopsUtilization { step_flops: 3e12, peak_flops: 2e12 };
        assert_eq!(utilization.of_step(3.0), 0.5);
    }
}

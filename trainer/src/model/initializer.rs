//! Initial weights: a generator keyed by (seed, parameter name), so that no partition, device or thread count can
//! change them. libtorch's own generator is not used: its bits depend on the instruction set.

use std::f64::consts::TAU;

use tch::{Kind, Tensor};

/// The distribution of a parameter's initial values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Initializer {
    /// Independent normal values with mean 0 and this standard deviation.
    Normal(f64),
    /// All ones.
    Ones,
    /// All zeros.
    Zeros,
}

impl Initializer {
    /// The initial value of the parameter `name`, fp32 on the CPU.
    pub(super) fn value(self, name: &str, shape: &[i64], seed: u64) -> Tensor {
        match self {
            Initializer::Ones => Tensor::ones(shape, (Kind::Float, tch::Device::Cpu)),
            Initializer::Zeros => Tensor::zeros(shape, (Kind::Float, tch::Device::Cpu)),
            Initializer::Normal(deviation) => {
                let count = shape.iter().product::<i64>() as usize;
                Tensor::from_slice(&normal(name, seed, deviation, count)).reshape(shape)
            }
        }
    }
}

/// `count` normal values by the Box-Muller transform (1958) of BLAKE3's output stream.
fn normal(name: &str, seed: u64, deviation: f64, count: usize) -> Vec<f32> {
    let mut hasher = blake3::Hasher::new_derive_key("stagecoach initial weights v1");
    hasher.update(&seed.to_le_bytes()).update(name.as_bytes());
    let mut stream = hasher.finalize_xof();
    let mut values = Vec::with_capacity(count + 1);
    let mut block = [0u8; 8192];
    while values.len() < count {
        stream.fill(&mut block);
        for pair in block.chunks_exact(16).take((count - values.len()).div_ceil(2)) {
            // 53 bits each; the first in (0, 1] so that its logarithm is finite
            let [a, b] = [0, 8].map(|at| pair[at..at + 8].iter().rev().fold(0u64, |n, &byte| n << 8 | u64::from(byte)));
            let u = ((a >> 11) + 1) as f64 / (1u64 << 53) as f64;
            let v = (b >> 11) as f64 / (1u64 << 53) as f64;
            let radius = deviation * (-2.0 * u.ln()).sqrt();
            let (sin, cos) = (TAU * v).sin_cos();
            values.push((radius * cos) as f32);
            values.push((radius * sin) as f32);
        }
    }
    values.truncate(count);
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_normal_and_keyed_by_seed_and_name() {
        let values = normal("model.layers.0.mlp.up_proj.weight", 42, 0.02, 100_001);
        assert_eq!(values.len(), 100_001);
        let mean = values.iter().map(|&x| f64::from(x)).sum::<f64>() / values.len() as f64;
        let variance = values.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / values.len() as f64;
        assert!(mean.abs() < 3e-4, "{mean}");
        assert!((variance.sqrt() / 0.02 - 1.0).abs() < 0.01, "{variance}");
        assert_eq!(values[..7], normal("model.layers.0.mlp.up_proj.weight", 42, 0.02, 7)[..]);
        assert_ne!(values[..7], normal("model.layers.0.mlp.up_proj.weight", 43, 0.02, 7)[..]);
        assert_ne!(values[..7], normal("model.layers.1.mlp.up_proj.weight", 42, 0.02, 7)[..]);
    }
}

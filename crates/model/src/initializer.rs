//! Initial weights: a generator keyed by (seed, parameter name), so that no partition, device or thread count can
//! change them. libtorch's own generator is not used: its bits depend on the instruction set.

use std::f64::consts::TAU;

use tch::{Kind, Tensor};

/// The distribution of a parameter's initial values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Initializer {
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

/// Values of one block of the generator's output, which has 16 bytes for every two values.
const BLOCK_VALUES: usize = 1024;

/// `count` normal values by the Box-Muller transform (1958) of BLAKE3's output stream. Threads fill blocks of the
/// stream, so the number of threads changes no value.
fn normal(name: &str, seed: u64, deviation: f64, count: usize) -> Vec<f32> {
    let mut hasher = blake3::Hasher::new_derive_key("stagecoach initial weights v1");
    hasher.update(&seed.to_le_bytes()).update(name.as_bytes());
    let mut values = vec![0f32; count];
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let of_a_thread = count.div_ceil(threads).next_multiple_of(BLOCK_VALUES).max(BLOCK_VALUES);
    std::thread::scope(|scope| {
        for (thread, values) in values.chunks_mut(of_a_thread).enumerate() {
            let mut stream = hasher.finalize_xof();
            stream.set_position((thread * of_a_thread * 8) as u64);
            scope.spawn(move || values.chunks_mut(BLOCK_VALUES).for_each(|block| fill(block, deviation, &mut stream)));
        }
    });
    values
}

/// Fills a block with the next values of the stream.
fn fill(values: &mut [f32], deviation: f64, stream: &mut blake3::OutputReader) {
    let mut bytes = [0u8; 8 * BLOCK_VALUES];
    stream.fill(&mut bytes);
    for (values, bytes) in values.chunks_mut(2).zip(bytes.chunks_exact(16)) {
        // 53 bits each; the first in (0, 1] so that its logarithm is finite
        let [a, b] = [0, 8].map(|at| bytes[at..at + 8].iter().rev().fold(0u64, |n, &byte| n << 8 | u64::from(byte)));
        let u = ((a >> 11) + 1) as f64 / (1u64 << 53) as f64;
        let v = (b >> 11) as f64 / (1u64 << 53) as f64;
        let radius = deviation * (-2.0 * u.ln()).sqrt();
        let (sin, cos) = (TAU * v).sin_cos();
        for (value, unit) in values.iter_mut().zip([cos, sin]) {
            *value = (radius * unit) as f32;
        }
    }
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

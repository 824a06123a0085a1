//! Initial weights. The generator is keyed by (seed, parameter name), so that no partition, device or thread count can
//! change the weights. libtorch's generator is not suitable, because its bits depend on the instruction set.

use std::f64::consts::TAU;

use tch::{Kind, Tensor};

/// The distribution of a parameter's initial values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Initializer {
    /// Independent normal values with mean 0 and this standard deviation.
    Normal(f64),
    /// Independent uniform values between this bound and its negative.
    Uniform(f64),
    /// All ones.
    Ones,
    /// All zeros.
    Zeros,
}

impl Initializer {
    /// Returns the initial value of the parameter `name`, in fp32 on the CPU.
    pub(super) fn value(self, name: &str, shape: &[i64], seed: u64) -> Tensor {
        match self {
            Initializer::Ones => Tensor::ones(shape, (Kind::Float, tch::Device::Cpu)),
            Initializer::Zeros => Tensor::zeros(shape, (Kind::Float, tch::Device::Cpu)),
            Initializer::Normal(deviation) => {
                let count = shape.iter().product::<i64>() as usize;
                Tensor::from_slice(&random(name, seed, normal(deviation), count)).reshape(shape)
            }
            Initializer::Uniform(bound) => {
                let count = shape.iter().product::<i64>() as usize;
                Tensor::from_slice(&random(name, seed, uniform(bound), count)).reshape(shape)
            }
        }
    }
}

/// The number of values in one block of the generator's output. Two values take 16 bytes of the output.
const BLOCK_VALUES: usize = 1024;

/// Returns `count` values from BLAKE3's output stream. `transform` converts two random integers to two values. Each
/// thread reads the stream at the position of its own values, so the number of threads does not change any value.
fn random(name: &str, seed: u64, transform: impl Fn([u64; 2]) -> [f64; 2] + Sync, count: usize) -> Vec<f32> {
    let mut hasher = blake3::Hasher::new_derive_key("stagecoach initial weights v1");
    hasher.update(&seed.to_le_bytes()).update(name.as_bytes());
    let mut values = vec![0f32; count];
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let values_per_thread = count.div_ceil(threads).next_multiple_of(BLOCK_VALUES).max(BLOCK_VALUES);
    std::thread::scope(|scope| {
        for (thread, values) in values.chunks_mut(values_per_thread).enumerate() {
            let mut stream = hasher.finalize_xof();
            stream.set_position((thread * values_per_thread * 8) as u64);
            let transform = &transform;
            scope.spawn(move || values.chunks_mut(BLOCK_VALUES).for_each(|block| fill(block, transform, &mut stream)));
        }
    });
    values
}

/// Fills a block with the next values of the stream.
fn fill(values: &mut [f32], transform: &impl Fn([u64; 2]) -> [f64; 2], stream: &mut blake3::OutputReader) {
    let mut bytes = [0u8; 8 * BLOCK_VALUES];
    stream.fill(&mut bytes);
    for (values, bytes) in values.chunks_mut(2).zip(bytes.chunks_exact(16)) {
        let bits = [0, 8].map(|at| bytes[at..at + 8].iter().rev().fold(0u64, |n, &byte| n << 8 | u64::from(byte)));
        for (value, random) in values.iter_mut().zip(transform(bits)) {
            *value = random as f32;
        }
    }
}

/// The number of different values of 53 random bits.
const VALUES: f64 = (1u64 << 53) as f64;

/// Returns normal values by the Box-Muller transform (1958).
fn normal(deviation: f64) -> impl Fn([u64; 2]) -> [f64; 2] {
    move |[a, b]| {
        // `u` is in (0, 1], so that its logarithm is finite
        let u = ((a >> 11) + 1) as f64 / VALUES;
        let v = (b >> 11) as f64 / VALUES;
        let radius = deviation * (-2.0 * u.ln()).sqrt();
        let (sin, cos) = (TAU * v).sin_cos();
        [cos, sin].map(|unit| radius * unit)
    }
}

/// Returns values that are uniform between -`bound` and `bound`.
fn uniform(bound: f64) -> impl Fn([u64; 2]) -> [f64; 2] {
    move |bits| bits.map(|bits| bound * (2.0 * ((bits >> 11) as f64 / VALUES) - 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: &str = "model.layers.0.mlp.up_proj.weight";

    fn mean_and_deviation(values: &[f32]) -> (f64, f64) {
        let count = values.len() as f64;
        let mean = values.iter().map(|&x| f64::from(x)).sum::<f64>() / count;
        (mean, (values.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / count).sqrt())
    }

    #[test]
    fn values_are_normal_and_keyed_by_seed_and_name() {
        let values = random(NAME, 42, normal(0.02), 100_001);
        assert_eq!(values.len(), 100_001);
        let (mean, deviation) = mean_and_deviation(&values);
        assert!(mean.abs() < 3e-4, "{mean}");
        assert!((deviation / 0.02 - 1.0).abs() < 0.01, "{deviation}");
        assert_eq!(values[..7], random(NAME, 42, normal(0.02), 7)[..]);
        assert_ne!(values[..7], random(NAME, 43, normal(0.02), 7)[..]);
        assert_ne!(values[..7], random("model.layers.1.mlp.up_proj.weight", 42, normal(0.02), 7)[..]);
    }

    #[test]
    fn uniform_values_are_within_their_bound() {
        let values = random(NAME, 42, uniform(0.25), 100_001);
        let (mean, deviation) = mean_and_deviation(&values);
        assert!(mean.abs() < 3e-3, "{mean}");
        assert!((deviation / (0.25 / 3f64.sqrt()) - 1.0).abs() < 0.01, "{deviation}");
        assert!(values.iter().all(|value| value.abs() <= 0.25));
    }
}

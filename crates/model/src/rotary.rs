//! Rotary position embedding (Su et al. 2021): tables of cosines and sines by position.

use std::f64::consts::TAU;
use std::ops::Range;

use stagecoach_kernels::Rotation;
use tch::{Device, Tensor};

use super::config_json::RopeScaling;

/// Tables for positions `0..positions`, each `f32[positions, dim / 2]`. The tables are computed, never read from a
/// checkpoint.
#[derive(Debug)]
pub(super) struct RotaryEmbedding {
    cos: Tensor,
    sin: Tensor,
}

impl RotaryEmbedding {
    /// Computes the tables from the angles `position / theta^(2i / dim)` in f64. With `scaling`, the angles use the
    /// scaled frequencies.
    pub(crate) fn new(
        dim: usize,
        theta: f64,
        scaling: Option<RopeScaling>,
        positions: usize,
        device: Device,
    ) -> RotaryEmbedding {
        let half = dim / 2;
        let plain = |i: usize| theta.powf(-2.0 * i as f64 / dim as f64);
        let frequency = |i| scaling.map_or(plain(i), |scaling| scaled(plain(i), scaling));
        let frequencies: Vec<f64> = (0..half).map(frequency).collect();
        let angles: Vec<f64> =
            (0..positions).flat_map(|p| frequencies.iter().map(move |frequency| p as f64 * frequency)).collect();
        let table = |f: fn(f64) -> f64| {
            let values: Vec<f32> = angles.iter().map(|&a| f(a) as f32).collect();
            Tensor::from_slice(&values).reshape([positions as i64, half as i64]).to_device(device)
        };
        RotaryEmbedding { cos: table(f64::cos), sin: table(f64::sin) }
    }

    /// Returns the bytes of the tables.
    pub(crate) fn bytes(dim: usize, positions: usize) -> usize {
        2 * 4 * positions * (dim / 2)
    }

    /// Calls `kernel` with the rotation for rows whose tokens have these positions. The rotation at position 0 changes
    /// nothing.
    pub(super) fn at<R>(&self, positions: Range<i64>, kernel: impl FnOnce(Rotation) -> R) -> R {
        let length = positions.end - positions.start;
        let [cos, sin] = [&self.cos, &self.sin].map(|table| table.narrow(0, positions.start, length));
        kernel(Rotation { cos: &cos, sin: &sin, length })
    }
}

/// Returns the scaled frequency. A pair of dimensions that turns fewer than `low_freq_factor` times within the original
/// length turns `factor` times slower. A pair that turns more than `high_freq_factor` times keeps its frequency.
/// Between the two bounds, the share of the original frequency rises with the number of turns.
fn scaled(frequency: f64, scaling: RopeScaling) -> f64 {
    let RopeScaling { factor, low_freq_factor: low, high_freq_factor: high, original_max_position_embeddings } =
        scaling;
    let turns = original_max_position_embeddings as f64 * frequency / TAU;
    let kept = ((turns - low) / (high - low)).clamp(0.0, 1.0);
    kept * frequency + (1.0 - kept) * frequency / factor
}

#[cfg(test)]
mod tests {
    use stagecoach_kernels::{Heads, rotary};

    use super::*;

    #[test]
    fn position_0_is_unchanged_and_position_1_rotates_by_the_formulas_angle() {
        let rope = RotaryEmbedding::new(4, 1e4, None, 3, Device::Cpu);
        // two positions, each with one head of queries, one of keys and one of values; the values are not rotated
        let row = [1.0f32, 2.0, 3.0, 4.0].repeat(3);
        let qkv = Tensor::from_slice(&[row.clone(), row].concat()).view([2, 12]);
        let heads = Heads { heads: 1, kv_heads: 1, head_dim: 4 };
        rope.at(0..2, |rotation| rotary(&qkv, rotation, heads));
        let y: Vec<f32> = Vec::<f32>::try_from(qkv.view([-1])).unwrap();
        assert_eq!(y[..12], [1.0, 2.0, 3.0, 4.0].repeat(3));
        assert_eq!(y[20..], [1.0, 2.0, 3.0, 4.0]);
        assert_eq!(y[12..16], y[16..20]);
        let rotated =
            |a: f32, b: f32, angle: f32| (a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin());
        let ((a, c), (b, d)) = (rotated(1.0, 3.0, 1.0), rotated(2.0, 4.0, 0.01));
        for (actual, expected) in y[12..].iter().zip([a, b, c, d]) {
            assert!((actual - expected).abs() < 1e-6, "{y:?}");
        }
        // a row that begins at position 1
        let alone = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0].repeat(3)).view([1, 12]);
        rope.at(1..2, |rotation| rotary(&alone, rotation, heads));
        assert_eq!(Vec::<f32>::try_from(alone.view([-1])).unwrap(), y[12..]);
    }
}

//! Rotary position embedding (Su et al. 2021): tables of cosines and sines by position.

use tch::{Device, Kind, Tensor};

/// Tables for positions `0..positions`, each `f32[positions, dim / 2]`. Computed, never read from a checkpoint.
#[derive(Debug)]
pub(super) struct RotaryEmbedding {
    cos: Tensor,
    sin: Tensor,
}

impl RotaryEmbedding {
    /// Angles `position / theta^(2i / dim)`, computed in f64.
    pub(super) fn new(dim: usize, theta: f64, positions: usize, device: Device) -> RotaryEmbedding {
        let half = dim / 2;
        let angles: Vec<f64> = (0..positions)
            .flat_map(|p| (0..half).map(move |i| p as f64 * theta.powf(-2.0 * i as f64 / dim as f64)))
            .collect();
        let table = |f: fn(f64) -> f64| {
            let values: Vec<f32> = angles.iter().map(|&a| f(a) as f32).collect();
            Tensor::from_slice(&values).reshape([positions as i64, half as i64]).to_kind(Kind::Float).to_device(device)
        };
        RotaryEmbedding { cos: table(f64::cos), sin: table(f64::sin) }
    }

    /// Rotates `x[rows, heads, length, dim]` by position; position 0 is unchanged.
    pub(super) fn apply(&self, x: &Tensor) -> Tensor {
        let length = x.size()[2];
        crate::autograd::rotary(x, &self.cos.narrow(0, 0, length), &self.sin.narrow(0, 0, length))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn position_0_is_unchanged_and_position_1_rotates_by_the_formulas_angle() {
        let rope = RotaryEmbedding::new(4, 1e4, 3, Device::Cpu);
        let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0, 1.0, 2.0, 3.0, 4.0]).view([1, 1, 2, 4]);
        let y: Vec<f32> = Vec::<f32>::try_from(rope.apply(&x).view([-1])).unwrap();
        assert_eq!(y[..4], [1.0, 2.0, 3.0, 4.0]);
        let rotated =
            |a: f32, b: f32, angle: f32| (a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin());
        let ((a, c), (b, d)) = (rotated(1.0, 3.0, 1.0), rotated(2.0, 4.0, 0.01));
        for (actual, expected) in y[4..].iter().zip([a, b, c, d]) {
            assert!((actual - expected).abs() < 1e-6, "{y:?}");
        }
    }
}

//! Rotary position embedding (Su et al. 2021): tables of cosines and sines by position.

use tch::{Device, Kind, Tensor};

/// Tables for positions `0..positions`, each `f32[positions, dim / 2]`. Computed, never read from a checkpoint.
#[derive(Debug)]
pub(super) struct Rope {
    cos: Tensor,
    sin: Tensor,
}

impl Rope {
    /// Angles `position / theta^(2i / dim)`, computed in f64.
    pub(super) fn new(dim: usize, theta: f64, positions: usize, device: Device) -> Rope {
        let half = dim / 2;
        let angles: Vec<f64> = (0..positions)
            .flat_map(|p| (0..half).map(move |i| p as f64 * theta.powf(-2.0 * i as f64 / dim as f64)))
            .collect();
        let table = |f: fn(f64) -> f64| {
            let values: Vec<f32> = angles.iter().map(|&a| f(a) as f32).collect();
            Tensor::from_slice(&values).reshape([positions as i64, half as i64]).to_kind(Kind::Float).to_device(device)
        };
        Rope { cos: table(f64::cos), sin: table(f64::sin) }
    }

    /// `x[rows, heads, length, dim]`, rotated by position.
    pub(super) fn rotate(&self, x: &Tensor) -> Tensor {
        let length = x.size()[2];
        crate::autograd::rotary(x, &self.cos.narrow(0, 0, length), &self.sin.narrow(0, 0, length))
    }
}

//! Tests of the kernels, and the values, tolerances and comparisons that the tests share.

mod cpu;
mod cuda;
mod derivatives;
mod determinism;
mod gpu;
mod host_kernels;
mod nvrtc;
mod speed;
mod traffic;

use std::path::Path;
use std::process::Command;

use tch::{Device, Kind, Tensor};

use super::*;

/// Runs the test of this name in a child process with these environment variables. The test needs its own process,
/// because another test of this process may already have opened the library that the test replaces.
fn run_in_child(test: &str, environment: [(&str, &Path); 2]) {
    let mut child = Command::new(std::env::current_exe().unwrap());
    let output = child.args([test, "--exact", "--nocapture"]).envs(environment).output().unwrap();
    let printed = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && printed.contains("1 passed"), "{printed}");
}

/// Returns a tensor of this shape and type. Its values are normally distributed and depend only on `seed`.
fn values(shape: &[i64], kind: Kind, seed: u64) -> Tensor {
    let count = shape.iter().product::<i64>() as usize;
    let mut stream = blake3::Hasher::new_derive_key("kernel tests").update(&seed.to_le_bytes()).finalize_xof();
    let mut bytes = vec![0; 8 * count];
    stream.fill(&mut bytes);
    let uniform = |bytes: &[u8]| (u32::from_le_bytes(bytes.try_into().unwrap()) as f64 + 1.0) / 4_294_967_297.0;
    let normal = |b: &[u8]| (-2.0 * uniform(&b[..4]).ln()).sqrt() * (std::f64::consts::TAU * uniform(&b[4..])).cos();
    let values: Vec<f64> = bytes.chunks_exact(8).map(normal).collect();
    Tensor::from_slice(&values).reshape(shape).to_kind(kind)
}

/// The tables of a rotation, with random values instead of cosines and sines.
struct RotationTables {
    cos: Tensor,
    sin: Tensor,
}

impl RotationTables {
    fn new(length: i64, half: i64, seed: u64, device: Device) -> RotationTables {
        let [cos, sin] = [seed, seed ^ 1024].map(|seed| values(&[length, half], Kind::Float, seed).to_device(device));
        RotationTables { cos, sin }
    }

    fn rotation(&self) -> Rotation<'_> {
        Rotation { cos: &self.cos, sin: &self.sin, length: self.cos.size()[0] }
    }
}

fn list(tensor: &Tensor) -> Vec<f64> {
    Vec::try_from(tensor.to_kind(Kind::Double).reshape([-1])).unwrap()
}

/// Returns the accepted relative difference between a kernel and its reference. A kernel and its reference differ
/// because they sum in different orders. Near 1, the tolerance is one unit in the last place for bf16, and about 17
/// units for fp32.
fn tolerance(kind: Kind) -> f64 {
    match kind {
        Kind::BFloat16 => 1.0 / 128.0,
        _ => 2e-6,
    }
}

/// Asserts that values are equal up to rounding, and that non-finite values have the same positions. The tolerance is
/// relative to the largest value, or to 1 if the largest value is below 1, because the few values of a small tensor can
/// all result from cancellation.
#[track_caller]
fn assert_close(what: &str, actual: &Tensor, expected: &Tensor, tolerance: f64) {
    assert_close_to_scale(what, actual, expected, tolerance, 1.0);
}

/// Like `assert_close`, but with `scale` instead of 1. `scale` is the sum of the magnitudes of terms that may cancel.
#[track_caller]
fn assert_close_to_scale(what: &str, actual: &Tensor, expected: &Tensor, tolerance: f64, scale: f64) {
    assert_eq!((actual.size(), actual.kind()), (expected.size(), expected.kind()), "{what}");
    let (actual, expected) = (list(actual), list(expected));
    let scale = expected.iter().filter(|x| x.is_finite()).fold(scale, |max: f64, x| max.max(x.abs()));
    for (at, (a, e)) in actual.iter().zip(&expected).enumerate() {
        let same = if e.is_finite() { (a - e).abs() <= tolerance * scale } else { !a.is_finite() };
        assert!(same, "{what}: {a} instead of {e} at {at}, the scale is {scale}");
    }
}

/// Returns the path of the C library, as an example of a wrong library.
fn c_library() -> std::path::PathBuf {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let line = maps.lines().find(|line| line.ends_with("/libc.so.6")).unwrap();
    line[line.find('/').unwrap()..].into()
}

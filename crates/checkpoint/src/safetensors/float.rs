//! Conversion of floating-point values to fp32.

use ::safetensors::Dtype;

/// Whether `dtype` is a type of floating-point values that converts to fp32: F16, BF16, F32 or F64.
pub fn is_float(dtype: Dtype) -> bool {
    matches!(dtype, Dtype::F32 | Dtype::F16 | Dtype::BF16 | Dtype::F64)
}

/// Converts little-endian values of `dtype` to little-endian fp32. F16 and BF16 are converted exactly; F64 is rounded
/// to the nearest value. `None` if `dtype` is not supported.
pub(crate) fn to_f32(dtype: Dtype, bytes: Vec<u8>) -> Option<Vec<u8>> {
    match dtype {
        Dtype::F32 => Some(bytes),
        Dtype::BF16 => Some(convert_each(&bytes, |b| f32::from_bits(u32::from(u16::from_le_bytes(b)) << 16))),
        Dtype::F16 => Some(convert_each(&bytes, |b| f16_to_f32(u16::from_le_bytes(b)))),
        Dtype::F64 => Some(convert_each(&bytes, |b| f64::from_le_bytes(b) as f32)),
        _ => None,
    }
}

fn convert_each<const N: usize>(bytes: &[u8], value: impl Fn([u8; N]) -> f32) -> Vec<u8> {
    bytes.as_chunks::<N>().0.iter().flat_map(|&chunk| value(chunk).to_le_bytes()).collect()
}

/// Converts an IEEE 754 binary16 value: one sign bit, five exponent bits, ten fraction bits.
fn f16_to_f32(bits: u16) -> f32 {
    let sign = u32::from(bits >> 15) << 31;
    let (exponent, fraction) = (u32::from(bits >> 10 & 0x1f), u32::from(bits & 0x3ff));
    match exponent {
        // zero and subnormals: multiples of 2^-24
        0 => f32::from_bits(sign | (fraction as f32 * 2f32.powi(-24)).to_bits()),
        // infinity and NaN
        31 => f32::from_bits(sign | 0xff << 23 | fraction << 13),
        _ => f32::from_bits(sign | (exponent + 127 - 15) << 23 | fraction << 13),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one<const N: usize>(dtype: Dtype, bytes: [u8; N]) -> f32 {
        f32::from_le_bytes(to_f32(dtype, bytes.to_vec()).unwrap().try_into().unwrap())
    }

    #[test]
    fn every_f16_value_is_exact() {
        for bits in 0..=u16::MAX {
            let value = one(Dtype::F16, bits.to_le_bytes());
            let (exponent, fraction) = (i32::from(bits >> 10 & 31), f64::from(bits & 1023));
            let magnitude = match exponent {
                0 => fraction / 1024.0 * 2f64.powi(-14),
                31 if fraction == 0.0 => f64::INFINITY,
                31 => f64::NAN,
                _ => (1.0 + fraction / 1024.0) * 2f64.powi(exponent - 15),
            };
            assert_eq!(value.is_sign_negative(), bits >> 15 == 1);
            assert!(f64::from(value.abs()) == magnitude || (value.is_nan() && magnitude.is_nan()), "{bits:#x}");
        }
    }

    #[test]
    fn f32_f64_and_bf16_are_converted() {
        for value in [0.0, -0.0, 1.5, -3.1415927e-20, f32::MAX, f32::INFINITY] {
            assert_eq!(one(Dtype::F32, value.to_le_bytes()).to_bits(), value.to_bits());
            assert_eq!(one(Dtype::F64, f64::from(value).to_le_bytes()).to_bits(), value.to_bits());
            let short = value.to_bits() >> 16;
            assert_eq!(one(Dtype::BF16, (short as u16).to_le_bytes()).to_bits(), short << 16);
        }
        assert_eq!(one(Dtype::F64, 0.1f64.to_le_bytes()), 0.1f32);
        assert_eq!(to_f32(Dtype::I64, vec![0; 8]), None);
        assert!(Dtype::F16 != Dtype::BF16 && is_float(Dtype::F64) && !is_float(Dtype::I32));
    }
}

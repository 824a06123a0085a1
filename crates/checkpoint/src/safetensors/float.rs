//! Converts floating-point values to fp32, and fp32 to bf16.

use ::safetensors::Dtype;

/// Whether `dtype` is a floating-point type that can be converted to fp32: F16, BF16, F32 or F64.
pub fn is_float(dtype: Dtype) -> bool {
    matches!(dtype, Dtype::F32 | Dtype::F16 | Dtype::BF16 | Dtype::F64)
}

/// Converts little-endian values of `dtype` to little-endian fp32. The conversion of F16 and BF16 is exact. F64 is
/// rounded to the nearest value. Returns `None` if `dtype` is not supported.
pub(crate) fn to_f32(dtype: Dtype, bytes: Vec<u8>) -> Option<Vec<u8>> {
    match dtype {
        Dtype::F32 => Some(bytes),
        Dtype::BF16 => Some(convert_each(&bytes, |b| f32::from_bits(u32::from(u16::from_le_bytes(b)) << 16))),
        Dtype::F16 => Some(convert_each(&bytes, |b| f16_to_f32(u16::from_le_bytes(b)))),
        Dtype::F64 => Some(convert_each(&bytes, |b| f64::from_le_bytes(b) as f32)),
        _ => None,
    }
}

/// Rounds each little-endian fp32 value to the nearest little-endian bf16 value, with ties to even, as torch does.
/// Every NaN becomes 0x7fc0, as in torch.
pub(crate) fn f32_to_bf16(bytes: &[u8]) -> Vec<u8> {
    let round = |bits: u32| match f32::from_bits(bits).is_nan() {
        true => 0x7fc0,
        false => ((u64::from(bits) + 0x7fff + u64::from(bits >> 16 & 1)) >> 16) as u16,
    };
    bytes.as_chunks().0.iter().flat_map(|&chunk| round(u32::from_le_bytes(chunk)).to_le_bytes()).collect()
}

fn convert_each<const N: usize>(bytes: &[u8], value: impl Fn([u8; N]) -> f32) -> Vec<u8> {
    bytes.as_chunks::<N>().0.iter().flat_map(|&chunk| value(chunk).to_le_bytes()).collect()
}

/// Converts an IEEE 754 binary16 value: one sign bit, five exponent bits, ten fraction bits.
fn f16_to_f32(bits: u16) -> f32 {
    let sign = u32::from(bits >> 15) << 31;
    let (exponent, fraction) = (u32::from(bits >> 10 & 0x1f), u32::from(bits & 0x3ff));
    match exponent {
        // zero and subnormals are multiples of 2^-24
        0 => f32::from_bits(sign | (fraction as f32 * 2f32.powi(-24)).to_bits()),
        // an exponent of 31 means infinity or NaN
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
    fn fp32_is_rounded_to_the_nearest_bf16() {
        let rounded = |bits: u32| u16::from_le_bytes(f32_to_bf16(&bits.to_le_bytes()).try_into().unwrap());
        for short in 0..=u16::MAX {
            let bits = u32::from(short) << 16;
            if f32::from_bits(bits).is_nan() {
                assert_eq!((rounded(bits), rounded(bits | 1)), (0x7fc0, 0x7fc0));
                continue;
            }
            assert_eq!(rounded(bits), short);
            if f32::from_bits(bits).is_finite() {
                let next = short + 1;
                let even = if short % 2 == 0 { short } else { next };
                assert_eq!(
                    [0x7fff, 0x8000, 0x8001].map(|rest| rounded(bits | rest)),
                    [short, even, next],
                    "{short:#x}"
                );
            }
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

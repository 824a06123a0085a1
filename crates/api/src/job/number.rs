//! Numbers that JSON or YAML can't write as they are: memory with a unit, and measurements that may be NaN.

use std::fmt;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// A measured value. It is written as a string, because JSON has neither NaN nor infinity.
#[derive(Clone, Copy, Debug)]
pub struct FloatString(pub f64);

/// Treats NaN as equal to itself, so that an unchanged status with a NaN compares equal and is not written again.
impl PartialEq for FloatString {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0 || (self.0.is_nan() && other.0.is_nan())
    }
}

impl FloatString {
    /// Returns the value with at most `digits` digits after the point, for people. The result is never a negative zero.
    pub fn rounded(self, digits: usize) -> Self {
        Self(format!("{:.digits$}", self.0).parse().unwrap_or(self.0) + 0.0)
    }
}

impl fmt::Display for FloatString {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Serialize for FloatString {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for FloatString {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        f64::from_str(&text).map(Self).map_err(|_| de::Error::custom(format!("`{text}` is not a number")))
    }
}

impl JsonSchema for FloatString {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "FloatString".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string" })
    }
}

/// The largest count of steps or attempts that is accepted. A JSON reader that uses doubles still represents it
/// exactly.
const MAX_COUNT: u64 = (1 << 53) - 1;

/// Reads a count of steps or attempts that another program wrote: a stage, or a client that can write the status. A
/// count above [`MAX_COUNT`] is an error.
pub(crate) fn count<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    let count = u64::deserialize(deserializer)?;
    match count <= MAX_COUNT {
        true => Ok(count),
        false => {
            Err(de::Error::custom(format!("{count} is above {MAX_COUNT}, the largest count of steps or attempts")))
        }
    }
}

/// Like [`count`], for a field that may be absent.
pub(crate) fn optional_count<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    #[derive(Deserialize)]
    struct Count(#[serde(deserialize_with = "count")] u64);
    Ok(Option::<Count>::deserialize(deserializer)?.map(|Count(count)| count))
}

/// The schema of an exit code of a failure.
pub(super) struct FailureExitCode;

impl JsonSchema for FailureExitCode {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "FailureExitCode".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "integer",
            "format": "int32",
            "minimum": 1,
            "maximum": 255,
            "x-expected": "exit codes of a failure are 1 to 255",
        })
    }
}

/// An amount of memory as Kubernetes writes it: `40Gi`, `500M`, `"1073741824"`. A YAML number is accepted and kept as
/// text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Quantity(pub String);

impl<'de> Deserialize<'de> for Quantity {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = Quantity;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("an amount of memory: 40Gi, 500Mi or plain bytes")
            }

            fn visit_u64<E: de::Error>(self, bytes: u64) -> Result<Quantity, E> {
                Ok(Quantity(bytes.to_string()))
            }

            fn visit_i64<E: de::Error>(self, bytes: i64) -> Result<Quantity, E> {
                Ok(Quantity(bytes.to_string()))
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Quantity, E> {
                Ok(Quantity(text.to_owned()))
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

impl JsonSchema for Quantity {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Quantity".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "x-kubernetes-int-or-string": true, "minimum": 1, "maxLength": 64 })
    }
}

impl Quantity {
    /// Returns the number of bytes, rounded down, or `None` if the text is not a quantity of bytes.
    pub fn bytes(&self) -> Option<u64> {
        const UNITS: [(&str, f64); 13] = [
            ("Ki", 1024.0),
            ("Mi", 1_048_576.0),
            ("Gi", 1_073_741_824.0),
            ("Ti", 1_099_511_627_776.0),
            ("Pi", 1_125_899_906_842_624.0),
            ("Ei", 1_152_921_504_606_846_976.0),
            ("k", 1e3),
            ("M", 1e6),
            ("G", 1e9),
            ("T", 1e12),
            ("P", 1e15),
            ("E", 1e18),
            ("", 1.0),
        ];
        let (digits, unit) = UNITS.iter().find_map(|(suffix, unit)| Some((self.0.strip_suffix(suffix)?, unit)))?;
        if !digits.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.') {
            return None;
        }
        // A realistic value is far below 2^53, so f64 represents it exactly. The cast saturates.
        Some((digits.parse::<f64>().ok()? * unit) as u64)
    }
}

//! The bounds that a schema sets for a number.

use std::fmt;

use serde_json::{Number, Value};

/// The range of a number.
pub(crate) struct Bounds {
    pub(crate) least: Option<Bound>,
    pub(crate) most: Option<Bound>,
    is_whole: bool,
}

/// A bound of a number, or of the length of a text or list.
pub(crate) struct Bound {
    pub(crate) value: f64,
    /// Whether the bound itself is out of range.
    pub(crate) is_exclusive: bool,
}

impl Bounds {
    /// Returns the bounds in the schema of a number.
    pub(crate) fn of(schema: &Value) -> Self {
        let bound = |key: &str, exclusive: &str| {
            schema[key].as_f64().map(|value| Bound { value, is_exclusive: schema[exclusive] == true })
        };
        let (least, most) = (bound("minimum", "exclusiveMinimum"), bound("maximum", "exclusiveMaximum"));
        // `u32::MAX` is a bound of the type, not of the field
        let most = most.filter(|most| most.value != f64::from(u32::MAX));
        Self { least, most, is_whole: schema["type"] == "integer" }
    }

    /// Whether a number is within the bounds.
    pub(crate) fn hold(&self, number: &Number) -> bool {
        let value = number.as_f64().unwrap_or(f64::NAN);
        let above = |bound: &Bound| if bound.is_exclusive { value > bound.value } else { value >= bound.value };
        let below = |bound: &Bound| if bound.is_exclusive { value < bound.value } else { value <= bound.value };
        self.least.as_ref().is_none_or(above) && self.most.as_ref().is_none_or(below)
    }
}

/// Displays the end of a message about a number outside the range.
impl fmt::Display for Bounds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.least, &self.most) {
            (Some(least), Some(most)) => {
                let (from, least_value, most_value) =
                    (if least.is_exclusive { "above" } else { "from" }, least.value, most.value);
                let to = match (least.is_exclusive, most.is_exclusive) {
                    (true, true) => "and below",
                    (true, false) => "and at most",
                    (false, true) => "to below",
                    (false, false) => "to",
                };
                write!(f, "it must be {from} {least_value} {to} {most_value}")
            }
            (Some(Bound { value, is_exclusive: true }), None) => write!(f, "it must be a number above {value}"),
            (Some(Bound { value, .. }), None) if self.is_whole => write!(f, "it must be at least {value}"),
            (Some(Bound { value, .. }), None) => write!(f, "it must be {value} or more"),
            (None, Some(most)) => write!(f, "it must be at most {}", most.value),
            (None, None) => f.write_str("it must be a finite number"),
        }
    }
}

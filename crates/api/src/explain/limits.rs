//! The limits of a value in words: `1 to 256`, `above 0`, `at least 1 item`.

use serde_json::Value;

use crate::crd::{Bound, Bounds, EXPECTED};

/// Returns the limits of a value, of a list's items and of a map's values. The first limit ends with the text of the
/// keyword `x-expected`, which is also the end of the message that refuses a value.
pub(super) fn limits(schema: &Value) -> Vec<String> {
    let bounds = Bounds::of(schema);
    let number = range(bounds.least, bounds.most);
    let pattern = schema["pattern"].as_str().map(|pattern| format!("text that matches {pattern}"));
    let own = [number, size(schema, "Length", "character"), size(schema, "Items", "item"), pattern];
    let mut limits: Vec<String> = own.into_iter().flatten().collect();
    if let (Some(first), Some(expected)) = (limits.first_mut(), schema[EXPECTED].as_str()) {
        first.push_str("; ");
        first.push_str(expected);
    }
    for (key, each) in [("items", "each item"), ("additionalProperties", "each value")] {
        let inside = schema.get(key).map(self::limits).unwrap_or_default();
        limits.extend(inside.into_iter().map(|limit| format!("{each}: {limit}")));
    }
    limits
}

fn range(least: Option<Bound>, most: Option<Bound>) -> Option<String> {
    let text = |bound: &Bound, inclusive: &str, exclusive: &str| {
        format!("{} {}", if bound.is_exclusive { exclusive } else { inclusive }, bound.value)
    };
    match (least, most) {
        (Some(least), Some(most)) if !least.is_exclusive && !most.is_exclusive => {
            Some(format!("{} to {}", least.value, most.value))
        }
        (Some(least), Some(most)) => {
            Some(format!("{} and {}", text(&least, "at least", "above"), text(&most, "at most", "below")))
        }
        (Some(least), None) => Some(text(&least, "at least", "above")),
        (None, Some(most)) => Some(text(&most, "at most", "below")),
        (None, None) => None,
    }
}

/// Returns the limits of the length of a text or list, in `unit`.
fn size(schema: &Value, key: &str, unit: &str) -> Option<String> {
    let bound = |side: &str| schema[format!("{side}{key}")].as_f64().map(|value| Bound { value, is_exclusive: false });
    let (least, most) = (bound("min"), bound("max"));
    let last = most.as_ref().or(least.as_ref())?.value;
    let plural = if last == 1.0 { "" } else { "s" };
    range(least, most).map(|range| format!("{range} {unit}{plural}"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn limits_are_words() {
        for (schema, expected) in [
            (json!({"minimum": 1, "maximum": 256}), vec!["1 to 256"]),
            (json!({"minimum": 1, "maximum": u32::MAX}), vec!["at least 1"]),
            (json!({"minimum": 0, "exclusiveMinimum": true}), vec!["above 0"]),
            (json!({"minimum": 0, "exclusiveMinimum": true, "maximum": 1}), vec!["above 0 and at most 1"]),
            (json!({"minimum": 0, "maximum": 1, "exclusiveMaximum": true}), vec!["at least 0 and below 1"]),
            (json!({"minLength": 1}), vec!["at least 1 character"]),
            (json!({"maxLength": 64, "minimum": 1}), vec!["at least 1", "at most 64 characters"]),
            (json!({"minItems": 1, "x-expected": "list one"}), vec!["at least 1 item; list one"]),
            (
                json!({"maxItems": 9, "items": {"maxLength": 5, "x-expected": "be short"}}),
                vec!["at most 9 items", "each item: at most 5 characters; be short"],
            ),
            (json!({"additionalProperties": {"pattern": "^a$"}}), vec!["each value: text that matches ^a$"]),
            (json!({"type": "string"}), vec![]),
        ] {
            assert_eq!(limits(&schema), expected, "{schema}");
        }
    }
}

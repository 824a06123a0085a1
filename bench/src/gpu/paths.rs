//! Shortens the paths in reports. Reports are committed, and must not contain folders of the measured machine.

use serde_json::Value;

/// Replaces each absolute path in the report's texts by its last component.
pub(super) fn shorten(report: &mut Value) {
    match report {
        Value::String(text) => *text = without_folders(text),
        Value::Array(items) => items.iter_mut().for_each(shorten),
        Value::Object(fields) => fields.values_mut().for_each(shorten),
        _ => {}
    }
}

fn without_folders(text: &str) -> String {
    let is_of_name = |c: char| c.is_alphanumeric() || "._-+@~".contains(c);
    let mut shortened = String::new();
    let mut rest = text;
    while let Some(slash) = rest.find('/') {
        let (before, path) = rest.split_at(slash);
        shortened += before;
        let end = path.find(|c: char| c != '/' && !is_of_name(c)).unwrap_or(path.len());
        let (path, after) = path.split_at(end);
        // `tokens/s` and `https://host` are no paths
        let is_absolute = !before.ends_with(|c: char| is_of_name(c) || c == ':') && path[1..].starts_with(is_of_name);
        shortened += if is_absolute { path.trim_end_matches('/').rsplit('/').next().unwrap_or(path) } else { path };
        rest = after;
    }
    shortened + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_of_the_machine_are_left_out() {
        for (text, shortened) in [
            ("200 tokens/s, see https://pytorch.org/docs", "200 tokens/s, see https://pytorch.org/docs"),
            ("no /srv/a-b/lib.so: (/tmp/x_1/)", "no lib.so: (x_1)"),
            ("File \"/home/me/llama.py\", line 3", "File \"llama.py\", line 3"),
            ("NVIDIA H100 / CUDA, trainer/src/gpu.rs", "NVIDIA H100 / CUDA, trainer/src/gpu.rs"),
        ] {
            assert_eq!(without_folders(text), shortened);
        }
    }
}

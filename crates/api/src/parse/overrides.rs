//! `--set path=value`: puts a value into the tree before the tree is decoded, so that the deserialization refuses a bad
//! value.

use super::error::{DecodeError, LocatedError};
use super::tree::{Key, Position, Value, YamlNode};

/// The fields at the root. Any other first segment is a field of the spec.
const ROOTS: [&str; 3] = ["spec", "metadata", "status"];

pub(super) fn apply(root: &mut YamlNode, overrides: &[(String, String)]) -> Result<(), LocatedError> {
    for (index, (path, value)) in overrides.iter().enumerate() {
        let position = Position::Override(index);
        let mut segments = segments(path).ok_or_else(|| {
            let what = "a path is made of names and list positions: `training.steps` or `data.paths[0]`";
            LocatedError::at(position, DecodeError::Other(what.into()))
        })?;
        if !ROOTS.contains(&segments[0].as_str()) {
            segments.insert(0, "spec".into());
        }
        let mut node =
            YamlNode::from_yaml(value).map_err(|error| LocatedError { position: Some(position), ..error })?;
        node.move_to(position);
        put(root, &segments, node, position)?;
    }
    Ok(())
}

/// Returns the segments of a path: `data.paths[0]` and `data.paths.0` both have the segments data, paths and 0. Returns
/// `None` if a segment is empty.
fn segments(path: &str) -> Option<Vec<String>> {
    let segments: Vec<String> = path.replace('[', ".").replace(']', "").split('.').map(str::to_owned).collect();
    segments.iter().all(|segment| !segment.is_empty()).then_some(segments)
}

fn put(node: &mut YamlNode, segments: &[String], value: YamlNode, position: Position) -> Result<(), LocatedError> {
    let Some((first, rest)) = segments.split_first() else {
        *node = value;
        return Ok(());
    };
    if matches!(node.value, Value::Null) {
        node.value = Value::Map(Vec::new());
    }
    match &mut node.value {
        Value::List(items) => {
            let length = items.len();
            let index = first.parse::<usize>().ok().filter(|index| *index <= length);
            let Some(index) = index else {
                let plural = if length == 1 { "" } else { "s" };
                let what = format!(
                    "there is no item `{first}`: the list has {length} item{plural}, and an index from 0 to {length} \
                     can be set ({length} appends an item)"
                );
                return Err(LocatedError::at(position, DecodeError::Other(what)));
            };
            if index == length {
                items.push(YamlNode { value: Value::Null, position });
            }
            put(&mut items[index], rest, value, position).map_err(|error| error.under(format!("[{index}]")))
        }
        Value::Map(entries) => {
            let index = entries.iter().position(|(key, _)| key.name == *first).unwrap_or_else(|| {
                entries.push((Key { name: first.clone(), position }, YamlNode { value: Value::Null, position }));
                entries.len() - 1
            });
            let (key, node) = &mut entries[index];
            if rest.is_empty() {
                key.position = position;
            }
            put(node, rest, value, position).map_err(|error| error.under(first))
        }
        other => {
            let what = format!("found {}, which has no field `{first}`", other.describe());
            Err(LocatedError::at(position, DecodeError::Other(what)))
        }
    }
}

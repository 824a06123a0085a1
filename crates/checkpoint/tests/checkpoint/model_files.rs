//! Tests reads of Hugging Face model directories: tensors are read by offset, and errors name the file.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use stagecoach_checkpoint::{CheckpointError, Dtype, ModelFiles};
use tempfile::TempDir;

const SHARD: &str = "model-00002-of-00002.safetensors";

/// Returns the bytes of a safetensors file with this header.
fn file(header: &Value, data: &[u8]) -> Vec<u8> {
    let json = header.to_string();
    [&(json.len() as u64).to_le_bytes(), json.as_bytes(), data].concat()
}

fn one(dtype: &str, shape: Value, from: usize, to: usize) -> Value {
    json!({"dtype": dtype, "shape": shape, "data_offsets": [from, to]})
}

/// Creates a directory with two shards and an index. The second shard has the 6 bytes of `x`, then the 8 bytes of `y`.
fn sharded() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let map = json!({"a": "model-00001-of-00002.safetensors", "x": SHARD, "y": SHARD});
    write(&folder, "model.safetensors.index.json", json!({"metadata": {}, "weight_map": map}).to_string().as_bytes());
    let first = json!({"__metadata__": {"format": "pt"}, "a": one("F32", json!([]), 0, 4)});
    write(&folder, "model-00001-of-00002.safetensors", &file(&first, &1f32.to_le_bytes()));
    write(&folder, SHARD, &second(one("BF16", json!([3]), 0, 6), one("F32", json!([1, 2]), 6, 14)));
    folder
}

fn second(x: Value, y: Value) -> Vec<u8> {
    let data: Vec<u8> = (1..=14).collect();
    file(&json!({"x": x, "y": y}), &data)
}

fn write(folder: &TempDir, name: &str, bytes: &[u8]) {
    fs::write(folder.path().join(name), bytes).unwrap();
}

fn refusal(folder: &Path) -> String {
    ModelFiles::open(folder).unwrap_err().to_string()
}

#[test]
fn shards_are_read_by_offset() {
    let folder = sharded();
    let files = ModelFiles::open(folder.path()).unwrap();
    assert_eq!(files.names().collect::<Vec<_>>(), ["a", "x", "y"]);
    let kind = files.tensor("x").unwrap();
    assert_eq!((kind.dtype, kind.shape.as_slice()), (Dtype::BF16, &[3][..]));
    assert_eq!(files.tensor("y").unwrap().to_string(), "F32[1, 2]");
    assert_eq!(files.tensor("z"), None);
    assert_eq!(files.read("x").unwrap(), [1, 2, 3, 4, 5, 6]);
    assert_eq!(files.read_f32("x").unwrap(), [0, 0, 1, 2, 0, 0, 3, 4, 0, 0, 5, 6]);
    assert_eq!(files.read("y").unwrap(), (7..=14).collect::<Vec<u8>>());
    assert_eq!(files.read_f32("a").unwrap(), 1f32.to_le_bytes());
    assert!(files.read("z").unwrap_err().to_string().ends_with("has no tensor z"));
    // the file is truncated after it was opened
    let shard = fs::File::options().write(true).open(folder.path().join(SHARD)).unwrap();
    shard.set_len(100).unwrap();
    assert!(matches!(files.read("y"), Err(CheckpointError::Io { path, .. }) if path.ends_with(SHARD)));
}

#[test]
fn a_single_file_needs_no_index() {
    let folder = tempfile::tempdir().unwrap();
    assert!(refusal(folder.path()).contains("neither model.safetensors.index.json nor model.safetensors"));
    assert!(refusal(&folder.path().join("x")).contains("is not a folder"));
    write(&folder, "model.safetensors", &file(&json!({"i": one("I64", json!([1]), 0, 8)}), &[7; 8]));
    let files = ModelFiles::open(folder.path()).unwrap();
    assert_eq!(files.read("i").unwrap(), [7; 8]);
    let message = files.read_f32("i").unwrap_err().to_string();
    assert!(message.contains("has i in a type other than"), "{message}");
}

/// Transformers also prefers a single file to an index.
#[test]
fn a_single_file_comes_before_an_index() {
    let folder = sharded();
    assert_eq!(ModelFiles::open(folder.path()).unwrap().note(), None);
    write(&folder, "model.safetensors", &file(&json!({"i": one("I64", json!([1]), 0, 8)}), &[7; 8]));
    let files = ModelFiles::open(folder.path()).unwrap();
    assert_eq!(files.names().collect::<Vec<_>>(), ["i"]);
    let note = files.note().unwrap();
    assert!(
        note.contains("has model.safetensors beside model.safetensors.index.json: the single file is read"),
        "{note}"
    );
    // the index may be left over from an earlier save whose shards are gone
    fs::remove_file(folder.path().join(SHARD)).unwrap();
    ModelFiles::open(folder.path()).unwrap();
}

#[test]
fn weights_in_other_formats_and_adapters_are_refused_by_their_file() {
    let folder = tempfile::tempdir().unwrap();
    write(&folder, "pytorch_model.bin", b"PK");
    assert!(
        refusal(folder.path())
            .contains("has its weights in pytorch_model.bin, and this trainer reads safetensors only")
    );
    let folder = sharded();
    write(&folder, "adapter_config.json", b"{}");
    assert!(refusal(folder.path()).contains("holds an adapter (adapter_config.json)"));
}

#[test]
fn tensors_are_compared_by_type_and_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let count = (1 << 20) + 3; // more bytes than one block of the comparison
    let (mut data, shape) = (vec![1; 4 * count], json!([count]));
    data[3 * count - 1] = 2;
    let part = |at: usize| one("U8", shape.clone(), at * count, (at + 1) * count);
    let mut header = json!({"a": part(0), "b": part(1), "other bytes": part(2)});
    header["other type"] = one("I8", shape.clone(), 3 * count, 4 * count);
    write(&folder, "model.safetensors", &file(&header, &data));
    let files = ModelFiles::open(folder.path()).unwrap();
    let equal = ["a", "b", "other bytes", "other type"].map(|name| files.are_equal("a", name).unwrap());
    assert_eq!(equal, [true, true, false, false]);
    assert!(files.are_equal("a", "c").is_err());
}

#[test]
fn a_missing_or_incomplete_shard_is_named() {
    let folder = sharded();
    fs::remove_file(folder.path().join(SHARD)).unwrap();
    assert!(refusal(folder.path()).contains(SHARD));
    fs::create_dir(folder.path().join(SHARD)).unwrap();
    assert!(refusal(folder.path()).contains(&format!("{SHARD}: is a folder")));
    fs::remove_dir(folder.path().join(SHARD)).unwrap();
    write(&folder, SHARD, &file(&json!({"x": one("F32", json!([1]), 0, 4)}), &[0; 4]));
    assert!(refusal(folder.path()).contains(&format!("{SHARD}: lacks y")));
}

#[test]
fn an_index_cannot_name_files_outside_the_folder() {
    let folder = sharded();
    for shard in ["../x.safetensors", "/etc/passwd", "a/b", "..", ""] {
        let index = json!({"weight_map": {"x": shard}}).to_string();
        write(&folder, "model.safetensors.index.json", index.as_bytes());
        let message = refusal(folder.path());
        assert!(message.contains(&format!("names the shard {shard:?}")), "{message}");
    }
    write(&folder, "model.safetensors.index.json", b"[]");
    assert!(refusal(folder.path()).contains("index.json: is no index of weights"));
}

#[test]
fn invalid_headers_are_rejected() {
    let good = one("F32", json!([1, 2]), 6, 14);
    let x = one("BF16", json!([3]), 0, 6);
    for (bytes, words) in [
        (vec![1, 2, 3], "has 3 bytes, too few"),
        ([&u64::MAX.to_le_bytes()[..], b"{}"].concat(), "announces a header of 18446744073709551615 bytes"),
        ([&(1u64 << 40).to_le_bytes()[..], b"{}"].concat(), "announces a header of"),
        ([&9u64.to_le_bytes()[..], b"{}"].concat(), "is cut off in its header: it has 10 bytes, the header ends at 17"),
        ([&2u64.to_le_bytes()[..], b"xy"].concat(), "has an invalid safetensors header (expected value"),
        (file(&json!([1]), &[]), "has an invalid safetensors header (invalid type: sequence"),
        (second(json!(3), good.clone()), "has an invalid safetensors header (invalid type: integer"),
        (second(one("F7", json!([3]), 0, 6), good.clone()), "(unknown variant `F7`"),
        (second(one("BF16", json!([-3]), 0, 6), good.clone()), "(invalid value: integer `-3`"),
        (second(x.clone(), one("F32", json!([1, 2]), 7, 15)), "(invalid offset for tensor `y`)"),
        (second(one("BF16", json!([3]), 6, 0), good.clone()), "(invalid offset for tensor"),
        (second(x.clone(), one("F32", json!([2, 2]), 6, 14)), "(invalid shape, data type, or offset"),
        (second(one("BF16", json!([u64::MAX, 8]), 0, 6), good.clone()), "(overflow"),
        (second(x.clone(), one("F32", json!([1, 3]), 6, 18)), "holds 14 bytes of tensors, and its header describes 18"),
    ] {
        let folder = sharded();
        write(&folder, SHARD, &bytes);
        let message = refusal(folder.path());
        assert!(message.contains(words) && message.contains(SHARD), "{message}");
    }
    // the file is truncated to every shorter length
    let whole = second(x, good);
    for length in 0..whole.len() {
        let folder = sharded();
        write(&folder, SHARD, &whole[..length]);
        assert!(refusal(folder.path()).contains(SHARD));
    }
}

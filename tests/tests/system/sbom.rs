//! The software bill of materials (SBOM) of an image.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

/// Returns the SBOM of a package, as `scripts/sbom.py` writes it.
fn sbom(package: &str, requirements: &[&str]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("sbom.json");
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut command = Command::new(root.join("scripts/sbom.py"));
    let made = command.current_dir(root).arg(package).arg(&file).args(requirements).output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    std::fs::read_to_string(file).unwrap()
}

#[test]
fn an_image_lists_what_its_binary_is_linked_from() {
    let text = sbom("stagecoach", &["scripts/libtorch.txt"]);
    assert_eq!(text, sbom("stagecoach", &["scripts/libtorch.txt"]), "the same sources give the same bytes");
    let list: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((&list["bomFormat"], &list["specVersion"]), (&json!("CycloneDX"), &json!("1.6")));
    assert_eq!(list["metadata"]["component"]["name"], "stagecoach");
    let components = list["components"].as_array().unwrap();
    let find = |name: &str| components.iter().find(|component| component["name"] == name);
    let lock = include_str!("../../../Cargo.lock");
    for name in ["serde", "tch", "safetensors"] {
        let component = find(name).unwrap_or_else(|| panic!("{name} is not listed"));
        let digest = component["hashes"][0]["content"].as_str().unwrap();
        assert!(lock.contains(&format!("checksum = \"{digest}\"")), "{component}");
        assert!(component["licenses"][0]["expression"].is_string(), "{component}");
    }
    assert_eq!(find("torch").unwrap()["purl"], "pkg:pypi/torch@2.11.0");
    // the SBOM does not list packages that only tests or only the operator link
    for name in ["proptest", "kube", "k8s-openapi"] {
        assert_eq!(find(name), None);
    }
    // the SBOM lists both ends of every dependency
    let listed: Vec<&Value> =
        components.iter().chain([&list["metadata"]["component"]]).map(|c| &c["bom-ref"]).collect();
    for edge in list["dependencies"].as_array().unwrap() {
        let others = edge["dependsOn"].as_array().unwrap().iter().chain([&edge["ref"]]);
        assert!(others.into_iter().all(|other| listed.contains(&other)), "{edge}");
    }
}

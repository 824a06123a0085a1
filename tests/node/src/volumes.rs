//! Folders of the machine as volumes of pods: shared by many, and small ones to fill.

use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};

use serde_json::json;

use super::TestNode;
use super::place::{NAME, USER};
use super::{machine, mounts};
use stagecoach_cluster::until;

/// The capacity that volumes claim; nothing enforces it.
const SIZE: &str = "10Gi";

/// A file system of a given size, made for a test. Unmounted and deleted when dropped, and by `down`.
#[derive(Debug)]
pub struct SmallDisk {
    folder: PathBuf,
    image: PathBuf,
}

impl SmallDisk {
    /// The path at which the volume is mounted.
    pub fn path(&self) -> &Path {
        &self.folder
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = mounts::unmount(&self.folder);
        let _ = std::fs::remove_dir(&self.folder);
        let _ = std::fs::remove_file(&self.image);
    }
}

impl TestNode {
    /// An empty folder on the machine that containers may write to.
    ///
    /// # Panics
    /// If there is one of this name.
    #[track_caller]
    pub fn shared_folder(&self, name: &str) -> PathBuf {
        let folder = self.place.at("volumes").join(name);
        std::fs::create_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
        give_to_containers(&folder);
        folder
    }

    /// A file system (ext4) of `mebibytes` that containers may write to.
    ///
    /// # Panics
    /// If it can't be made or mounted.
    #[track_caller]
    pub fn small_disk(&self, name: &str, mebibytes: u64) -> SmallDisk {
        let folder = self.shared_folder(name);
        let image = folder.with_extension("ext4");
        let file = std::fs::File::create_new(&image).unwrap();
        file.set_len(mebibytes << 20).unwrap();
        let disk = SmallDisk { folder, image };
        let (image, folder) = (disk.image.to_str().unwrap(), disk.folder.to_str().unwrap());
        // without a reserve for root, which containers are not
        machine::call("mkfs.ext4", &["-q", "-m", "0", image], "").unwrap();
        machine::call("mount", &["-o", "loop", image, folder], "").unwrap();
        give_to_containers(&disk.folder);
        disk
    }

    /// A `ReadWriteMany` volume `name` that is `folder`, for the claim `claim` of a namespace alone, or for any that
    /// names no storage class. Size is nominal.
    ///
    /// # Panics
    /// If it is refused.
    #[track_caller]
    pub fn volume(&self, name: &str, folder: &Path, claim: Option<(&str, &str)>) {
        let here = json!({"key": "kubernetes.io/hostname", "operator": "In", "values": [NAME]});
        let volume = json!({
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": name},
            "spec": {
                "capacity": {"storage": SIZE},
                "accessModes": ["ReadWriteMany"],
                "persistentVolumeReclaimPolicy": "Retain",
                "storageClassName": "",
                "claimRef": claim.map(|(namespace, name)| json!({"namespace": namespace, "name": name})),
                "hostPath": {"path": folder, "type": "Directory"},
                "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [here]}]}},
            },
        });
        let created = self.client.create("/api/v1/persistentvolumes", &volume);
        created.unwrap_or_else(|refusal| panic!("{name}: {refusal}"));
    }

    /// The claim `claim` in `namespace` on a volume of its own that is `folder`; returns when it is bound.
    ///
    /// # Panics
    /// If it is refused or not bound.
    #[track_caller]
    pub fn claim(&self, namespace: &str, claim: &str, folder: &Path) {
        let volume = format!("{namespace}-{claim}");
        self.volume(&volume, folder, Some((namespace, claim)));
        let request = json!({
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": claim, "namespace": namespace},
            "spec": {
                "accessModes": ["ReadWriteMany"],
                "storageClassName": "",
                "volumeName": volume,
                "resources": {"requests": {"storage": SIZE}},
            },
        });
        let claims = format!("/api/v1/namespaces/{namespace}/persistentvolumeclaims");
        self.client.create(&claims, &request).unwrap_or_else(|refusal| panic!("{claim}: {refusal}"));
        until(&format!("the claim {claim} to be bound"), 60, || {
            (self.client.get(&format!("{claims}/{claim}"))?["status"]["phase"] == "Bound").then_some(())
        });
    }
}

/// Read and written by those who containers run as, and by nobody else.
fn give_to_containers(folder: &Path) {
    chown(folder, Some(USER), Some(USER)).unwrap();
    std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o2770)).unwrap();
}

//! Folders of the machine as volumes of pods: shared folders, and small file systems that tests fill.

use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};

use serde_json::json;

use super::TestNode;
use super::place::{NAME, USER};
use super::{machine, mounts};
use stagecoach_cluster::until;

/// The capacity in the objects of volumes. Nothing enforces it.
const SIZE: &str = "10Gi";

/// A file system of a given size for a test. Dropping this value, or `down`, unmounts and deletes the file system.
#[derive(Debug)]
pub struct SmallDisk {
    folder: PathBuf,
    image: PathBuf,
}

impl SmallDisk {
    /// Returns the path at which the file system is mounted.
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
    /// Creates an empty folder on the machine to which containers can write.
    ///
    /// # Panics
    /// If a folder of this name exists.
    #[track_caller]
    pub fn shared_folder(&self, name: &str) -> PathBuf {
        let folder = self.place.at("volumes").join(name);
        std::fs::create_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
        give_to_containers(&folder);
        folder
    }

    /// Creates an ext4 file system of `mebibytes` MiB to which containers can write.
    ///
    /// # Panics
    /// If the file system can't be made or mounted.
    #[track_caller]
    pub fn small_disk(&self, name: &str, mebibytes: u64) -> SmallDisk {
        let folder = self.shared_folder(name);
        let image = folder.with_extension("ext4");
        let file = std::fs::File::create_new(&image).unwrap();
        file.set_len(mebibytes << 20).unwrap();
        let disk = SmallDisk { folder, image };
        let (image, folder) = (disk.image.to_str().unwrap(), disk.folder.to_str().unwrap());
        // the file system reserves no blocks for root, since containers don't run as root
        machine::call("mkfs.ext4", &["-q", "-m", "0", image], "").unwrap();
        machine::call("mount", &["-o", "loop", image, folder], "").unwrap();
        give_to_containers(&disk.folder);
        disk
    }

    /// Creates a `ReadWriteMany` volume `name` from `folder`. `claim` is the namespace and name of its claim. With
    /// `None`, any claim without a storage class can bind the volume. Nothing enforces the volume's size.
    ///
    /// # Panics
    /// If the API server refuses the volume.
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

    /// Creates the claim `claim` in `namespace`, on a new volume from `folder`. Returns when the claim is bound.
    ///
    /// # Panics
    /// If the API server refuses the claim or does not bind it.
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
        until(&format!("the claim {claim} to be bound"), || {
            (self.client.get(&format!("{claims}/{claim}"))?["status"]["phase"] == "Bound").then_some(())
        });
    }
}

/// Makes the user and group of containers the owner of a folder, which no other user can use.
fn give_to_containers(folder: &Path) {
    chown(folder, Some(USER), Some(USER)).unwrap();
    std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o2770)).unwrap();
}

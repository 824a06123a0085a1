//! The access to a cluster that a Kueue outside the cluster needs.

use std::path::{Path, PathBuf};

use serde_json::json;

use crate::certificates::write_kubeconfig;
use crate::client::Client;
use crate::kubectl::Kubectl;

/// The access to a cluster for a Kueue that runs outside the cluster, as a process of this machine.
#[derive(Clone, Debug)]
pub struct KueueCluster<'a> {
    /// The administrator's client.
    pub client: &'a Client,
    /// The administrator's kubectl.
    pub kubectl: &'a Kubectl,
    /// The folder with the certificate authority. Kueue's files are in its subfolder `kueue`.
    pub folder: &'a Path,
    /// The API server's address.
    pub url: String,
}

impl KueueCluster<'_> {
    /// Writes a kubeconfig with the rights of a service account, and returns the file's path. The token in the
    /// kubeconfig is valid for an hour.
    ///
    /// # Panics
    /// If the account does not exist.
    #[track_caller]
    pub fn service_account_kubeconfig(&self, namespace: &str, name: &str) -> PathBuf {
        let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token");
        let request = json!({"spec": {"expirationSeconds": 3600}});
        let answer = self.client.create(&path, &request).unwrap_or_else(|refusal| panic!("{path}: {refusal}"));
        let user = json!({"token": answer["status"]["token"]});
        let file = self.folder.join(format!("{namespace}-{name}.kubeconfig"));
        let cluster = json!({"server": self.url, "certificate-authority": self.folder.join("ca.crt")});
        write_kubeconfig(&file, cluster, &user);
        file
    }
}

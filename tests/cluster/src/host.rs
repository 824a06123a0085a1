//! The cluster in which a controller runs as a process of this machine.

use std::path::{Path, PathBuf};

use serde_json::json;

use crate::certificates::write_kubeconfig;
use crate::client::Client;
use crate::kubectl::Kubectl;

/// The cluster in which Kueue runs.
#[derive(Clone, Debug)]
pub struct Host<'a> {
    /// The administrator's client.
    pub client: &'a Client,
    /// The administrator's kubectl.
    pub kubectl: &'a Kubectl,
    /// The folder with the certificate authority, in which the controller has a folder `kueue` of its own.
    pub folder: &'a Path,
    /// The API server's address.
    pub url: String,
}

impl Host<'_> {
    /// A kubeconfig with the rights of a service account. Its token is valid for an hour.
    ///
    /// # Panics
    /// If there is no such account.
    #[track_caller]
    pub fn service_account_kubeconfig(&self, namespace: &str, name: &str) -> PathBuf {
        let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token");
        let request = json!({"spec": {"expirationSeconds": 3600}});
        let answer = self.client.create(&path, &request).unwrap_or_else(|refusal| panic!("{path}: {refusal}"));
        let user = json!({"token": answer["status"]["token"]});
        let file = self.folder.join(format!("{namespace}-{name}.kubeconfig"));
        write_kubeconfig(&file, &self.url, &self.folder.join("ca.crt"), &user);
        file
    }
}

//! The cluster's certificates, and the kubeconfigs that contain them.

use std::net::{IpAddr, Ipv4Addr, SocketAddrV4};
use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose, SanType,
};
use serde_json::{Value, json};

/// A certificate authority for one control plane.
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    folder: PathBuf,
}

impl Authority {
    /// Creates an authority. Writes its certificate `ca.crt` to `folder`, and the key pair `sa.key` and `sa.pub`, with
    /// which the API server signs and verifies service account tokens.
    pub fn new(folder: &Path) -> Authority {
        let mut params = subject("stagecoach-cluster", None);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        write(&folder.join("ca.crt"), &issuer.pem());
        let tokens = KeyPair::generate().unwrap();
        write(&folder.join("sa.key"), &tokens.serialize_pem());
        write(&folder.join("sa.pub"), &tokens.public_key_pem());
        Authority { issuer, folder: folder.to_owned() }
    }

    /// Writes `NAME.crt` and `NAME.key` for a server that has these DNS names and addresses.
    pub fn server(&self, name: &str, names: &[&str], addresses: &[Ipv4Addr]) {
        let mut params = subject(name, None);
        let names = names.iter().map(|name| SanType::DnsName((*name).try_into().unwrap()));
        let addresses = addresses.iter().map(|address| SanType::IpAddress(IpAddr::V4(*address)));
        params.subject_alt_names = names.chain(addresses).collect();
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        self.sign(name, &params);
    }

    /// Writes `NAME.crt` and `NAME.key` for a client that authenticates as `user`, and as a member of `group` unless
    /// `group` is `None`. Returns the `user` entry of a kubeconfig.
    pub fn client(&self, name: &str, user: &str, group: Option<&str>) -> Value {
        let mut params = subject(user, group);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let (certificate, key) = self.sign(name, &params);
        json!({"client-certificate": certificate, "client-key": key})
    }

    /// Like [`Authority::client`]. Also writes `NAME.kubeconfig`, whose cluster is the API server at `server`.
    pub fn kubeconfig(&self, name: &str, user: &str, group: Option<&str>, server: &str) {
        let user = self.client(name, user, group);
        let cluster = json!({"server": server, "certificate-authority": self.folder.join("ca.crt")});
        write_kubeconfig(&self.folder.join(format!("{name}.kubeconfig")), cluster, &user);
    }

    fn sign(&self, name: &str, params: &CertificateParams) -> (PathBuf, PathBuf) {
        let file = |suffix: &str| self.folder.join(format!("{name}.{suffix}"));
        let key = KeyPair::generate().unwrap();
        write(&file("crt"), &params.signed_by(&key, &self.issuer).unwrap().pem());
        write(&file("key"), &key.serialize_pem());
        (file("crt"), file("key"))
    }
}

/// Writes the files of a control plane into `folder`: certificates, and kubeconfigs for components and the
/// administrator.
pub fn control_plane(folder: &Path, server: SocketAddrV4) -> Authority {
    let authority = Authority::new(folder);
    let names = ["localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"];
    authority.server("apiserver", &names, &[*server.ip(), Ipv4Addr::new(10, 96, 0, 1)]);
    let url = format!("https://{server}");
    authority.kubeconfig("admin", "admin", Some("system:masters"), &url);
    for component in ["kube-controller-manager", "kube-scheduler"] {
        authority.kubeconfig(component, &format!("system:{component}"), None, &url);
    }
    authority
}

/// Writes a kubeconfig with this `cluster` entry and `user` entry. The file is JSON, which is also YAML.
pub(crate) fn write_kubeconfig(file: &Path, cluster: Value, user: &Value) {
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "test", "cluster": cluster}],
        "users": [{"name": "test", "user": user}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test", "namespace": "default"}}],
        "current-context": "test",
    });
    write(file, &config.to_string());
}

fn subject(name: &str, group: Option<&str>) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    if let Some(group) = group {
        params.distinguished_name.push(DnType::OrganizationName, group);
    }
    params
}

fn write(path: &Path, text: &str) {
    std::fs::write(path, text).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
}

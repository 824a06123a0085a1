//! The commands and configurations of a node's processes: containerd, kubelet, kube-proxy, and CoreDNS.

use anyhow::Result;
use serde_json::{Value, json};

use super::cgroups::ROOT;
use super::place::{ADDRESS, CLAIM, NAME, NETWORK, NodeFolder, PODS};
use stagecoach_cluster::tools::tool;

/// The address of the cluster's name server for pods.
pub(crate) const DNS: &str = "10.96.0.10";
/// The port of CoreDNS. It is not 53, since the machine itself may use port 53.
const DNS_PORT: u16 = 10053;
/// The image of every pod's sandbox.
pub(crate) const PAUSE: &str = "localhost/pause:1";
pub(crate) const CONTAINERD: &str = "containerd";
pub(crate) const KUBELET: &str = "kubelet";
pub(crate) const KUBE_PROXY: &str = "kube-proxy";
pub(crate) const COREDNS: &str = "coredns";

/// Returns the command of containerd. All files of containerd are below the node's folder.
///
/// # Errors
/// If its configuration can't be written.
pub(crate) fn containerd(place: &NodeFolder) -> Result<Vec<String>> {
    let at = |name: &str| place.at("containerd").join(name).display().to_string();
    let network = json!({
        "cniVersion": "1.0.0",
        "name": NETWORK,
        // without a bridge, all traffic between two pods passes through the machine, and so through the iptables rules
        // that kube-proxy writes for Services
        "plugins": [{
            "type": "ptp",
            "ipMasq": true,
            "ipam": {
                "type": "host-local",
                "dataDir": at("addresses"),
                "ranges": [[{"subnet": PODS}]],
                "routes": [{"dst": "0.0.0.0/0"}],
            },
        }],
    });
    write(place, "containerd/network/10-node.conflist", &network.to_string())?;
    // `imports` is in the node's folder, so that containerd does not import the machine's settings; the path of a
    // shim's socket must be short, so `socket_dir` begins with CLAIM, a link to the node's folder
    let config = format!(
        r#"version = 3
imports = ["{imports}"]
root = "{root}"
state = "{state}"
[grpc]
  address = "{socket}"
[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "{PAUSE}"
[plugins."io.containerd.cri.v1.runtime"]
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = ["/usr/lib/cni"]
    conf_dir = "{network}"
  [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
      Root = "{runc}"
[plugins."io.containerd.internal.v1.opt"]
  path = "{opt}"
[plugins."io.containerd.nri.v1.nri"]
  disable = true
[plugins."io.containerd.shim.v1.manager"]
  socket_dir = "{CLAIM}/shims"
"#,
        imports = at("imports/*.toml"),
        root = at("root"),
        state = at("state"),
        socket = place.text("containerd.sock"),
        network = at("network"),
        runc = at("runc"),
        opt = at("opt"),
    );
    let file = write(place, "containerd/containerd.toml", &config)?;
    Ok(vec![program(CONTAINERD), "--config".into(), file])
}

/// Returns the command of the kubelet.
///
/// # Errors
/// If its configuration can't be written.
pub(crate) fn kubelet(place: &NodeFolder) -> Result<Vec<String>> {
    // pods use the cluster's name server instead of the machine's
    let names = write(place, "kubelet-resolv.conf", &format!("nameserver {DNS}\n"))?;
    let config = json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": ADDRESS,
        "healthzPort": 0,
        "authentication": {
            "anonymous": {"enabled": false},
            "webhook": {"enabled": true},
            "x509": {"clientCAFile": place.at("ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": place.at("kubelet-server.crt"),
        "tlsPrivateKeyFile": place.at("kubelet-server.key"),
        "containerRuntimeEndpoint": format!("unix://{}", place.text("containerd.sock")),
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": format!("/{ROOT}"),
        "failCgroupV1": false,
        "failSwapOn": false,
        "resolvConf": names,
        "clusterDNS": [DNS],
        "clusterDomain": "cluster.local",
        "podLogsDir": place.logs().join("pods"),
        "volumePluginDir": place.at("kubelet-plugins"),
        // the kubelet does not evict pods when the machine's disk is full, and keeps images, since the node can't fetch
        // them again
        "evictionHard": {"memory.available": "100Mi"},
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "imageMinimumGCAge": "24h",
    });
    let file = write(place, "kubelet.json", &config.to_string())?;
    Ok(vec![
        program(KUBELET),
        format!("--config={file}"),
        format!("--kubeconfig={}", place.text("kubelet.kubeconfig")),
        format!("--hostname-override={NAME}"),
        format!("--node-ip={ADDRESS}"),
        format!("--root-dir={}", place.text("kubelet")),
        format!("--cert-dir={}", place.text("kubelet-pki")),
    ])
}

/// Returns the command of kube-proxy.
///
/// # Errors
/// If its configuration can't be written.
pub(crate) fn kube_proxy(place: &NodeFolder) -> Result<Vec<String>> {
    let config = json!({
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "bindAddress": ADDRESS,
        "healthzBindAddress": format!("{ADDRESS}:10256"),
        "metricsBindAddress": format!("{ADDRESS}:10249"),
        "mode": "iptables",
        "iptables": {"localhostNodePorts": false},
        "nodePortAddresses": [format!("{ADDRESS}/32")],
        "clusterCIDR": PODS,
        "hostnameOverride": NAME,
        "clientConnection": {"kubeconfig": place.at("kube-proxy.kubeconfig")},
        // with zero, kube-proxy keeps the machine's limits
        "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
    });
    let file = write(place, "kube-proxy.json", &config.to_string())?;
    Ok(vec![program(KUBE_PROXY), format!("--config={file}")])
}

/// Returns the command of CoreDNS.
///
/// # Errors
/// If its configuration can't be written.
pub(crate) fn coredns(place: &NodeFolder) -> Result<Vec<String>> {
    let config = format!(
        ".:{DNS_PORT} {{
    bind {ADDRESS}
    errors
    kubernetes cluster.local {{
        kubeconfig {}
    }}
    cache 5
}}
",
        place.text("admin.kubeconfig")
    );
    let file = write(place, "Corefile", &config)?;
    Ok(vec![program(COREDNS), "-conf".into(), file])
}

/// Returns the Service and the EndpointSlice of CoreDNS, each with the path in the API under which it is created.
pub(crate) fn dns_service() -> [(&'static str, Value); 2] {
    let ports = |port: u16| json!([{"name": "dns", "port": port, "protocol": "UDP"}, {"name": "dns-tcp", "port": port, "protocol": "TCP"}]);
    let service = json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "kube-dns", "namespace": "kube-system"},
        "spec": {"clusterIP": DNS, "ports": ports(53)},
    });
    let slice = json!({
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": "kube-dns-1",
            "namespace": "kube-system",
            "labels": {"kubernetes.io/service-name": "kube-dns"},
        },
        "addressType": "IPv4",
        "endpoints": [{"addresses": [ADDRESS]}],
        "ports": ports(DNS_PORT),
    });
    [
        ("/api/v1/namespaces/kube-system/services", service),
        ("/apis/discovery.k8s.io/v1/namespaces/kube-system/endpointslices", slice),
    ]
}

fn program(name: &str) -> String {
    tool(name).display().to_string()
}

/// Writes a configuration file. Returns its path.
fn write(place: &NodeFolder, name: &str, text: &str) -> Result<String> {
    let file = place.at(name);
    if let Some(folder) = file.parent() {
        std::fs::create_dir_all(folder)?;
    }
    std::fs::write(&file, text)?;
    Ok(file.display().to_string())
}

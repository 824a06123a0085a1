//! The four components of a control plane and their command lines.

use std::net::SocketAddrV4;
use std::path::Path;
use std::process::Command;

use crate::tools::tool;

/// A process of the control plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Component {
    /// etcd.
    Etcd,
    /// kube-apiserver.
    ApiServer,
    /// kube-controller-manager.
    ControllerManager,
    /// kube-scheduler.
    Scheduler,
}

impl Component {
    pub(crate) const ALL: [Component; 4] =
        [Component::Etcd, Component::ApiServer, Component::ControllerManager, Component::Scheduler];

    /// Returns the name of the component's program.
    pub fn program(self) -> &'static str {
        match self {
            Component::Etcd => "etcd",
            Component::ApiServer => "kube-apiserver",
            Component::ControllerManager => "kube-controller-manager",
            Component::Scheduler => "kube-scheduler",
        }
    }
}

/// The settings of a control plane. The default suits most tests.
#[derive(Clone, Debug, Default)]
pub struct ControlPlaneSettings {
    /// Additional flags, which override the usual ones, such as `(Component::ControllerManager,
    /// "--node-monitor-grace-period=5s")`.
    pub flags: Vec<(Component, String)>,
}

/// The folder and address of a control plane, and the kind of its nodes.
#[derive(Clone, Copy, Debug)]
pub struct ControlPlaneSite<'a> {
    /// The folder with the state, the certificates and the kubeconfigs.
    pub folder: &'a Path,
    /// The address of the API server.
    pub server: SocketAddrV4,
    /// Whether the nodes run a real kubelet, which needs root. If so, each kubelet has its own credentials, and the API
    /// server has an address that Endpoints accept. Otherwise, pods have loopback addresses, which Endpoints refuse.
    pub real_nodes: bool,
}

/// The address range of Services. The first address of the range belongs to the API server's Service.
pub const SERVICES: &str = "10.96.0.0/16";
/// The feature gates of Kubernetes' own gang scheduling.
const GATES: &str = "--feature-gates=GenericWorkload=true,GangScheduling=true";

/// Returns the command that runs `component`.
pub fn command(component: Component, site: ControlPlaneSite, settings: &ControlPlaneSettings) -> Command {
    let at = |name: &str| site.folder.join(name).display().to_string();
    let mut flags: Vec<String> = match component {
        // etcd listens on Unix sockets in the folder, because two control planes could choose the same TCP port; no
        // process uses the peer socket
        Component::Etcd => vec![
            format!("--data-dir={}", at("etcd")),
            format!("--listen-client-urls=unix://{}", at("etcd.sock")),
            format!("--advertise-client-urls=unix://{}", at("etcd.sock")),
            format!("--listen-peer-urls=unix://{}", at("peer.sock")),
            "--unsafe-no-fsync".into(),
            "--log-level=warn".into(),
        ],
        Component::ApiServer => vec![
            format!("--etcd-servers=unix://{}", at("etcd.sock")),
            format!("--bind-address={}", site.server.ip()),
            format!("--advertise-address={}", site.server.ip()),
            format!("--secure-port={}", site.server.port()),
            "--permit-port-sharing=true".into(),
            format!("--client-ca-file={}", at("ca.crt")),
            format!("--tls-cert-file={}", at("apiserver.crt")),
            format!("--tls-private-key-file={}", at("apiserver.key")),
            format!("--kubelet-client-certificate={}", at("admin.crt")),
            format!("--kubelet-client-key={}", at("admin.key")),
            "--kubelet-preferred-address-types=InternalIP".into(),
            format!("--service-account-key-file={}", at("sa.pub")),
            format!("--service-account-signing-key-file={}", at("sa.key")),
            "--service-account-issuer=https://kubernetes.default.svc".into(),
            format!("--service-cluster-ip-range={SERVICES}"),
            GATES.into(),
            "--runtime-config=scheduling.k8s.io/v1alpha2=true".into(),
        ],
        Component::ControllerManager => vec![
            format!("--kubeconfig={}", at("kube-controller-manager.kubeconfig")),
            format!("--service-account-private-key-file={}", at("sa.key")),
            format!("--root-ca-file={}", at("ca.crt")),
            "--use-service-account-credentials".into(),
            "--leader-elect=false".into(),
            "--secure-port=0".into(),
            GATES.into(),
        ],
        Component::Scheduler => vec![
            format!("--kubeconfig={}", at("kube-scheduler.kubeconfig")),
            "--leader-elect=false".into(),
            "--secure-port=0".into(),
            GATES.into(),
        ],
    };
    flags.extend(match (component, site.real_nodes) {
        (Component::ApiServer, true) => vec![
            "--authorization-mode=Node,RBAC".into(),
            "--enable-admission-plugins=NodeRestriction".into(),
            format!("--kubelet-certificate-authority={}", at("ca.crt")),
        ],
        (Component::ApiServer, false) => {
            vec!["--authorization-mode=RBAC".into(), "--endpoint-reconciler-type=none".into()]
        }
        // Endpoints refuse the loopback addresses of pods, so these controllers would retry forever
        (Component::ControllerManager, false) => vec![
            "--controllers=*,-endpoints-controller,-endpointslice-controller,-endpointslice-mirroring-controller"
                .into(),
        ],
        _ => vec![],
    });
    flags.extend(settings.flags.iter().filter(|(of, _)| *of == component).map(|(_, flag)| flag.clone()));
    let mut command = Command::new(tool(component.program()));
    command.args(flags).current_dir(site.folder);
    command
}

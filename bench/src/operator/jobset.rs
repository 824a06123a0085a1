//! JobSet as a measured system, with the Job controller below it. A job has four pods, as many as a job of Stagecoach.
//! Each pod has a stable hostname, and a failure restarts the group as a whole.

use std::net::{TcpListener, TcpStream};
use std::process::Command;

use k8s_openapi::ByteString;
use serde_json::{Value, json};
use stagecoach_cluster::{ControlPlane, Process, tool, until};

use super::system::{LabelKeys, STAGES, System, wait_served};

pub(super) const JOBSET: System = System {
    name: "JobSet 0.12",
    install,
    start: Some(start),
    jobs: "/apis/jobset.x-k8s.io/v1alpha2/namespaces/default/jobsets",
    job: |name| job_set(name, STAGES as u32, 5),
    labels: LabelKeys { job: "jobset.sigs.k8s.io/jobset-name", attempt: "jobset.sigs.k8s.io/restart-attempt" },
    first_attempt: 0,
};

fn install(plane: &ControlPlane) {
    let crd = tool("jobset").canonicalize().unwrap().with_file_name("jobset.crd.yaml");
    // the definition is too large for the annotation in which `kubectl apply` would keep a copy
    let created = plane.kubectl(&["create", "-f", &crd.display().to_string()]);
    assert!(created.status.success(), "{}", String::from_utf8_lossy(&created.stderr));
    wait_served(plane, &JOBSET);
}

fn start(plane: &ControlPlane) -> Process {
    let folder = plane.folder();
    // the certificate of the API server is valid for 127.0.0.1, where the webhooks listen
    let certificates = folder.join("webhook");
    std::fs::create_dir(&certificates).unwrap();
    for (from, to) in [("apiserver.crt", "tls.crt"), ("apiserver.key", "tls.key")] {
        std::fs::copy(folder.join(from), certificates.join(to)).unwrap();
    }
    let port = TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port();
    let configuration = json!({
        "apiVersion": "config.jobset.x-k8s.io/v1alpha1", "kind": "Configuration",
        "internalCertManagement": {"enable": false},
        "webhook": {"host": "127.0.0.1", "port": port, "certDir": certificates},
        "leaderElection": {"leaderElect": false},
        "clientConnection": {"qps": 5000, "burst": 10000},
        "metrics": {"bindAddress": "0"},
        "health": {"healthProbeBindAddress": "0"},
    });
    let file = folder.join("jobset.yaml");
    std::fs::write(&file, configuration.to_string()).unwrap();
    let mut command = Command::new(tool("jobset"));
    command.arg("--kubeconfig").arg(plane.kubeconfig()).arg("--config").arg(file).arg("--zap-log-level=error");
    let process = Process::start(command, &folder.join("jobset.log")).unwrap();
    until("JobSet's webhooks", || TcpStream::connect(("127.0.0.1", port)).ok().map(drop));
    register(plane, port);
    process
}

/// Registers JobSet's webhooks as JobSet's manifests do. The webhooks set defaults in JobSets and their pods, and check
/// them.
fn register(plane: &ControlPlane, port: u16) {
    let authority = ByteString(std::fs::read(plane.folder().join("ca.crt")).unwrap());
    let hook = |name: &str, path: &str, operations: &[&str], group: &str, version: &str, resource: &str| {
        let mut hook = json!({
            "name": name, "sideEffects": "None", "admissionReviewVersions": ["v1"], "failurePolicy": "Fail",
            "clientConfig": {"url": format!("https://127.0.0.1:{port}{path}"), "caBundle": authority},
            "rules": [{"apiGroups": [group], "apiVersions": [version], "operations": operations, "resources": [resource]}],
        });
        if resource == "pods" {
            hook["objectSelector"] = json!({"matchExpressions": [{"key": JOBSET.labels.job, "operator": "Exists"}]});
        }
        hook
    };
    let both = |verb: &str, on_jobs: &[&str]| {
        let path = |what: &str| format!("/{verb}-{what}");
        json!([
            hook(
                &format!("{verb}.jobset.test"),
                &path("jobset-x-k8s-io-v1alpha2-jobset"),
                on_jobs,
                "jobset.x-k8s.io",
                "v1alpha2",
                "jobsets"
            ),
            hook(&format!("{verb}.pod.test"), &path("-v1-pod"), &["CREATE"], "", "v1", "pods"),
        ])
    };
    let api = "/apis/admissionregistration.k8s.io/v1";
    for (kind, collection, hooks) in [
        ("MutatingWebhookConfiguration", "mutatingwebhookconfigurations", both("mutate", &["CREATE"])),
        ("ValidatingWebhookConfiguration", "validatingwebhookconfigurations", both("validate", &["CREATE", "UPDATE"])),
    ] {
        let object = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": kind,
            "metadata": {"name": "jobset"}, "webhooks": hooks});
        plane
            .client()
            .create(&format!("{api}/{collection}"), &object)
            .unwrap_or_else(|refusal| panic!("{kind}: {refusal}"));
    }
}

/// Returns a JobSet with one group of `pods` pods.
pub(super) fn job_set(name: &str, pods: u32, max_restarts: u32) -> Value {
    let pod = json!({"restartPolicy": "Never", "containers": [{"name": "trainer", "image": "none"}]});
    let group = json!({"parallelism": pods, "completions": pods, "completionMode": "Indexed", "backoffLimit": 0,
        "template": {"spec": pod}});
    json!({
        "apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": {"name": name},
        "spec": {
            "failurePolicy": {"maxRestarts": max_restarts},
            "replicatedJobs": [{"name": "stages", "replicas": 1, "template": {"spec": group}}],
        },
    })
}

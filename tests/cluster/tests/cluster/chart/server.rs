//! Tests of the chart on a real API server. The server accepts every object, and the operator's pod satisfies the Pod
//! Security Standard `restricted`. Installing, upgrading and removing the chart keeps the jobs.

use serde_json::{Value, json};
use stagecoach_cluster::chart::{self, find, helm, render, try_render};
use stagecoach_cluster::{Client, ControlPlane, until};

use super::{everything, narrow, read, single};

const CRD: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/pipelinejobs.stagecoach.dev";
const JOBS: &str = "/apis/stagecoach.dev/v1alpha1/namespaces/team-a/pipelinejobs";

/// Returns a CRD for a kind of the Prometheus operator, with the real names and without a schema, since the real
/// schemas are not available here.
fn monitor(kind: &str) -> Value {
    let plural = format!("{}s", kind.to_lowercase());
    let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.monitoring.coreos.com")},
        "spec": {
            "group": "monitoring.coreos.com", "scope": "Namespaced", "names": {"kind": kind, "plural": plural},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}],
        },
    })
}

#[test]
fn the_api_server_accepts_all_of_it() {
    let plane = ControlPlane::start();
    let client = plane.client();
    plane.apply(&read("manifests/base/namespace.yaml"));
    ["team-a", "team-b"].iter().for_each(|namespace| plane.create_namespace(namespace));
    ["PodMonitor", "PrometheusRule"].iter().for_each(|kind| plane.apply(&monitor(kind).to_string()));
    until("the monitors to be served", || client.get("/apis/monitoring.coreos.com/v1/podmonitors"));
    until("the rules to be served", || client.get("/apis/monitoring.coreos.com/v1/prometheusrules"));

    for values in [Value::Null, everything(), narrow(), single()] {
        let file = plane.folder().join("rendered.yaml");
        std::fs::write(&file, try_render("stagecoach-system", &values).unwrap()).unwrap();
        let file = file.display().to_string();
        let output = plane.kubectl(&["apply", "--dry-run=server", "--validate=strict", "--filename", &file]);
        assert!(output.status.success(), "{values}: {}", String::from_utf8_lossy(&output.stderr));
        // the server would warn of a pod that violates restricted pod security, and of a deprecated field
        assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{values}");
    }
    pod_security(client);
}

/// Creates the operator's pod in a dry run. The Deployment itself is no test of pod security: a namespace with a Pod
/// Security Standard accepts the Deployment of a pod that violates the standard, and refuses only the pod.
fn pod_security(client: &Client) {
    let objects = render("stagecoach-system", &Value::Null);
    let account = find(&objects, "ServiceAccount", "stagecoach-operator");
    client.create("/api/v1/namespaces/stagecoach-system/serviceaccounts", account).unwrap();
    let template = &find(&objects, "Deployment", "stagecoach-operator")["spec"]["template"];
    let make = |template: &Value| {
        let mut pod =
            json!({"apiVersion": "v1", "kind": "Pod", "metadata": template["metadata"], "spec": template["spec"]});
        pod["metadata"]["name"] = json!("operator");
        client.create("/api/v1/namespaces/stagecoach-system/pods?dryRun=All", &pod)
    };
    let pod = make(template).unwrap();
    let mounts = &pod["spec"]["containers"][0]["volumeMounts"];
    assert_eq!(mounts[0]["mountPath"], "/var/run/secrets/kubernetes.io/serviceaccount", "without a token: {mounts}");
    // the namespace refuses pods that violate the standard
    for field in ["/spec/securityContext", "/spec/containers/0/securityContext"] {
        let mut lax = template.clone();
        *lax.pointer_mut(field).unwrap() = json!({});
        let refusal = make(&lax).unwrap_err();
        assert!(refusal.code == 403 && refusal.message.contains("violates PodSecurity \"restricted"), "{refusal}");
    }
}

#[test]
fn an_installation_comes_is_upgraded_and_goes_without_the_jobs() {
    let plane = ControlPlane::start();
    plane.create_namespace("team-a");
    let copy = plane.folder().join("chart");
    copy_folder(&chart::folder(), &copy);
    let (kubeconfig, copy) = (plane.kubeconfig().display().to_string(), copy.display().to_string());
    let run = |arguments: &[&str]| {
        let all = [arguments, &["--kubeconfig", &kubeconfig, "--namespace", "stagecoach-system"]].concat();
        let output = helm(&all, "");
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    };
    run(&["install", "stagecoach", &copy, "--create-namespace"]);
    let phase = "/spec/versions/0/additionalPrinterColumns/0/description";
    let described = || plane.get(CRD).unwrap().pointer(phase).cloned();
    assert_eq!(described(), Some(json!("A summary of the job's state.")));
    until("the CRD to be served", || plane.get(JOBS));
    let deployment = "/apis/apps/v1/namespaces/stagecoach-system/deployments/stagecoach-operator";
    assert_eq!(plane.get(deployment).unwrap()["spec"]["replicas"], 2);

    let mut job = chart::parse(&read("manifests/samples/shakespeare.yaml")).remove(0);
    job["metadata"] = json!({"name": "shakespeare", "namespace": "team-a"});
    plane.client().create(JOBS, &job).unwrap();

    // the next version of the chart contains a changed CRD
    let file = format!("{copy}/files/pipelinejobs.yaml");
    let newer = std::fs::read_to_string(&file)
        .unwrap()
        .replace("A summary of the job's state", "A newer summary of the job's state");
    std::fs::write(&file, newer).unwrap();
    run(&["upgrade", "stagecoach", &copy, "--set", "replicas=3"]);
    assert_eq!(described(), Some(json!("A newer summary of the job's state.")));
    assert_eq!(plane.get(deployment).unwrap()["spec"]["replicas"], 3);

    run(&["uninstall", "stagecoach", "--wait"]);
    assert!(plane.get(deployment).is_none());
    assert!(plane.get("/apis/rbac.authorization.k8s.io/v1/clusterroles/stagecoach-operator").is_none());
    assert_eq!(plane.client().list(JOBS).len(), 1, "the job went with the chart");

    // the chart can be installed again over the objects that stayed
    run(&["install", "stagecoach", &chart::folder().display().to_string()]);
    assert_eq!(described(), Some(json!("A summary of the job's state.")));
}

fn copy_folder(from: &std::path::Path, to: &std::path::Path) {
    std::fs::create_dir(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().flatten() {
        let target = to.join(entry.file_name());
        match entry.file_type().unwrap().is_dir() {
            true => copy_folder(&entry.path(), &target),
            false => drop(std::fs::copy(entry.path(), target).unwrap()),
        }
    }
}

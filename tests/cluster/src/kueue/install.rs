//! Installs the objects of a release of Kueue, as `kubectl apply` does, except for the Deployment. The controller's
//! account has other rights than in the release.

use std::path::Path;
use std::process::Output;

use http::Method;
use k8s_openapi::ByteString;
use serde_json::{Value, json};

use super::objects::{collection, resource_flavor};
use super::{KueueCluster, WEBHOOKS};
use crate::object::condition_of;
use crate::{until, until_or_tell};

const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
pub(super) const NAMESPACE: &str = "kueue-system";
/// The name of the controller's service account in a release.
pub(super) const ACCOUNT: &str = "kueue-controller-manager";
const SERVICE: &str = "kueue-webhook-service";
const SECRET: &str = "kueue-webhook-server-cert";
/// The CRDs whose objects the controller converts between versions.
const CONVERTED: [&str; 5] = ["clusterqueues", "cohorts", "localqueues", "multikueueclusters", "workloads"];

/// Installs the CRDs and webhooks from the files beside `program`, for a controller that serves at `ip`.
pub(super) fn install(kueue_cluster: &KueueCluster<'_>, program: &Path, ip: &str) {
    let create = |path: &str, object: &Value| {
        kueue_cluster.client.create(path, object).unwrap_or_else(|refusal| panic!("{path}: {refusal}"));
    };
    let beside = |file: &str| format!("{}.{file}.yaml", program.display());
    // Apply the CRDs on the server side: a client-side apply would store each CRD in an annotation, for which the CRD
    // of workloads is too large. On a busy machine, the API server needs more time for such a CRD than a client waits,
    // so repeat failed applies.
    let apply = || kueue_cluster.kubectl.run(&["apply", "--server-side", "-f", &beside("crds")], "");
    let stderr = |output: &Output| String::from_utf8_lossy(&output.stderr).into_owned();
    until_or_tell("Kueue's CRDs to be applied", || apply().status.success().then_some(()), || stderr(&apply()));
    for name in CONVERTED {
        let webhook = json!({"clientConfig": {"service": service("/convert")}, "conversionReviewVersions": ["v1"]});
        let conversion = json!({"spec": {"conversion": {"strategy": "Webhook", "webhook": webhook}}});
        let path = format!("{CRDS}/{name}.kueue.x-k8s.io");
        let patch = || kueue_cluster.client.patch(&path, &conversion);
        until_or_tell(&path, || patch().ok().map(drop), || format!(": {:?}", patch().err()));
    }
    // the controller exits if the API server lacks one of these CRDs
    until("Kueue's CRDs to be served", || {
        let crds = kueue_cluster.client.list(CRDS);
        let served = |crd: &Value| condition_of(crd, "Established").is_some_and(|it| it["status"] == "True");
        crds.iter().filter(|crd| crd["spec"]["group"] == "kueue.x-k8s.io").all(served).then_some(())
    });

    create("/api/v1/namespaces", &json!({"metadata": {"name": NAMESPACE}}));
    create(&namespaced("secrets"), &json!({"metadata": {"name": SECRET}}));
    // The API server connects to an external name that is an IP address. With this Service, the webhook configurations
    // and the DNS name in the certificate are the same as in a real cluster.
    let spec = json!({"type": "ExternalName", "externalName": ip});
    create(&namespaced("services"), &json!({"metadata": {"name": SERVICE}, "spec": spec}));

    let applied = kueue_cluster.kubectl.try_apply(&account().to_string());
    applied.unwrap_or_else(|message| panic!("the account of Kueue: {message}"));

    let manifests = std::fs::read_to_string(beside("webhooks")).unwrap();
    for mut configuration in serde_saphyr::from_multiple::<Value>(&manifests).unwrap() {
        adapt(&mut configuration);
        let plural = format!("{}s", configuration["kind"].as_str().unwrap().to_lowercase());
        create(&format!("/apis/admissionregistration.k8s.io/v1/{plural}"), &configuration);
    }
}

/// Returns the controller's account. Its rights are wider than in a release, but do not include the objects of other
/// projects. A project such as Stagecoach must grant Kueue the rights to its own kinds.
fn account() -> Value {
    let rbac = "rbac.authorization.k8s.io";
    let groups = [
        "",
        "admissionregistration.k8s.io",
        "apiextensions.k8s.io",
        "apps",
        "authentication.k8s.io",
        "authorization.k8s.io",
        "autoscaling.x-k8s.io",
        "batch",
        "coordination.k8s.io",
        "events.k8s.io",
        "flowcontrol.apiserver.k8s.io",
        "kueue.x-k8s.io",
        "node.k8s.io",
        "resource.k8s.io",
        "scheduling.k8s.io",
    ];
    let rules = json!([{"apiGroups": groups, "resources": ["*"], "verbs": ["*"]}]);
    let role = json!({"apiGroup": rbac, "kind": "ClusterRole", "name": ACCOUNT});
    let subject = json!({"kind": "ServiceAccount", "name": ACCOUNT, "namespace": NAMESPACE});
    let version = format!("{rbac}/v1");
    json!({"apiVersion": "v1", "kind": "List", "items": [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": ACCOUNT, "namespace": NAMESPACE}},
        {"apiVersion": version, "kind": "ClusterRole", "metadata": {"name": ACCOUNT}, "rules": rules},
        {"apiVersion": version, "kind": "ClusterRoleBinding", "metadata": {"name": ACCOUNT}, "roleRef": role, "subjects": [subject]},
    ]})
}

/// Returns the files of the serving certificate, or `None` if the controller has not created the certificate yet.
pub(super) fn certificates(kueue_cluster: &KueueCluster<'_>) -> Option<Vec<(&'static str, Vec<u8>)>> {
    let secret = kueue_cluster.client.get(&format!("{}/{SECRET}", namespaced("secrets")))?;
    let content = |file| {
        let text = secret["data"].get(file)?.clone();
        Some((file, serde_json::from_value::<ByteString>(text).unwrap().0))
    };
    ["tls.key", "tls.crt"].into_iter().map(content).collect()
}

/// Returns `Some` if the API server calls both the mutating and the validating webhooks. The API server starts to call
/// them some time after their registration.
pub(super) fn webhooks_are_asked(kueue_cluster: &KueueCluster<'_>) -> Option<()> {
    let path = format!("{}?dryRun=All", collection("ResourceFlavor", ""));
    let ask = |flavor: &Value| kueue_cluster.client.request(Method::POST, &path, Some(flavor));
    let changed = ask(&resource_flavor("probe", json!({}))).ok()?;
    changed["metadata"]["finalizers"].as_array()?;
    let refusal = ask(&resource_flavor("probe", json!({"nodeLabels": {"/": ""}}))).err()?;
    refusal.message.contains("spec.nodeLabels").then_some(())
}

/// Removes the webhooks, so that the cluster works after the controller has ended. Kueue's objects stay.
pub(super) fn detach(kueue_cluster: &KueueCluster<'_>) {
    for kind in ["mutating", "validating"] {
        kueue_cluster.client.delete(&format!(
            "/apis/admissionregistration.k8s.io/v1/{kind}webhookconfigurations/kueue-{kind}-webhook-configuration"
        ));
    }
    for name in CONVERTED {
        let none = json!({"spec": {"conversion": {"strategy": "None", "webhook": null}}});
        let patched = kueue_cluster.client.patch(&format!("{CRDS}/{name}.kueue.x-k8s.io"), &none);
        patched.unwrap_or_else(|refusal| panic!("{name}: {refusal}"));
    }
}

/// Makes the changes that a release of Kueue makes to a generated webhook configuration.
fn adapt(configuration: &mut Value) {
    let name = format!("kueue-{}", configuration["metadata"]["name"].as_str().unwrap());
    configuration["metadata"]["name"] = name.into();
    for webhook in configuration["webhooks"].as_array_mut().unwrap() {
        let path = webhook["clientConfig"]["service"]["path"].as_str().unwrap().to_owned();
        webhook["clientConfig"]["service"] = service(&path);
        if webhook["rules"][0]["apiGroups"][0] != "kueue.x-k8s.io" {
            let others = json!({
                "key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["kube-system", NAMESPACE],
            });
            webhook["namespaceSelector"] = json!({"matchExpressions": [others]});
        }
    }
}

fn service(path: &str) -> Value {
    json!({"namespace": NAMESPACE, "name": SERVICE, "port": WEBHOOKS, "path": path})
}

fn namespaced(collection: &str) -> String {
    format!("/api/v1/namespaces/{NAMESPACE}/{collection}")
}

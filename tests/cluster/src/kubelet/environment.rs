//! A container's environment variables and files, made as a kubelet makes them.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use k8s_openapi::api::core::v1::{ConfigMap, Container, EnvVarSource, Pod, Secret, Service, Volume};
use kube::Api;
use kube::api::ListParams;
use tokio::time::sleep;

/// ConfigMaps by name. The value is the ConfigMap's data.
pub(super) type Maps = BTreeMap<String, BTreeMap<String, String>>;

/// Returns the ConfigMaps of the pod's volumes and variables, by name. Waits until all of them exist, as a kubelet
/// does.
pub(super) async fn config_maps(client: &kube::Client, pod: &Pod) -> Maps {
    let spec = pod.spec.as_ref().unwrap();
    let volumes = spec.volumes.iter().flatten().filter_map(|volume| Some(volume.config_map.as_ref()?.name.clone()));
    let variables = spec.containers.iter().flat_map(|container| container.env.iter().flatten());
    let keys = variables.filter_map(|v| Some(v.value_from.as_ref()?.config_map_key_ref.as_ref()?.name.clone()));
    let names: Vec<String> = volumes.chain(keys).collect();
    let api: Api<ConfigMap> = Api::namespaced(client.clone(), pod.metadata.namespace.as_deref().unwrap_or("default"));
    let mut found = BTreeMap::new();
    for name in names {
        loop {
            if let Ok(map) = api.get(&name).await {
                found.insert(name, map.data.unwrap_or_default());
                break;
            }
            sleep(Duration::from_millis(100)).await;
        }
    }
    found
}

/// Returns the names of the Secrets whose keys become variables of a container through `envFrom`.
pub(super) fn secrets(container: &Container) -> impl Iterator<Item = &str> {
    container.env_from.iter().flatten().filter_map(|source| Some(source.secret_ref.as_ref()?.name.as_str()))
}

/// Returns the variables that a container gets from Secrets, or `None` if one of these Secrets does not exist.
pub(super) async fn from_secrets(
    client: &kube::Client,
    namespace: &str,
    container: &Container,
) -> Option<BTreeMap<String, String>> {
    let api: Api<Secret> = Api::namespaced(client.clone(), namespace);
    let mut found = BTreeMap::new();
    for name in secrets(container) {
        let keys = api.get(name).await.ok()?.data.unwrap_or_default();
        found.extend(keys.into_iter().map(|(key, value)| (key, String::from_utf8_lossy(&value.0).into_owned())));
    }
    Some(found)
}

/// Writes the pod's ConfigMap volumes as files under `folder`, and makes folders for the pod's other volumes. Each
/// volume has one folder. All pods of a namespace share the folder of a claim.
pub(super) fn mount(folder: &Path, pod: &Pod, maps: &Maps) {
    for volume in pod.spec.as_ref().unwrap().volumes.iter().flatten() {
        let at = volume_folder(folder, pod, volume);
        std::fs::create_dir_all(&at).unwrap();
        let data = volume.config_map.as_ref().and_then(|map| maps.get(&map.name));
        for (key, text) in data.into_iter().flatten() {
            std::fs::write(at.join(key), text).unwrap();
        }
    }
}

fn volume_folder(folder: &Path, pod: &Pod, volume: &Volume) -> std::path::PathBuf {
    match &volume.persistent_volume_claim {
        Some(claim) => {
            folder.join("claims").join(pod.metadata.namespace.as_deref().unwrap_or("default")).join(&claim.claim_name)
        }
        None => folder.join(pod.metadata.uid.as_deref().unwrap_or_default()).join(&volume.name),
    }
}

/// If `text` is a path in one of the container's mounts, returns the corresponding path in the volume's folder. Returns
/// any other text unchanged.
pub(super) fn local(folder: &Path, pod: &Pod, container: &Container, text: &str) -> String {
    for mount in container.volume_mounts.iter().flatten() {
        let volumes = pod.spec.as_ref().unwrap().volumes.iter().flatten();
        let Some(volume) = volumes.into_iter().find(|volume| volume.name == mount.name) else { continue };
        let Some(rest) = text.strip_prefix(&mount.mount_path) else { continue };
        if rest.is_empty() || rest.starts_with('/') {
            return format!("{}{rest}", volume_folder(folder, pod, volume).display());
        }
    }
    text.to_owned()
}

/// Returns the address of a pod that the Service `host` selects. The kubelet uses this address instead of a DNS lookup,
/// since tests have no DNS. Waits until such a pod has an address. Returns `None` if the Service does not exist.
pub(super) async fn behind_service(client: &kube::Client, namespace: &str, host: &str) -> Option<String> {
    let services: Api<Service> = Api::namespaced(client.clone(), namespace);
    let selector = services.get_opt(host).await.ok()??.spec?.selector?;
    let labels: Vec<String> = selector.iter().map(|(key, value)| format!("{key}={value}")).collect();
    let selected = ListParams::default().labels(&labels.join(","));
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    loop {
        let found = pods.list(&selected).await.map(|list| list.items).unwrap_or_default();
        let alive = found.into_iter().filter(|pod| pod.metadata.deletion_timestamp.is_none());
        if let Some(address) = alive.filter_map(|pod| pod.status?.pod_ip).next() {
            return Some(address);
        }
        sleep(Duration::from_millis(100)).await;
    }
}

/// Returns the variables in `from_secrets`, and the variables in the container's `env`. In the variables of `env`, the
/// function resolves each `valueFrom`, and replaces each `$(NAME)` by the value of an earlier variable.
pub(super) fn variables(
    pod: &Pod,
    container: &Container,
    address: &str,
    maps: &Maps,
    from_secrets: BTreeMap<String, String>,
) -> BTreeMap<String, String> {
    let mut found = from_secrets;
    for variable in container.env.iter().flatten() {
        let value = match (&variable.value, &variable.value_from) {
            (Some(value), _) => found.iter().fold(value.clone(), |text, (k, v)| text.replace(&format!("$({k})"), v)),
            (None, Some(source)) => looked_up(pod, source, address, maps).unwrap_or_default(),
            (None, None) => String::new(),
        };
        found.insert(variable.name.clone(), value);
    }
    found
}

fn looked_up(pod: &Pod, source: &EnvVarSource, address: &str, maps: &Maps) -> Option<String> {
    if let Some(key) = &source.config_map_key_ref {
        return maps.get(&key.name)?.get(&key.key).cloned();
    }
    let path = source.field_ref.as_ref()?.field_path.as_str();
    let metadata = &pod.metadata;
    let keyed = |prefix: &str| Some(path.strip_prefix(prefix)?.strip_prefix("['")?.strip_suffix("']")?.to_owned());
    match path {
        "metadata.name" => metadata.name.clone(),
        "metadata.namespace" => metadata.namespace.clone(),
        "metadata.uid" => metadata.uid.clone(),
        "spec.nodeName" => pod.spec.as_ref()?.node_name.clone(),
        "status.podIP" | "status.podIPs" => Some(address.to_owned()),
        "status.hostIP" => Some("127.0.0.1".to_owned()),
        _ => match keyed("metadata.labels") {
            Some(key) => metadata.labels.as_ref()?.get(&key).cloned(),
            None => metadata.annotations.as_ref()?.get(&keyed("metadata.annotations")?).cloned(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_come_from_the_pod_and_from_each_other() {
        let pod: Pod = serde_json::from_value(serde_json::json!({
            "metadata": {"name": "a", "uid": "u-1", "labels": {"app": "x"}},
            "spec": {
                "volumes": [{"name": "config", "configMap": {"name": "m"}}],
                "containers": [{"name": "trainer", "env": [
                    {"name": "UID", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}},
                    {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
                    {"name": "APP", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['app']"}}},
                    {"name": "KEY", "valueFrom": {"configMapKeyRef": {"name": "m", "key": "k"}}},
                    {"name": "BOTH", "value": "$(UID)-$(IP)"},
                ], "volumeMounts": [{"name": "config", "mountPath": "/etc/x"}]}],
            },
        }))
        .unwrap();
        let container = &pod.spec.as_ref().unwrap().containers[0];
        let maps = BTreeMap::from([("m".to_owned(), BTreeMap::from([("k".to_owned(), "v".to_owned())]))]);
        let secret =
            BTreeMap::from([("TOKEN", "t"), ("APP", "y")]).into_iter().map(|(k, v)| (k.to_owned(), v.to_owned()));
        let found = variables(&pod, container, "127.1.2.3", &maps, secret.collect());
        let values = ["UID", "IP", "APP", "KEY", "BOTH", "TOKEN"].map(|name| found[name].as_str());
        assert_eq!(values, ["u-1", "127.1.2.3", "x", "v", "u-1-127.1.2.3", "t"]);
        assert_eq!(local(Path::new("/f"), &pod, container, "/etc/x/job.yaml"), "/f/u-1/config/job.yaml");
        assert_eq!(local(Path::new("/f"), &pod, container, "/etc/xyz"), "/etc/xyz");
    }
}

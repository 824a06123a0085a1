//! The node of `make e2e` runs real containers under restricted security, and tests can disturb it.

use std::io::{ErrorKind, Write};

use serde_json::{Value, json};
use stagecoach_cluster::{condition_of, merge, printed, until};
use stagecoach_node::{TestNode, images};

const NAMESPACE: &str = "smoke";
const PROBE: &str = "localhost/stagecoach-probe:e2e";
const MIB: u64 = 1 << 20;

#[test]
#[ignore = "needs root and a node; `make e2e` starts one and runs this"]
fn a_node_runs_containers_and_can_be_disturbed() {
    let node = TestNode::from_environment();
    node.import(&images().join("probe.tar"));
    node.create_restricted_namespace(NAMESPACE);
    let smoke = Smoke { node };

    smoke.only_restricted_pods_are_accepted();
    smoke.names_resolve();
    smoke.containers_outlive_what_runs_them();
    smoke.a_killed_container_is_started_again();
    smoke.a_lowered_limit_kills();
    smoke.gpus_come_and_go();
    smoke.volumes_are_shared_and_small_ones_fill();
    smoke.node.client().delete(&format!("/api/v1/namespaces/{NAMESPACE}"));
}

struct Smoke {
    node: TestNode,
}

/// Returns a pod that complies with the restricted standard.
fn pod(name: &str, arguments: &[&str], container: Value, spec: Value) -> Value {
    let mut main = json!({
        "name": "main",
        "image": PROBE,
        "imagePullPolicy": "Never",
        "args": arguments,
        "securityContext": {
            "allowPrivilegeEscalation": false,
            "readOnlyRootFilesystem": true,
            "capabilities": {"drop": ["ALL"]},
        },
    });
    merge(&mut main, container);
    let mut whole = json!({
        "automountServiceAccountToken": false,
        "terminationGracePeriodSeconds": 1,
        "securityContext": {
            "runAsNonRoot": true,
            "runAsUser": 65532,
            "runAsGroup": 65532,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [main],
    });
    merge(&mut whole, spec);
    let metadata = json!({"name": name, "labels": {"app": name}});
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": whole})
}

impl Smoke {
    fn create(&self, pod: &Value) -> Result<String, String> {
        let answer = self.node.client().create(&format!("/api/v1/namespaces/{NAMESPACE}/pods"), pod);
        answer.map(|pod| pod["metadata"]["uid"].as_str().unwrap().to_owned()).map_err(|refusal| refusal.message)
    }

    fn get(&self, name: &str) -> Value {
        self.node.get(&format!("/api/v1/namespaces/{NAMESPACE}/pods/{name}")).unwrap()
    }

    /// Waits until the status of a pod's container satisfies `accepted`, and returns the status.
    fn container(&self, pod: &str, what: &str, accepted: impl Fn(&Value) -> bool) -> Value {
        until(&format!("{pod} to be {what}"), || {
            let status = self.get(pod)["status"]["containerStatuses"][0].clone();
            accepted(&status).then_some(status)
        })
    }

    fn running(&self, pod: &str) -> Value {
        self.container(pod, "running", |status| !status["state"]["running"].is_null())
    }

    /// Returns the output of kubectl in the namespace.
    fn kubectl(&self, arguments: &[&str]) -> String {
        let output = self.node.kubectl(&[&["--namespace", NAMESPACE], arguments].concat(), "");
        printed(&format!("kubectl {arguments:?}"), output)
    }

    fn only_restricted_pods_are_accepted(&self) {
        let root = json!({"securityContext": {"runAsUser": 0}});
        let error = self.create(&pod("root", &["sleep"], root, json!({}))).unwrap_err();
        assert!(error.contains(r#"violates PodSecurity "restricted:latest""#), "{error}");

        self.create(&pod("web", &["serve"], json!({}), json!({}))).unwrap();
        self.running("web");
        until("the log", || self.kubectl(&["logs", "web"]).contains("listening on").then_some(()));
    }

    fn names_resolve(&self) {
        let service = json!({
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "pages"},
            "spec": {"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": 8080}]},
        });
        self.node.client().create(&format!("/api/v1/namespaces/{NAMESPACE}/services"), &service).unwrap();
        self.create(&pod("visitor", &["sleep"], json!({}), json!({}))).unwrap();
        self.running("visitor");
        let printed = self.kubectl(&["exec", "visitor", "--", "/probe", "lookup", "pages:80"]);
        assert!(printed.contains("says 200 OK: web GET /"), "{printed}");
        // the API server answers a request without TLS with an error that mentions HTTPS
        let printed = self.kubectl(&["exec", "visitor", "--", "/probe", "lookup", "kubernetes.default.svc:443"]);
        assert!(printed.contains("[10.96.0.1]") && printed.contains("HTTPS"), "{printed}");
    }

    fn containers_outlive_what_runs_them(&self) {
        let pod = self.get("web");
        let uid = pod["metadata"]["uid"].as_str().unwrap();
        let process = self.node.container(uid, "main").process_id();
        self.node.stop_kubelet();
        assert_eq!(self.node.container(uid, "main").process_id(), process);
        self.node.start_kubelet();
        self.node.restart_containerd();
        self.node.restart_api_server();
        assert_eq!(self.node.container(uid, "main").process_id(), process);
        // the restarted kubelet, containerd and API server work together again
        self.create(&self::pod("later", &["sleep"], json!({}), json!({}))).unwrap();
        self.running("later");
        let now = self.get("web");
        assert_eq!(now["metadata"]["uid"], uid);
        assert_eq!(now["status"]["containerStatuses"][0]["restartCount"], 0);
    }

    fn a_killed_container_is_started_again(&self) {
        let pod = self.get("web");
        let container = self.node.container(pod["metadata"]["uid"].as_str().unwrap(), "main");
        container.kill();
        let status = self.container("web", "started again", |status| status["restartCount"] == 1);
        assert_eq!(status["lastState"]["terminated"]["exitCode"], 137);
        until("the first container to be cleared away", || container.is_gone().then_some(()));
    }

    fn a_lowered_limit_kills(&self) {
        let limits = json!({"resources": {"limits": {"memory": "256Mi"}}});
        let uid = self.create(&pod("eater", &["eat", "64"], limits, json!({"restartPolicy": "Never"}))).unwrap();
        until("the memory to be taken", || self.get_log("eater").contains("holding").then_some(()));
        let container = self.node.container(&uid, "main");
        assert!(container.memory_used().unwrap() > 64 * MIB);
        let before = self.node.container(&uid, "main").memory_limit();
        drop(container.squeeze(MIB));
        assert_eq!(container.memory_limit(), before, "the limit was not restored");

        // the kernel kills the container although it allocates no more memory
        let starved = container.starve(4 * MIB);
        let status = self.container("eater", "killed", |status| !status["state"]["terminated"].is_null());
        assert_eq!(status["state"]["terminated"]["reason"], "OOMKilled", "{status}");
        drop(starved);
    }

    fn get_log(&self, pod: &str) -> String {
        String::from_utf8_lossy(&self.node.kubectl(&["--namespace", NAMESPACE, "logs", pod], "").stdout).into_owned()
    }

    fn gpus_come_and_go(&self) {
        let wish = json!({"resources": {"limits": {"nvidia.com/gpu": 2}}});
        self.create(&pod("gpus", &["sleep"], wish, json!({}))).unwrap();
        let pending = || (condition_of(&self.get("gpus"), "PodScheduled")?["reason"] == "Unschedulable").then_some(());
        until("the pod to wait for GPUs", pending);
        self.node.set_gpus(Some(2));
        self.running("gpus");
        self.node.set_gpus(None);
        let node = self.node.get(&format!("/api/v1/nodes/{}", self.node.name())).unwrap();
        assert!(node["status"]["capacity"]["nvidia.com/gpu"].is_null(), "{node}");
    }

    fn volumes_are_shared_and_small_ones_fill(&self) {
        self.node.claim(NAMESPACE, "shared", &self.node.shared_folder("smoke"));
        let disk = self.node.small_disk("smoke-small", 8);
        self.node.claim(NAMESPACE, "small", disk.path());
        let volume = |name: &str| json!({"name": name, "persistentVolumeClaim": {"claimName": name}});
        let mount = |name: &str| json!({"name": name, "mountPath": format!("/{name}")});
        let mounts = json!({"volumeMounts": [mount("shared"), mount("small")]});
        let spec = json!({"volumes": [volume("shared"), volume("small")]});
        for name in ["writer", "reader"] {
            self.create(&pod(name, &["sleep"], mounts.clone(), spec.clone())).unwrap();
        }
        self.running("writer");
        self.running("reader");
        let mut file = std::fs::File::create(disk.path().join("filler")).unwrap();
        let mut written = 0;
        let error = loop {
            match file.write_all(&[0; 64 << 10]).and_then(|()| file.sync_data()) {
                Ok(()) => written += 64 << 10,
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), ErrorKind::StorageFull, "{error}");
        assert!((4 * MIB..8 * MIB).contains(&written), "{written}");
        self.kubectl(&["delete", "pod", "writer", "reader", "--wait"]);
        let folder = disk.path().to_owned();
        drop(disk);
        assert!(!folder.exists());
    }
}

//! Pod templates that the chart's ValidatingAdmissionPolicy refuses or accepts, on a real API server.

use serde_json::{Value, json};
use stagecoach_cluster::chart::{self, render};
use stagecoach_cluster::{ApiRefusal, ControlPlane, merge, pipeline_job, until};

const POLICY: &str = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies/stagecoach-operator";

/// A pod's spec, and a part of the refusal's message, or `None` if the policy allows the spec.
type Row = (Value, Option<&'static str>);

fn container(fields: Value) -> Value {
    let mut container = json!({"name": "trainer"});
    merge(&mut container, fields);
    json!({"containers": [container]})
}

fn init_container(fields: Value) -> Value {
    let mut container = json!({"name": "prepare", "image": "example.com/prepare:1"});
    merge(&mut container, fields);
    json!({"initContainers": [container], "containers": [{"name": "trainer"}]})
}

/// Returns pod specs with fields that the Pod Security Standard `restricted` forbids, and with fields that it allows.
fn restricted() -> Vec<Row> {
    let security = |fields: Value| json!({ "securityContext": fields });
    vec![
        (json!({"hostNetwork": true}), Some("uses the node's network")),
        (json!({"hostPID": true}), Some("uses the node's network, processes or IPC")),
        (json!({"hostIPC": true}), Some("uses the node's network, processes or IPC")),
        (container(json!({"ports": [{"containerPort": 1, "hostPort": 1}]})), Some("or a hostPort")),
        (json!({"volumes": [{"name": "a", "hostPath": {"path": "/"}}]}), Some("such as hostPath")),
        (json!({"volumes": [{"name": "a", "nfs": {"server": "b", "path": "/"}}]}), Some("a volume of a type")),
        (container(security(json!({"privileged": true}))), Some("is privileged")),
        (container(security(json!({"allowPrivilegeEscalation": true}))), Some("may gain privileges")),
        (init_container(security(json!({"privileged": true}))), Some("is privileged")),
        (security(json!({"runAsUser": 0})), Some("runAsUser 0")),
        (security(json!({"runAsNonRoot": false})), Some("runAsNonRoot false")),
        (init_container(security(json!({"runAsUser": 0}))), Some("runAsUser 0")),
        (container(security(json!({"capabilities": {"add": ["SYS_ADMIN"]}}))), Some("adds a capability")),
        (container(security(json!({"capabilities": {"add": ["IPC_LOCK"]}}))), Some("adds a capability")),
        (security(json!({"seccompProfile": {"type": "Unconfined"}})), Some("is Unconfined")),
        (container(security(json!({"appArmorProfile": {"type": "Unconfined"}}))), Some("is Unconfined")),
        (container(security(json!({"procMount": "Unmasked"}))), Some("procMount Unmasked")),
        (container(security(json!({"capabilities": {"add": ["NET_BIND_SERVICE"], "drop": ["ALL"]}}))), None),
        (security(json!({"runAsUser": 1000, "seccompProfile": {"type": "RuntimeDefault"}})), None),
        (container(json!({"ports": [{"containerPort": 8080}], "resources": {"limits": {"nvidia.com/gpu": 1}}})), None),
        (
            json!({"volumes": [{"name": "a", "emptyDir": {"medium": "Memory"}}, {"name": "b", "secret": {"secretName": "c"}}]}),
            None,
        ),
        (json!({"serviceAccountName": "another", "nodeSelector": {"gpu": "a"}}), None),
        (init_container(json!({})), None),
    ]
}

struct Cluster {
    plane: ControlPlane,
    jobs: std::cell::Cell<u32>,
}

impl Cluster {
    fn start() -> Cluster {
        let plane = ControlPlane::start();
        ["team", "free"].iter().for_each(|namespace| plane.create_namespace(namespace));
        Cluster { plane, jobs: Default::default() }
    }

    /// Applies the chart's policy with these Helm values, and waits until the API server enforces the policy: until it
    /// refuses `forbidden` with `words`.
    fn apply(&self, values: &Value, forbidden: &Value, words: &str) {
        let kinds = ["CustomResourceDefinition", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"];
        chart::apply(&self.plane, "stagecoach-system", values, &kinds);
        until("the CRD to be served", || self.plane.get("/apis/stagecoach.dev/v1alpha1"));
        until("the policy to count", || {
            self.create("team", forbidden).is_err_and(|refusal| refusal.message.contains(words)).then_some(())
        });
        until("its expressions to be checked", || {
            let policy = self.plane.get(POLICY)?;
            let is_checked = policy["status"]["observedGeneration"] == policy["metadata"]["generation"];
            is_checked.then(|| assert_eq!(policy["status"]["typeChecking"]["expressionWarnings"], Value::Null))
        });
    }

    fn create(&self, namespace: &str, pod: &Value) -> Result<Value, ApiRefusal> {
        self.create_from(namespace, &json!({ "spec": pod }))
    }

    fn create_from(&self, namespace: &str, template: &Value) -> Result<Value, ApiRefusal> {
        self.jobs.set(self.jobs.get() + 1);
        let job = pipeline_job(&format!("job-{}", self.jobs.get()), json!({ "template": template }));
        self.plane.client().create(&format!("/apis/stagecoach.dev/v1alpha1/namespaces/{namespace}/pipelinejobs"), &job)
    }

    #[track_caller]
    fn assert_rows(&self, rows: &[Row]) {
        for (pod, words) in rows {
            // `pod` is first the spec of all stages, and then the spec of one stage
            let own = json!({"stages": [{"stage": 1, "spec": pod}]});
            for (created, words) in [(self.create("team", pod), words), (self.create_from("team", &own), words)] {
                match (created, words) {
                    (Ok(_), None) => {}
                    (Ok(_), Some(words)) => panic!("{pod} was accepted: {words}"),
                    (Err(refusal), None) => panic!("{pod}: {refusal}"),
                    (Err(refusal), Some(words)) => assert!(
                        refusal.code == 422
                            && refusal.message.contains("stagecoach-operator")
                            && refusal.message.contains(words),
                        "{pod}: {refusal}"
                    ),
                }
            }
        }
    }
}

#[test]
fn templates_are_held_to_what_the_values_allow() {
    let cluster = Cluster::start();
    let host = json!({"hostNetwork": true});
    cluster.apply(&json!({"admissionPolicy": {"exceptNamespaces": ["free"]}}), &host, "uses the node's network");
    cluster.assert_rows(&restricted());
    let exempt = cluster.create("free", &host).unwrap();

    // a user can suspend an existing job and change its template to an allowed one, but not to another forbidden one
    cluster.apply(&Value::Null, &host, "uses the node's network");
    until("the exception to be over", || cluster.create("free", &host).err());
    let path = format!(
        "/apis/stagecoach.dev/v1alpha1/namespaces/free/pipelinejobs/{}",
        exempt["metadata"]["name"].as_str().unwrap()
    );
    let patch = |spec: Value| cluster.plane.client().patch(&path, &json!({ "spec": spec }));
    patch(json!({"suspend": true, "stages": 1})).unwrap();
    patch(json!({"template": {"spec": {"hostPID": true}}})).unwrap_err();
    patch(json!({"template": {"spec": {"hostNetwork": false}}})).unwrap();

    // these values allow everything except other accounts and images
    let allow = json!({
        "hostNamespaces": true, "volumes": ["hostPath", "nfs"], "privileged": true, "root": true,
        "capabilities": ["SYS_ADMIN", "IPC_LOCK"], "unconfined": true,
    });
    let held =
        json!({"allow": allow, "serviceAccounts": ["trainer"], "images": ["registry.example/a/", "example.com/"]});
    let foreign = json!({"serviceAccountName": "another"});
    cluster.apply(&json!({"admissionPolicy": held}), &foreign, "is not one of trainer");
    let is_foreign = |pod: &Value| pod["serviceAccountName"] == "another";
    let allowed = restricted().into_iter().filter(|(pod, _)| !is_foreign(pod)).map(|(pod, _)| (pod, None));
    cluster.assert_rows(&allowed.collect::<Vec<_>>());
    let volume = |reference: &str| json!({"volumes": [{"name": "a", "image": {"reference": reference}}]});
    cluster.assert_rows(&[
        (foreign, Some("serviceAccountName is not one of trainer")),
        (json!({"serviceAccount": "another"}), Some("serviceAccountName is not one of trainer")),
        (json!({"serviceAccountName": "trainer"}), None),
        (
            container(json!({"image": "elsewhere.example/a"})),
            Some("does not begin with registry.example/a/ or example.com/"),
        ),
        (container(json!({"image": "registry.example/b"})), Some("does not begin with")),
        (init_container(json!({"image": "elsewhere.example/a"})), Some("does not begin with")),
        (container(json!({"image": "registry.example/a/trainer:1"})), None),
        (volume("elsewhere.example/a"), Some("does not begin with")),
        (volume("registry.example/a/b"), None),
    ]);
}

#[test]
fn it_counts_where_jobs_are_run_and_can_be_left_out() {
    let binding = |values: Value| {
        let objects = render("stagecoach-system", &values);
        objects.into_iter().find(|object| object["kind"] == "ValidatingAdmissionPolicyBinding")
    };
    assert_eq!(binding(Value::Null).unwrap()["spec"]["matchResources"], Value::Null);
    let narrow = binding(json!({"watchNamespaces": ["a"], "admissionPolicy": {"exceptNamespaces": ["b"]}})).unwrap();
    let operators = narrow["spec"]["matchResources"]["namespaceSelector"]["matchExpressions"].as_array().unwrap();
    let operators: Vec<_> = operators.iter().map(|one| (&one["operator"], &one["values"][0])).collect();
    assert_eq!(operators, [(&json!("In"), &json!("a")), (&json!("NotIn"), &json!("b"))]);
    assert_eq!(binding(json!({"admissionPolicy": {"enabled": false}})), None);
}

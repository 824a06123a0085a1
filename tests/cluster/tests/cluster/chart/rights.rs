//! Tests of the rights of the operator's service account. The test checks every verb on every resource of the API
//! server. The account must have exactly the rights in the tables of this file.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use stagecoach_cluster::chart::{OPERATOR_KINDS, apply};
use stagecoach_cluster::{Client, ControlPlane, until};

const VERBS: [&str; 9] =
    ["get", "list", "watch", "create", "update", "patch", "delete", "deletecollection", "impersonate"];

/// The group, the resource and the verbs in each namespace that the operator watches.
const JOBS: [(&str, &str, &[&str]); 12] = [
    ("stagecoach.dev", "pipelinejobs", &["get", "list", "watch", "delete"]),
    ("stagecoach.dev", "pipelinejobs/status", &["update", "patch"]),
    ("stagecoach.dev", "pipelinejobs/finalizers", &["update"]),
    ("", "pods", &["get", "list", "watch", "create", "delete"]),
    ("", "pods/log", &["get"]),
    ("", "services", &["get", "list", "watch", "create", "update", "delete"]),
    ("", "configmaps", &["get", "list", "watch", "create", "delete"]),
    ("networking.k8s.io", "networkpolicies", &["get", "list", "watch", "create", "update", "delete"]),
    ("scheduling.k8s.io", "podgroups", &["get", "create", "delete"]),
    ("scheduling.volcano.sh", "podgroups", &["get", "create", "delete"]),
    ("scheduling.x-k8s.io", "podgroups", &["get", "create", "delete"]),
    ("events.k8s.io", "events", &["create"]),
];

/// The additional rights with `kueue.enabled`, in each namespace that the operator watches.
const WORKLOADS: [(&str, &str, &[&str]); 2] = [
    ("kueue.x-k8s.io", "workloads", &["get", "list", "watch", "create", "update", "delete"]),
    ("kueue.x-k8s.io", "workloads/status", &["update"]),
];
/// The additional cluster-wide rights with `kueue.enabled`.
const QUEUES: [(&str, &str, &[&str]); 3] = [
    ("kueue.x-k8s.io", "resourceflavors", &["get"]),
    ("kueue.x-k8s.io", "workloadpriorityclasses", &["get"]),
    ("scheduling.k8s.io", "priorityclasses", &["get"]),
];

/// The group, the resource and the verbs in the operator's namespace.
const LEADER: (&str, &str, &[&str]) = ("coordination.k8s.io", "leases", &["get", "list", "watch", "create", "update"]);

/// Rights in the form `verb resource.group`.
type Rights = BTreeSet<String>;

fn rights(rows: &[(&str, &str, &[&str])]) -> Rights {
    let right = |(group, resource, verbs): &(&str, &str, &[&str])| {
        verbs.iter().map(|verb| format!("{verb} {resource}.{group}")).collect::<Vec<_>>()
    };
    rows.iter().flat_map(right).collect()
}

#[test]
fn the_account_may_do_what_the_operator_does_and_nothing_else() {
    let plane = ControlPlane::start();
    ["stagecoach-system", "narrow", "queued", "team", "queues", "other"]
        .iter()
        .for_each(|namespace| plane.create_namespace(namespace));
    let client = plane.client();
    for (namespace, values) in [
        ("stagecoach-system", json!({})),
        ("narrow", json!({"watchNamespaces": ["team"], "crd": {"install": false}, "rbac": {"userRoles": false}})),
        (
            "queued",
            json!({
                "watchNamespaces": ["queues"], "crd": {"install": false}, "rbac": {"userRoles": false}, "kueue": {"enabled": true},
            }),
        ),
    ] {
        apply(&plane, namespace, &values, &OPERATOR_KINDS);
    }
    let resources = resources(client);
    assert!(resources.len() > 80, "{resources:?}");
    assert!(resources.contains(&(String::new(), "secrets".into())), "{resources:?}");

    let (jobs, leader) = (rights(&JOBS), rights(&[LEADER]));
    let both = jobs.union(&leader).cloned().collect();
    let (workloads, queues) = (rights(&WORKLOADS), rights(&QUEUES));
    let with_queues: Rights = [&jobs, &workloads, &queues].into_iter().flatten().cloned().collect();
    let rows = [
        // one operator for all namespaces
        ("stagecoach-system", "team", &jobs),
        ("stagecoach-system", "stagecoach-system", &both),
        // one operator for one namespace
        ("narrow", "team", &jobs),
        ("narrow", "narrow", &leader),
        ("narrow", "other", &Rights::new()),
        // with Kueue
        ("queued", "queues", &with_queues),
        ("queued", "other", &queues),
    ];
    for (account, namespace, expected) in rows {
        let user = format!("system:serviceaccount:{account}:stagecoach-operator");
        let expected_one = expected.first().cloned();
        until("the roles to count", || match &expected_one {
            Some(right) => {
                let (verb, resource) = right.split_once(' ').unwrap();
                let (resource, group) = resource.split_once('.').unwrap();
                may(client, &user, namespace, verb, group, resource).then_some(())
            }
            None => Some(()),
        });
        let asked = resources.iter().flat_map(|(group, resource)| VERBS.map(|verb| (verb, group, resource)));
        let granted = asked.filter(|(verb, group, resource)| may(client, &user, namespace, verb, group, resource));
        let granted: Rights = granted.map(|(verb, group, resource)| format!("{verb} {resource}.{group}")).collect();
        let (more, less) = (granted.difference(expected), expected.difference(&granted));
        let (more, less): (Vec<_>, Vec<_>) = (more.collect(), less.collect());
        assert!(more.is_empty() && less.is_empty(), "{account} in {namespace}: too much {more:?}, missing {less:?}");
    }
    check_user_roles(&plane);
}

/// Checks that the role `edit` of a namespace may run jobs in it, and that the role `view` may read them.
fn check_user_roles(plane: &ControlPlane) {
    let client = plane.client();
    for role in ["edit", "view"] {
        let binding = json!({
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": {"name": role},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": role}],
        });
        client.create("/apis/rbac.authorization.k8s.io/v1/namespaces/team/rolebindings", &binding).unwrap();
    }
    let may = |user: &str, verb: &str, resource: &str| may(client, user, "team", verb, "stagecoach.dev", resource);
    until("the role edit to have grown", || may("edit", "create", "pipelinejobs").then_some(()));
    until("the role view to have grown", || may("view", "list", "pipelinejobs").then_some(()));
    let rows = [
        ("edit", "delete", "pipelinejobs", true),
        ("edit", "patch", "pipelinejobs/scale", true),
        // only the operator writes the status
        ("edit", "update", "pipelinejobs/status", false),
        ("view", "get", "pipelinejobs/status", true),
        ("view", "create", "pipelinejobs", false),
        ("view", "patch", "pipelinejobs/scale", false),
    ];
    for (user, verb, resource, expected) in rows {
        assert_eq!(may(user, verb, resource), expected, "{user} {verb} {resource}");
    }
}

/// Whether the authorizer grants this right to the user. The request names no groups of the user, so the rights that
/// every account has do not count.
fn may(client: &Client, user: &str, namespace: &str, verb: &str, group: &str, resource: &str) -> bool {
    let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
    let attributes = json!({
        "namespace": namespace, "verb": verb, "group": group, "resource": resource, "subresource": subresource,
    });
    let review = json!({"spec": {"user": user, "resourceAttributes": attributes}});
    let answer = client.create("/apis/authorization.k8s.io/v1/subjectaccessreviews", &review).unwrap();
    answer["status"]["allowed"] == true
}

/// Returns the group and name of every resource and subresource that the API server serves, and of the resources in the
/// tables, some of which only an add-on serves.
fn resources(client: &Client) -> BTreeSet<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let groups = client.get("/apis").unwrap();
    let groups = groups["groups"].as_array().unwrap().iter();
    let versions = groups.flat_map(|group| group["versions"].as_array().unwrap());
    let mut paths: Vec<String> = versions.map(|version| format!("/apis/{}", text(&version["groupVersion"]))).collect();
    paths.push("/api/v1".into());
    let listed = JOBS.iter().chain(&WORKLOADS).chain(&QUEUES);
    let mut all: BTreeSet<_> =
        listed.map(|(group, resource, _)| ((*group).to_owned(), (*resource).to_owned())).collect();
    for path in paths {
        let list = client.get(&path).unwrap();
        let (group, _) = list["groupVersion"].as_str().unwrap().split_once('/').unwrap_or(("", ""));
        let names = list["resources"].as_array().unwrap().iter().map(|resource| text(&resource["name"]));
        all.extend(names.map(|name| (group.to_owned(), name)));
    }
    all
}

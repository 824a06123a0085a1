//! Two tenants share a quota in Kueue. Kueue preempts the job of one tenant: the job saves and continues later, and its
//! result is bit-identical to that of an undisturbed run.

use serde_json::{Value, json};
use stagecoach_cluster::condition_of;
use stagecoach_cluster::kueue::{self, Kueue, cluster_queue, local_queue, priority_class, resource_flavor};
use stagecoach_e2e::{E2eJob, NAMESPACE, Product, on_this_machine};

/// Kueue in the node's cluster. Dropping this value removes Kueue, and upgrades the release to its usual values,
/// without Kueue.
struct Queues<'p> {
    product: &'p Product,
    kueue: Option<Kueue>,
}

impl<'p> Queues<'p> {
    fn start(product: &'p Product) -> Queues<'p> {
        let kueue = Kueue::start_in(&product.node.kueue_cluster(), "kueue", json!({}));
        let queues = Queues { product, kueue: Some(kueue) };
        let local = |name: &str| {
            let mut queue = local_queue(name, "all");
            queue["metadata"]["namespace"] = NAMESPACE.into();
            queue
        };
        // the quota suffices for one job of three stages
        let preemption = json!({"preemption": {"withinClusterQueue": "LowerPriority"}});
        let all = cluster_queue("all", &[("default", json!({"pods": 3, "cpu": 100, "memory": "1Ti"}))], preemption);
        let objects = [resource_flavor("default", json!({})), priority_class("high", 1000), all];
        kueue::create(product.node.client(), &objects);
        kueue::create(product.node.client(), &[local("team-a"), local("team-b")]);
        product.helm_install(&json!({"kueue": {"enabled": true}}));
        queues
    }
}

impl Drop for Queues<'_> {
    fn drop(&mut self) {
        if let Some(kueue) = self.kueue.take() {
            kueue.end(&self.product.node.kueue_cluster());
        }
        if !std::thread::panicking() {
            self.product.helm_install(&json!({}));
        }
    }
}

fn apply<'p>(product: &'p Product, name: &str, queue: Value, changes: Value) -> E2eJob<'p> {
    let mut spec = json!({"scheduling": {"kueue": queue}});
    stagecoach_cluster::merge(&mut spec, changes);
    E2eJob::apply(product, name, spec)
}

fn is_admitted(job: &Value, status: &str) -> bool {
    condition_of(job, "Admitted").is_some_and(|admitted| admitted["status"] == status)
}

#[test]
#[ignore = "needs a node: make e2e"]
fn a_preempted_tenant_saves_and_returns_with_the_same_bits() {
    let product = Product::take();
    let _queues = Queues::start(&product);
    let first = apply(&product, "tenant-a", json!({"queueName": "team-a"}), json!({"training": {"steps": 60}}));
    first.wait_running(1);
    let second = apply(&product, "tenant-b", json!({"queueName": "team-b"}), json!({}));
    second.wait("waiting in its queue", |job| is_admitted(job, "False"));
    assert_eq!(second.all_pods(), [Value::Null; 0]);
    first.complete();
    second.wait_running(1);
    second.wait_step(second.step() + 20);

    let urgent = json!({"queueName": "team-a", "priorityClassName": "high"});
    let urgent = apply(&product, "urgent", urgent, json!({"training": {"steps": 60}}));
    second.wait("preempted", |job| is_admitted(job, "False") && job["status"]["phase"] == "Pending");
    let saved = second.get()["status"]["checkpoint"]["step"].as_u64().unwrap();
    assert_eq!(saved, second.step(), "no step is lost");
    assert!(second.folder.join(format!("checkpoints/step-{saved:08}/manifest.json")).exists());
    urgent.complete();
    second.wait_running(2);
    assert_eq!(second.complete(), *on_this_machine(product.node.folder()));
    let status = &second.get()["status"];
    assert_eq!((&status["attempt"]["number"], &status["restarts"]["total"]), (&json!(2), &json!(0)), "{status:#}");
}

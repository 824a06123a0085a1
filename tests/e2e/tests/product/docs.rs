//! Runs the commands of the documentation's first job, one after the other, as a new user types them.

use std::path::Path;
use std::process::Command;

use stagecoach_cluster::printed;
use stagecoach_e2e::{Product, texts};

/// The environment variable with the folder of kubectl on this machine.
const TOOLS: &str = "STAGECOACH_CLUSTER_TOOLS";
/// The time limit in seconds for all commands of the page.
const SECONDS: &str = "900";
const PAGE: &str = include_str!("../../../../docs/FIRST-JOB.md");

#[test]
#[ignore = "needs a node: make e2e"]
fn the_first_job_is_as_its_page_says() {
    let product = Product::take();
    let _namespace = Namespace(&product);
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap();
    let folder = product.node.folder().join("reader");
    // a user runs the page's commands in the root of the repository; the test runs them in another folder, with the
    // plays
    let corpus = folder.join("workspace/corpus");
    std::fs::create_dir_all(&corpus).unwrap();
    let copied = Command::new("cp").arg("-r").arg(texts()).arg(&corpus).status().unwrap();
    assert!(copied.success());
    for entry in ["scripts", "target"] {
        std::os::unix::fs::symlink(repository.join(entry), folder.join(entry)).unwrap();
    }
    std::fs::copy(product.node.kubeconfig(), folder.join("kubeconfig")).unwrap();
    let script = format!("set -eux\n{}", commands(PAGE));
    std::fs::write(folder.join("page.sh"), &script).unwrap();
    let path = [TOOLS, "PATH"].map(|name| std::env::var(name).unwrap()).join(":");
    let mut reader = Command::new("timeout");
    reader.args(["--verbose", SECONDS, "bash", "page.sh"]).current_dir(&folder);
    // the page's last command compares the result with that of an undisturbed run of the same job on this machine
    let output = reader
        .env("KUBECONFIG", folder.join("kubeconfig"))
        .env("KUBECACHEDIR", folder.join("kubectl"))
        .env("NO_PROXY", "10.250.0.1")
        .env("PATH", path)
        .output()
        .unwrap();
    let printed = printed(&script, output);
    assert!(printed.contains("the same\n"), "{printed}");
}

/// Returns the page's commands in order. Where the user watches the output, the script waits for the change. The job
/// trains fewer steps than on the page, because the script does not need the time that a user needs to type.
fn commands(page: &str) -> String {
    let page = page.replace("steps: 1000", "steps: 150").replace("step-00001000", "step-00000150");
    let mut lines = String::new();
    let mut inside = false;
    for line in page.lines() {
        match line {
            "```sh" => inside = true,
            "```" => inside = false,
            "kubectl get pj -w" => lines += "kubectl wait --for condition=Running pj/first --timeout 240s\n",
            "make build" => {}
            _ if inside => lines += &format!("{}\n", line.replace("logs -f ", "logs ")),
            _ => {}
        }
    }
    lines
}

/// The namespace that the page creates and does not remove. Dropping this value removes the namespace.
struct Namespace<'p>(&'p Product);

impl Drop for Namespace<'_> {
    fn drop(&mut self) {
        let _ = self.0.node.kubectl(&["delete", "namespace", "training", "--ignore-not-found", "--timeout=120s"], "");
    }
}

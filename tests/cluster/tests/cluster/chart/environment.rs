//! Checks that the operator can parse the environment variables of the chart's Deployment.

use clap::{Args, Command, FromArgMatches};
use serde_json::{Value, json};
use stagecoach_cluster::chart::{find, render};
use stagecoach_operator::{LogFormat, OperatorConfig};

use super::everything;

#[test]
fn every_variable_is_a_flag() {
    let defaults = config(&Value::Null, "stagecoach-operator");
    assert_eq!(
        defaults.trainer_image,
        format!("ghcr.io/stagecoach-dev/stagecoach-trainer:{}", env!("CARGO_PKG_VERSION"))
    );
    assert!(defaults.namespaces.is_empty(), "{:?}", defaults.namespaces);
    assert!(defaults.leader_election && defaults.log_format == LogFormat::Json);
    assert_eq!((defaults.lease.as_str(), defaults.workers), ("stagecoach-operator", 16));
    assert_eq!((defaults.namespace.as_str(), defaults.identity.as_str()), ("of-the-pod", "of-the-pod"));
    assert_eq!((defaults.peers().readers.len(), defaults.peers().dns.len()), (1, 2));

    let two = config(&json!({"watchNamespaces": ["team-a", "team-b"]}), "stagecoach-operator");
    assert_eq!(two.namespaces, ["team-a", "team-b"]);

    let all = config(&everything(), "trains");
    assert_eq!((all.trainer_image.as_str(), all.lease.as_str()), ("registry.example/trainer:cuda", "trains"));
    assert_eq!((all.log_level.as_str(), all.workers), ("info,kube=debug", 32));
    assert!(all.listen.is_ipv6() && all.log_format == LogFormat::Text);
    let scraper = serde_json::to_value(&all.peers().readers[1]).unwrap();
    assert_eq!(scraper, everything()["scrapers"][0]);
}

/// Returns the configuration that the operator parses from the environment of its container.
fn config(values: &Value, name: &str) -> OperatorConfig {
    let objects = render("stagecoach-system", values);
    let container = &find(&objects, "Deployment", name)["spec"]["template"]["spec"]["containers"][0];
    let command = OperatorConfig::augment_args(Command::new("stagecoach-operator"));
    // the test passes the variables as flags, since all tests of the process share one environment
    let flag = |variable: &Value| {
        let is_flag =
            |argument: &&clap::Arg| argument.get_env().is_some_and(|name| variable["name"].as_str() == name.to_str());
        let argument = command.get_arguments().find(is_flag).unwrap_or_else(|| panic!("{variable} is no flag"));
        let value = variable["value"].as_str().unwrap_or("of-the-pod");
        format!("--{}={value}", argument.get_long().unwrap())
    };
    let flags: Vec<String> = container["env"].as_array().unwrap().iter().map(flag).collect();
    let matches = command.clone().try_get_matches_from(std::iter::once("stagecoach-operator".into()).chain(flags));
    let config = OperatorConfig::from_arg_matches(&matches.unwrap_or_else(|e| panic!("{e}"))).unwrap();
    assert_eq!(container["ports"][0]["containerPort"], config.listen.port());
    config
}

//! Tests access rights, and the errors for hubs that the client can't reach.

use std::net::TcpListener;
use std::process::Command;
use std::sync::Arc;

use stagecoach_hub::{Environment, HUB_RETRY_POLICY, HubClient, HubError, HubToken};
use stagecoach_remote::{RetryPolicy, Waiter};
use stagecoach_test_hub::{File, Hub, PlannedAnswer};

use crate::{REPO, Reader, Setup, hub_with, named, noise, repo};

const SECRET: &str = "hf_Secret123";

fn no_repository(error: &HubError) -> bool {
    matches!(error, HubError::NoRepository { .. }) && !error.is_temporary()
}

#[test]
fn a_missing_repository_looks_like_a_private_one() {
    let hub = Hub::start();
    hub.user(SECRET);
    let error = Reader::new(&hub).text("a").unwrap_err();
    assert!(no_repository(&error), "{error}");
    let expected = format!(
        "{} has no dataset org/plays, or it is private: check the spelling, or set HF_TOKEN to a token that may read \
         it",
        hub.endpoint()
    );
    assert_eq!(error.to_string(), expected);
    let error = Reader::with_token(&hub, SECRET).text("a").unwrap_err();
    assert!(no_repository(&error), "{error}");
    assert!(error.to_string().ends_with("use the token of an account that may read it (this one is from HF_TOKEN)"));
    let error = Reader::new(&hub).client.commit(&named("models/org/plays"), "main").unwrap_err();
    assert!(error.to_string().contains("(a dataset is written as hf://datasets/org/plays)"), "{error}");
}

#[test]
fn a_private_repository_needs_its_owners_token() {
    let hub = hub_with(&noise(100));
    hub.hide(REPO, SECRET);
    hub.user("hf_other");
    assert!(no_repository(&Reader::new(&hub).text("data/*").unwrap_err()));
    assert!(no_repository(&Reader::with_token(&hub, "hf_other").text("data/*").unwrap_err()));
    assert_eq!(Reader::with_token(&hub, SECRET).text("data/*").unwrap(), noise(100));
}

#[test]
fn a_token_that_the_hub_does_not_know_is_named() {
    let hub = hub_with(&noise(100));
    let reader = Reader::with_token(&hub, SECRET);
    let error = reader.text("data/*").unwrap_err();
    assert!(matches!(error, HubError::WrongToken { .. }) && !error.is_temporary(), "{error}");
    assert!(error.to_string().contains("doesn't know the token from HF_TOKEN (invalid credentials)"), "{error}");
    assert!(reader.notices().is_empty());
}

#[test]
fn a_gated_repository_names_the_page_of_its_conditions() {
    let hub = hub_with(&noise(100));
    hub.gate(REPO, SECRET);
    hub.user("hf_other");
    let page = format!("{}/{REPO}", hub.endpoint());
    for reader in [Reader::new(&hub), Reader::with_token(&hub, "hf_other")] {
        let error = reader.text("data/*").unwrap_err();
        assert!(matches!(error, HubError::Gated { .. }) && !error.is_temporary(), "{error}");
        assert!(
            error
                .to_string()
                .starts_with(&format!("the dataset org/plays is gated: accept its conditions at {page}, "))
        );
    }
    Reader::with_token(&hub, SECRET).text("data/*").unwrap();
}

#[test]
fn a_missing_revision_or_file_is_named() {
    let hub = hub_with(&noise(100));
    let reader = Reader::new(&hub);
    let error = reader.client.commit(&repo(), "v2/x").unwrap_err();
    assert!(error.to_string().starts_with("the dataset org/plays has no revision \"v2/x\": "), "{error}");
    assert!(!error.is_temporary());
    let (commit, mut file) = reader.file("data/*").unwrap();
    file.path = "data/other".to_owned();
    let error = reader.bytes(&commit, &file, 0..1).unwrap_err();
    assert!(matches!(&error, HubError::NoFile { path, .. } if path == "data/other"), "{error}");
}

#[test]
fn references_of_the_hub_are_revisions() {
    let hub = Hub::start();
    let commit = hub.put(REPO, "refs/convert/parquet", [("a", File::small("a"))]);
    assert_eq!(Reader::new(&hub).client.commit(&repo(), "refs/convert/parquet").unwrap(), commit);
}

#[test]
fn a_machine_without_a_way_to_the_hub_is_reported() {
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let reader = Setup { policy: Some(RetryPolicy { attempts: Some(3), ..HUB_RETRY_POLICY }), ..Setup::default() }
        .client(&format!("http://{address}"));
    let error = reader.client.commit(&repo(), "main").unwrap_err();
    assert!(matches!(error, HubError::Unreachable { .. }) && error.is_temporary(), "{error}");
    let printed = error.to_string();
    assert!(printed.starts_with(&format!("can't connect to {address}: Connection refused")), "{printed}");
    assert!(
        printed.contains("networkPolicy.egressCIDRs")
            && printed.contains("HTTPS_PROXY")
            && printed.contains("HF_HUB_OFFLINE"),
        "{printed}"
    );
    assert_eq!(reader.waits().len(), 2);
}

#[test]
fn a_proxy_that_is_down_is_named() {
    let proxy = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let printed = |no_proxy: &str| {
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", "access::in_another_environment", "--ignored", "--nocapture"]).env_clear();
        child.env("HF_ENDPOINT", "http://hub.invalid").env("HF_TOKEN", SECRET).env("NO_PROXY", no_proxy);
        child.env("ALL_PROXY", format!("http://user:word@{proxy}"));
        String::from_utf8(child.output().unwrap().stdout).unwrap()
    };
    let expected = format!("can't connect to hub.invalid through the proxy {proxy}: Connection refused");
    assert!(printed("").contains(&expected) && !printed("").contains("word"), "{}", printed(""));
    assert!(printed("hub.invalid").contains("can't connect to hub.invalid: "), "{}", printed("hub.invalid"));
}

#[test]
#[ignore = "run only as a child process of the test a_proxy_that_is_down_is_named"]
fn in_another_environment() {
    let environment = Environment::read(|name| std::env::var(name).ok()).unwrap();
    let policy = RetryPolicy { attempts: Some(1), ..HUB_RETRY_POLICY };
    let waiter = Waiter { pause: Arc::new(|_| ()), notice: Arc::new(|_| ()) };
    let client = HubClient::new(environment, policy, waiter).unwrap();
    println!("{}", client.commit(&repo(), "main").unwrap_err());
}

#[test]
fn a_host_without_a_name_is_reported() {
    let policy = Some(RetryPolicy { attempts: Some(1), ..HUB_RETRY_POLICY });
    let reader = Setup { policy, ..Setup::default() }.client("http://hub.invalid");
    let error = reader.client.commit(&repo(), "main").unwrap_err();
    assert!(matches!(&error, HubError::Unreachable { host, .. } if host == "hub.invalid"), "{error}");
}

#[test]
fn a_server_that_is_no_hub_is_reported() {
    let hub = Hub::start();
    let reader = Setup::default().client(&format!("http://{}", hub.cdn()));
    let error = reader.client.commit(&repo(), "main").unwrap_err();
    assert!(!error.is_temporary(), "{error}");
}

#[test]
fn no_message_shows_the_token() {
    let hub = hub_with(&noise(10_000));
    let mut printed = Vec::new();
    let reader = Reader::with_token(&hub, SECRET);
    printed.push(format!("{:?}", reader.client));
    printed.push(format!("{:?}", HubToken::parse(SECRET, "HF_TOKEN").unwrap()));
    // the hub first refuses the token, and accepts it after `hub.user`
    let refused = reader.text("data/*").unwrap_err();
    printed.push(format!("{refused} {refused:?}"));
    hub.user(SECRET);
    hub.faults(|faults| (faults.answers, faults.truncate_at) = (vec![PlannedAnswer::hub(503); 3], Some(0)));
    let broken = reader.text("data/*").unwrap_err();
    let words = format!("{SECRET} may not read it");
    hub.faults(|faults| faults.answers = vec![PlannedAnswer::hub(403).with("x-error-message", &words)]);
    let forbidden = reader.text("data/*").unwrap_err();
    printed.push(format!("{forbidden} {forbidden:?}"));
    printed.push(format!("{broken} {broken:?}"));
    printed.extend(reader.notices());
    assert!(printed.len() > 6);
    assert!(printed.iter().all(|text| !text.contains("Secret") && !text.contains("Signature")), "{printed:#?}");
}

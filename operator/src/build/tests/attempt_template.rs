//! Tests of the attempt template, of its ConfigMap, and of the job file in the ConfigMap.

use super::*;

#[test]
fn the_config_map_stores_the_attempt_template() {
    let containers = json!([{"name": "trainer", "image": "mine:2"}]);
    let attempt = attempt(json!({"spec": {"terminationGracePeriodSeconds": 7, "containers": containers}}));
    let map = config_map(&attempt);
    assert_eq!((&map["immutable"], &map["metadata"]["name"]), (&json!(true), &json!("shakespeare-3")));
    assert_eq!(read(&map).unwrap(), attempt);
    // the job file has the stages of the attempt and the grace period, and no field that only the operator uses
    let stage = parse_with(map["data"]["job.yaml"].as_str().unwrap(), "job.yaml", &[]).unwrap();
    assert_eq!((stage.spec.stages, stage.status), (3, None));
    let template = stage.spec.template.map(|template| Value::Object(template.0));
    assert_eq!(template, Some(json!({"spec": {"terminationGracePeriodSeconds": 7}})));
    let mut broken = map.clone();
    broken["data"]["blueprint.json"] = "{}".into();
    assert!(read(&broken).unwrap_err().to_string().contains("shakespeare-3 holds no template"));
    let text = map["data"]["blueprint.json"].as_str().unwrap();
    broken["data"]["blueprint.json"] = text.replace("\"stages\":3", "\"stages\":4000000000").into();
    assert!(read(&broken).unwrap_err().to_string().contains("shakespeare-3 has no valid number of stages"));
}

/// A trainer of an older version rejects unknown fields.
#[test]
fn the_job_file_has_what_the_trainer_needs_and_nothing_at_its_default() {
    let mut job = job(json!({"spec": {"nodeSelector": {"gpu": "h100"}}}));
    let timeouts = json!({"startupTimeoutSeconds": 6, "reformTimeoutSeconds": 7, "heartbeatTimeoutSeconds": 8, "stallTimeoutSeconds": 9});
    job.spec.restart = serde_json::from_value(timeouts.clone()).unwrap();
    job.spec.restart.max_restarts = 3;
    job.spec.data.as_mut().unwrap().credentials = Some(CredentialsSpec { secret_name: "hub".into() });
    job.spec.network_policy.egress_cidrs.push("0.0.0.0/0".into());
    (job.spec.active_deadline_seconds, job.spec.scheduling.timeout_seconds) = (Some(9), 7);
    let file: Value = serde_json::from_str(&AttemptTemplate::new(&job, NUMBER_3, "a", None).unwrap().job_file).unwrap();
    let mut fields: Vec<&String> = file["spec"].as_object().unwrap().keys().collect();
    fields.sort();
    assert_eq!(fields, ["data", "model", "restart", "stages", "storage", "training"], "{file:#}");
    assert_eq!((&file["spec"]["restart"], &file["spec"]["data"]["credentials"]), (&timeouts, &Value::Null));
    let read = parse_with(&file.to_string(), "job.yaml", &[]).unwrap();
    assert_eq!((&read.spec.model, &read.spec.training), (&job.spec.model, &job.spec.training));
}

#[test]
fn an_attempt_of_the_same_revision_keeps_the_job_file_but_for_its_own_stages_and_timeouts() {
    let job = job(json!({}));
    let new = |attempt, job| AttemptTemplate::new(job, attempt, "a", None).unwrap();
    let mut before = new(NUMBER_3, &job);
    // another version of the operator has written a file with other fields
    let mut file: Value = serde_json::from_str(&before.job_file).unwrap();
    file["spec"]["pipeline"]["ofAnotherVersion"] = 1.into();
    file["spec"]["restart"]["stallTimeoutSeconds"] = 5.into();
    before.job_file = file.to_string();
    let read = |attempt: &AttemptTemplate| serde_json::from_str::<Value>(&attempt.job_file).unwrap();
    let after = new(Attempt { number: 4, mesh: Mesh::pipeline(2), ..NUMBER_3 }, &job);
    let kept = after.clone().with_job_file_of(&before);
    assert_eq!((&read(&kept)["spec"]["stages"], &read(&kept)["spec"]["restart"]), (&json!(2), &Value::Null));
    assert_eq!(read(&kept)["spec"]["pipeline"]["ofAnotherVersion"], 1);
    for other in [Some(8), None] {
        let other = AttemptTemplate { revision: other, ..before.clone() };
        assert_eq!(after.clone().with_job_file_of(&other), after);
    }
    let unreadable = AttemptTemplate { job_file: "a: b".into(), ..before };
    assert_eq!(after.clone().with_job_file_of(&unreadable), after);
}

/// An operator of another version reads this ConfigMap, so the keys never change.
#[test]
fn the_config_map_of_an_attempt_never_changes_its_form() {
    let template = json!({"spec": {"containers": [{"name": "trainer", "image": "mine:2"}]}});
    let text = json!({"attempt": 3, "stages": 2, "revision": 7, "builtIn": true, "claim": "training",
                      "gang": "scheduling.volcano.sh/v1beta1", "template": template})
    .to_string();
    let data = json!({"job.yaml": "the job", "blueprint.json": text});
    let attempt = read(&json!({"metadata": {"name": "shakespeare-3"}, "data": data})).unwrap();
    let expected = AttemptTemplate {
        number: 3,
        mesh: Mesh::pipeline(2),
        gang_size: 2,
        revision: Some(7),
        built_in: true,
        job_file: "the job".into(),
        claim: Some("training".into()),
        credentials: None,
        pod_group_api: Some(PodGroupApi::Volcano),
        placement: None,
        excluded_nodes: [].into(),
        pod_template: template.as_object().cloned().unwrap(),
    };
    assert_eq!(attempt, expected);
    assert_eq!(config_map(&attempt)["data"], data);
    let excluding = AttemptTemplate { excluded_nodes: ["a".to_owned()].into(), ..attempt.clone() };
    assert_eq!(read(&config_map(&excluding)).unwrap(), excluding);
    let with_secret = AttemptTemplate { credentials: Some("hub".into()), ..attempt.clone() };
    assert_eq!(read(&config_map(&with_secret)).unwrap(), with_secret);
    let mesh = Mesh { stages: 2, data_parallel: 3 };
    let elastic = AttemptTemplate { mesh, gang_size: 4, ..attempt.clone() };
    assert_eq!(read(&config_map(&elastic)).unwrap(), elastic);
    let versions: Vec<_> = PodGroupApi::ALL.into_iter().map(PodGroupApi::api_version).collect();
    assert_eq!(
        versions,
        [
            "scheduling.k8s.io/v1beta1",
            "scheduling.k8s.io/v1alpha2",
            "scheduling.volcano.sh/v1beta1",
            "scheduling.x-k8s.io/v1alpha1"
        ]
    );
    let labels = &pod(&AttemptTemplate { pod_group_api: None, ..attempt }, 1)["metadata"]["labels"];
    for (label, value) in
        [("job", "shakespeare"), ("job-uid", "u-1"), ("attempt", "3"), ("stage", "1"), ("incarnation", "0")]
    {
        assert_eq!(labels[&format!("stagecoach.dev/{label}")], value);
    }
}

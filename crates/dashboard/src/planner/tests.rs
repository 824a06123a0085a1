use std::path::Path;

use proptest::prelude::*;
use serde_json::{Value, json};
use stagecoach_api::PipelineJob;
use stagecoach_planner::{JobConfig, plan_pipeline};

use super::choice::Choice;
use super::*;

const SAMPLE: &str = include_str!("../../../../manifests/samples/shakespeare.yaml");
const HOSTILE: &str = "</title><script>alert(1)</script>\"'><img src=x>";

fn job(set: &[(&str, &str)]) -> PipelineJob {
    let set: Vec<_> = set.iter().map(|(path, value)| ((*path).to_owned(), (*value).to_owned())).collect();
    stagecoach_api::parse_with(SAMPLE, "shakespeare.yaml", &set).unwrap()
}

fn config(job: PipelineJob) -> JobConfig {
    JobConfig::new(job, Path::new("/tmp")).unwrap()
}

/// Returns the planner of the sample job with the changes `set`.
fn planner(set: &[(&str, &str)]) -> Planner {
    Planner::new(config(job(set)), 4096, Default::default())
}

fn query(fields: &str) -> PlannerQuery {
    let address: axum::http::Uri = format!("/?{fields}").parse().unwrap();
    Query::try_from_uri(&address).unwrap().0
}

/// Returns the seconds of a step that the planner simulates.
fn step(planner: &Planner, fields: &str) -> f64 {
    planner.model(&query(fields)).planned.unwrap().layout.timeline.makespan
}

#[test]
fn without_a_choice_the_plan_is_that_of_the_job() {
    let (planner, config) = (planner(&[]), config(job(&[])));
    let own =
        plan_pipeline(&config, config.architecture(4096, tch::Device::Cpu).as_ref(), 3, &Default::default()).unwrap();
    assert_eq!(step(&planner, ""), own.timeline.makespan);
    let page = html::page(&planner, &query(""));
    for shown in [
        "No change: the job already has these values",
        "stage 2",
        "The choice of Auto",
        "value=\"3\"",
        "no memoryLimit is set",
    ] {
        assert!(page.contains(shown), "no {shown:?} in {page}");
    }
    assert!(!page.contains("the job's") && !page.contains("class=\"problem\""), "{page}");
}

#[test]
fn a_choice_is_planned_as_if_the_job_had_it() {
    let set = [
        ("stages", "2"),
        ("training.microbatches", "16"),
        ("pipeline.schedule.type", "InterleavedZeroBubble"),
        ("pipeline.virtualStages", "2"),
        ("pipeline.recompute", "Full"),
    ];
    let fields = "stages=2&microbatches=16&schedule=InterleavedZeroBubble&virtualStages=2&recompute=Full";
    let config = config(job(&set));
    let asked =
        plan_pipeline(&config, config.architecture(4096, tch::Device::Cpu).as_ref(), 2, &Default::default()).unwrap();
    let planner = planner(&[]);
    let planned = planner.model(&query(fields)).planned.unwrap();
    assert_eq!((&planned.layout.timeline, &planned.layout.partition), (&asked.timeline, &asked.partition));
    let page = html::page(&planner, &query(fields));
    for shown in
        ["the job's", "    virtualStages: 2\n", "a job that has begun keeps", "selected>InterleavedZeroBubble<"]
    {
        assert!(page.contains(shown), "no {shown:?} in {page}");
    }
}

#[test]
fn an_impossible_choice_shows_its_sentence_and_keeps_the_fields() {
    let planner = planner(&[("pipeline.memoryLimit", "400Mi")]);
    for (fields, sentence) in [
        ("stages=0", "spec.stages: is 0; a job has 1 to 256 stages."),
        ("stages=x", "stages: `x` is not a whole number."),
        ("microbatches=7", "spec.training.microbatches: is 7, which does not divide globalBatchSize 32"),
        (
            "schedule=ZBVZeroBubble",
            "spec.pipeline.virtualStages: is 1, but ZBVZeroBubble has two chunks per stage: remove virtualStages or \
             set it to 2.",
        ),
        ("schedule=Csv", "schedule: `Csv` is not one of the choices."),
        ("schedule=Interleaved1F1B&virtualStages=65", "is 65; a stage has 1 to 64 chunks."),
        ("recompute=All", "recompute: `All` is not one of the choices."),
        ("stage=3&speed=0.5", "stage: there is no stage 3: the last stage is 2."),
        ("speed=0", "speed of a stage: `0` is not a number from 0.01 to 100."),
        ("speed=NaN", "speed of a stage: `NaN` is not a number from 0.01 to 100."),
        ("bandwidth=-1", "link bandwidth: `-1` is not a number from 0.001 to 100000."),
        ("stages=1&microbatches=1&recompute=None", "raise the limit to "),
    ] {
        let page = html::page(&planner, &query(fields));
        assert!(page.contains(sentence), "no {sentence:?} in {page}");
        assert!(page.contains("class=\"problem\"") && !page.contains("Write this into the job"), "{fields}: {page}");
        let (name, value) = fields.split('&').next().unwrap().split_once('=').unwrap();
        // the form can't show an invalid value in a field that is a list
        let is_listed = ["schedule", "recompute"].contains(&name);
        assert!(is_listed || page.contains(&format!("name=\"{name}\" value=\"{value}\"")), "{fields}: {page}");
    }
    let large = Planner::new(config(job(&[("training.globalBatchSize", "262144")])), 4096, Default::default());
    let sentence = large.model(&query("stages=8&microbatches=262144")).planned.unwrap_err();
    assert!(
        sentence.contains("at most 65,536 work items (chunks times microbatches), and this choice has 2,097,152"),
        "{sentence}"
    );
}

#[test]
fn machines_change_the_step_and_not_the_job() {
    let planner = planner(&[]);
    let own = step(&planner, "");
    assert!(step(&planner, "stage=1&speed=0.5") > 1.05 * own);
    assert!(step(&planner, "stage=1&speed=2") < own, "one that is faster");
    assert!(step(&planner, "bandwidth=0.01") > 1.5 * own && step(&planner, "bandwidth=1000") < own);
    // the pipeline has one stage, which is twice as fast
    let halved = step(&planner, "stages=1&speed=2") / step(&planner, "stages=1");
    assert!((halved - 0.5).abs() < 1e-9, "{halved}");
    let page = html::plan(&planner, &query("stage=1&speed=0.5&bandwidth=1"));
    assert!(
        page.contains("longer than the job's") && page.contains("No change: the job already has these values"),
        "{page}"
    );
}

#[test]
fn auto_shows_what_it_chooses_from_whatever_the_schedule_is() {
    let planner = planner(&[("model.llama.numHiddenLayers", "12")]);
    let auto = html::auto(&planner, &query("schedule=GPipe"));
    let layout = planner.auto(&query("")).unwrap().layout;
    let links = auto.matches("<a href=\"?stages=3&amp;microbatches=8&amp;schedule=").count();
    assert_eq!(links, layout.alternatives.len(), "{auto}");
    assert!(
        auto.contains(
            "<tr aria-current=\"true\"><th scope=\"row\"><a href=\"?stages=3&amp;microbatches=8&amp;schedule=GPipe&"
        ),
        "{auto}"
    );
    // each link is a choice, and no choice has a shorter step than the choice of Auto
    let fastest = layout.timeline.makespan;
    for link in auto.split("<a href=\"?").skip(1) {
        let fields = link.split_once('"').unwrap().0.replace("&amp;", "&");
        assert!(step(&planner, &fields) >= fastest, "{fields}");
    }
    assert!(html::auto(&planner, &query("microbatches=7")).contains("does not divide globalBatchSize"));
}

#[test]
fn a_large_pipeline_has_its_table_and_no_picture() {
    let large = [("training.globalBatchSize", "256"), ("stages", "64"), ("training.microbatches", "256")];
    let plan = html::plan(&planner(&large), &query(""));
    assert!(
        plan.contains("Too many actions to draw here") && plan.matches("<meter").count() == 64,
        "{} bytes",
        plan.len()
    );
}

#[test]
fn text_of_job_and_query_stays_text_and_nothing_is_inline() {
    let mut config = config(job(&[]));
    config.job.metadata.name = HOSTILE.into();
    let planner = Planner::new(config, 4096, Default::default());
    let fields = PlannerQuery { stages: HOSTILE.into(), bandwidth: HOSTILE.into(), ..PlannerQuery::default() };
    let page = html::page(&planner, &fields);
    assert!(page.matches("&lt;script&gt;").count() >= 5, "{page}");
    assert_eq!(page.matches("<script").count(), 1, "the page's own: {page}");
    for forbidden in ["<img", "<style", "style=", "onclick", "javascript:", "https://", "href=\"/", "src=\"/"] {
        assert!(!page.contains(forbidden), "{forbidden} in {page}");
    }
}

/// Adds lines to a job, as a user adds the lines to the job's file. A schedule in the lines replaces the whole schedule
/// of the job.
fn written(job: &PipelineJob, lines: &str) -> PipelineJob {
    fn merge(into: &mut Value, lines: Value) {
        match (into, lines) {
            (Value::Object(into), Value::Object(lines)) if !lines.contains_key("type") => {
                lines.into_iter().for_each(|(name, value)| merge(into.entry(name).or_insert(Value::Null), value));
            }
            (into, value) => *into = value,
        }
    }
    let mut file: Value = serde_json::from_str(&job.to_json().unwrap()).unwrap();
    merge(&mut file, serde_saphyr::from_str(lines).unwrap());
    stagecoach_api::parse(&json!(file).to_string(), "job.yaml").unwrap()
}

fn choices() -> impl Strategy<Value = Choice> {
    let own = Choice::of(&config(job(&[])));
    let (schedules, recomputes) = (own.schedules(), choice::RECOMPUTES.to_vec());
    let numbers = (1u32..12, prop::sample::select(vec![1u32, 2, 4, 8, 16, 32]), 1u32..4, 0u32..12);
    let machines = (prop::sample::select(vec![1.0, 0.5, 3.0]), prop::option::of(0.1f64..100.0));
    (numbers, prop::sample::select(schedules), prop::sample::select(recomputes), machines).prop_map(
        |((stages, microbatches, virtual_stages, stage), schedule, recompute, (speed, bandwidth))| Choice {
            stages,
            microbatches,
            schedule,
            virtual_stages,
            recompute,
            stage,
            speed,
            bandwidth,
        },
    )
}

fn texts() -> impl Strategy<Value = String> {
    prop_oneof![
        any::<String>(),
        (0u64..70).prop_map(|number| number.to_string()),
        any::<f64>().prop_map(|number| number.to_string()),
        prop::sample::select(vec!["", "1F1B", "Auto", "Csv", "ZBVZeroBubble", "Full", "4294967295"])
            .prop_map(str::to_owned),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn the_lines_make_the_job_that_was_planned(choice in choices()) {
        let job = job(&[]);
        let own = Choice::of(&config(job.clone()));
        let mut chosen = job.clone();
        choice.apply(&mut chosen);
        let after = choice.yaml(&own).map_or_else(|| job.clone(), |lines| written(&job, &lines));
        prop_assert_eq!(&after, &chosen);
        // the address of a choice leads back to the choice
        prop_assert_eq!(Choice::read(&query(&choice.address()[1..]), &own).unwrap(), choice);
    }

    #[test]
    fn every_choice_has_a_plan_or_a_sentence(choice in choices()) {
        let planner = planner(&[]);
        let page = html::page(&planner, &PlannerQuery::from(&choice));
        prop_assert!(page.contains("class=\"problem\"") != page.contains("Write this into the job"));
        prop_assert!(!page.contains("NaN") && !page.contains("inf"), "{}", page);
    }

    #[test]
    fn every_query_has_a_page(fields in prop::array::uniform8(texts())) {
        let [stages, microbatches, schedule, virtual_stages, recompute, stage, speed, bandwidth] = fields;
        let fields = PlannerQuery { stages, microbatches, schedule, virtual_stages, recompute, stage, speed, bandwidth };
        let page = html::page(&planner(&[]), &fields);
        prop_assert!(page.contains("<h1>shakespeare</h1>") && page.ends_with("</html>"));
    }
}

use super::*;

fn explained(path: &str) -> String {
    explain(Field::pipeline_job().find(path).unwrap(), 80)
}

/// Returns the text without the lines with which every text of `explain` begins.
fn below_version(text: &str) -> &str {
    text.strip_prefix("GROUP:      stagecoach.dev\nKIND:       PipelineJob\nVERSION:    v1alpha1\n\n").unwrap()
}

#[test]
fn an_object_lists_its_fields() {
    let expected = "\
FIELD: evaluation <Object>

DESCRIPTION:
    The held-out part of the corpus, and its evaluation. If unset, the job holds
    out no data.

REFUSALS:
    - evaluation has both fraction and paths: remove one of them

FIELDS:
  fraction\t<number>
    The fraction of each source's documents that the job holds out.

  paths\t<[]string>
    The files that the job holds out as a whole, as paths or globs like those of
    `data.paths`.

  sets\t<[]Object>
    Additional held-out sets.

  everySteps\t<integer>
  default: 100
    The number of steps between two evaluations.

  maxSequences\t<integer>
    The maximum number of sequences that an evaluation reads from each set.

  keepBest\t<boolean>
    Whether the job keeps the checkpoint with the lowest held-out loss, in
    addition to those of `checkpoint.keepLast`.

  patience\t<integer>
    The number of consecutive evaluations without a lower held-out loss after
    which the job ends.";
    assert_eq!(below_version(&explained("spec.data.evaluation")), expected);
}

#[test]
fn a_list_has_the_limits_and_rules_of_its_items() {
    let expected = "\
FIELD: paths <[]string>
LIMITS:
    - 1 to 1000 items; name at least one file or glob
    - each item: 1 to 4096 characters; give a path relative to the volume's root

DESCRIPTION:
    The files of the corpus, as paths or globs. A glob may contain `**`. An
    entry is a path relative to the volume's root,
    `hf://datasets/OWNER/NAME[@REVISION]/GLOB` for files of the Hugging Face
    hub, or `s3://BUCKET/GLOB`, `gs://BUCKET/GLOB` or `az://CONTAINER/GLOB` for
    files of object stores. The extension of a file selects its format. Mutually
    exclusive with `sources`.

REFUSALS:
    - an item of paths is absolute: give a path relative to the volume's root
    - an item of paths leaves the volume by `..`: give a path inside it
    - an item of paths contains a NUL character, which a path can't contain
    - an item of paths is a URI of another scheme than hf://, s3://, gs:// and
      az://

CHANGE:
    A change is refused once training has begun, because the field determines
    the results.";
    assert_eq!(below_version(&explained("pipelinejob.spec.data.paths")), expected);
}

#[test]
fn a_choice_has_its_values_and_its_default() {
    let expected = "\
FIELD: specialTokens <string>
ENUM:
    Text
    Parse
DEFAULT:
    Text

DESCRIPTION:
    Whether text that looks like a special token of the tokenizer, such as
    `<|im_start|>`, becomes that token.
    - Text: The text stays text, so that a document can't forge a token.
      Documents still begin and end with special tokens.
    - Parse: The text becomes the token, as in texts that a chat template wrote.

CHANGE:
    A change is refused once training has begun, because the field determines
    the results.";
    assert_eq!(below_version(&explained("spec.data.specialTokens")), expected);
}

#[test]
fn the_job_itself_is_no_field() {
    let text = explained("");
    let text = below_version(&text);
    assert!(text.starts_with("DESCRIPTION:\n    A training job: a pipeline"), "{text}");
    assert!(text.contains("  spec\t<Object> -required-\n    The desired state: "), "{text}");
}

#[test]
fn a_tree_has_names_types_and_values() {
    let text = explain_recursively(Field::pipeline_job().find("spec.data.tokenizer").unwrap(), 80);
    let (_, fields) = text.split_once("\n\nFIELDS:\n").unwrap();
    let expected = "  \
  type\t<string> -required-
  enum: Train, File
  train\t<Object>
    vocabSize\t<integer> -required-
  file\t<Object>
    path\t<string> -required-
    bos\t<string>
    eos\t<string>
    pad\t<string>";
    assert_eq!(fields, expected);
}

#[test]
fn sentences_on_every_field_fit_into_the_width() {
    let job = Field::pipeline_job();
    for width in [40, 80, 200] {
        for field in job.all() {
            let text = explain(field, width);
            for line in text.lines().filter(|line| line.chars().count() > width && !line.contains('\t')) {
                let words = line.trim_start_matches([' ', '-']).split(' ').count();
                let is_path = line.starts_with("FIELD: ") || words == 1;
                assert!(is_path, "{} at {width}: {line}", field.path);
            }
        }
    }
}

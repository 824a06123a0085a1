//! Tests which files a pattern matches.

use stagecoach_hub::HubError;
use stagecoach_test_hub::{File, Hub};

use crate::{REPO, Reader, repo};

fn hub() -> Hub {
    let hub = Hub::start();
    let paths = ["README.md", ".gitattributes", "data/a.json", "data/b.json", "data/deep/c.json", "data/d.txt"];
    hub.put(REPO, "main", paths.map(|path| (path, File::small(path))));
    hub
}

fn paths(reader: &Reader, pattern: &str) -> Result<Vec<String>, HubError> {
    let commit = reader.client.commit(&repo(), "main").unwrap();
    let files = reader.client.files(&repo(), &commit, pattern)?;
    Ok(files.into_iter().map(|file| file.path).collect())
}

#[test]
fn patterns_match_files_of_all_pages() {
    let hub = hub();
    let reader = Reader::new(&hub);
    for page_size in [1, 2, 1000] {
        hub.faults(|faults| faults.page_size = page_size);
        assert_eq!(paths(&reader, "data/*.json").unwrap(), ["data/a.json", "data/b.json"]);
        assert_eq!(paths(&reader, "data/**/*.json").unwrap(), ["data/a.json", "data/b.json", "data/deep/c.json"]);
        assert_eq!(paths(&reader, "*/[d]*.txt").unwrap(), ["data/d.txt"]);
        assert_eq!(paths(&reader, "README.md").unwrap(), ["README.md"]);
        assert_eq!(paths(&reader, "").unwrap().len(), 5);
    }
}

#[test]
fn only_the_folder_of_the_pattern_is_listed() {
    let hub = hub();
    let reader = Reader::new(&hub);
    paths(&reader, "data/deep/*").unwrap();
    let listed = hub.take_requests().pop().unwrap().path;
    assert!(listed.ends_with("/data/deep"), "{listed}");
}

#[test]
fn what_is_there_is_named_if_nothing_matches() {
    let hub = hub();
    let reader = Reader::new(&hub);
    let printed = |pattern| paths(&reader, pattern).unwrap_err().to_string();
    let commit = reader.client.commit(&repo(), "main").unwrap();
    assert_eq!(
        printed("data/*.parquet"),
        format!(
            "no file of the dataset org/plays matches \"data/*.parquet\" at commit {commit}: its folder data holds \
             data/a.json, data/b.json, data/d.txt and 1 more"
        )
    );
    assert!(
        printed("dta/*.json").ends_with("the repository holds .gitattributes, README.md, data"),
        "{}",
        printed("dta/*.json")
    );
    assert!(printed("data").ends_with("the repository holds .gitattributes, README.md, data"), "{}", printed("data"));
    assert!(printed("a/***").contains("not a valid pattern"));
}

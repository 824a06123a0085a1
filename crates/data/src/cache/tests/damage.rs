//! Tests of incomplete and damaged files, and of the files that other processes are writing.

use stagecoach_files::AtomicFile;

use super::*;

/// Removes `meta.json` and creates an empty folder of parts, as if a run had been interrupted. Returns the cache
/// folder.
fn remove_final_files(config: &DataConfig, prepared: &PreparedCorpus) -> PathBuf {
    let folder = config.cache_root.join(&prepared.folder);
    fs::remove_file(folder.join("meta.json")).unwrap();
    fs::create_dir(folder.join("parts")).unwrap();
    folder
}

#[test]
fn incomplete_files_are_replaced() {
    let (_folder, config) = volume();
    let prepared = run(&config);
    let expected = contents(&config);
    let folder = remove_final_files(&config, &prepared);
    fs::write(folder.join("ids.bin"), b"from another time").unwrap();
    let abandoned = folder.join("ids.bin.0123456789abcdef.unfinished");
    fs::write(&abandoned, b"half").unwrap();
    touch(&abandoned, 1_000_000_000);
    fs::write(folder.join("parts/000000.0123456789abcdef.partial"), b"half").unwrap();
    fs::write(folder.join("parts/000000"), b"{\"tokenizer\":").unwrap();
    fs::write(folder.join("parts/000001"), b"").unwrap();
    assert_eq!(run(&config), prepared);
    assert!(contents(&config) == expected);
}

#[test]
fn a_damaged_cache_is_built_again() {
    for (file, damage) in [("ids.bin", "x"), ("documents.bin", ""), ("tokenizer.json", "{}"), ("meta.json", "{")] {
        let (_folder, config) = volume();
        let prepared = run(&config);
        let expected = contents(&config);
        let folder = config.cache_root.join(&prepared.folder);
        fs::write(folder.join(file), damage).unwrap();
        assert_eq!(run(&config), prepared, "{file}");
        assert!(contents(&config) == expected, "{file}");
    }
}

/// A damaged `meta.json` may still be valid JSON.
#[test]
fn counts_that_no_file_can_have_are_damage() {
    let (_folder, config) = volume();
    let prepared = run(&config);
    let meta = config.cache_root.join(&prepared.folder).join("meta.json");
    for field in ["tokens", "documents"] {
        let mut content: Value = serde_json::from_slice(&fs::read(&meta).unwrap()).unwrap();
        assert!(content[field].is_u64(), "{content}");
        content[field] = u64::MAX.into();
        fs::write(&meta, content.to_string()).unwrap();
        assert_eq!(run(&config), prepared, "{field}");
    }
}

/// A concurrent call may still write a file, for example the hashes of the documents, after this call has tokenised the
/// same corpus.
#[test]
fn the_files_of_running_processes_stay() {
    let (_folder, config) = volume();
    let prepared = run(&config);
    let folder = remove_final_files(&config, &prepared);
    let hashes = folder.join("hashes.bin");
    let slow = AtomicFile::create(&hashes).unwrap();
    slow.try_lock();
    let mut names = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let name = names.find(|name| stagecoach_files::target_of_temporary_file(name) == Some("hashes.bin")).unwrap();
    touch(&folder.join(name), 1_000_000_000);
    let young = AtomicFile::create(&folder.join("meta.json")).unwrap();
    assert_eq!(run(&config), prepared);
    slow.commit().unwrap();
    young.commit().unwrap();
    assert!(hashes.exists());
}

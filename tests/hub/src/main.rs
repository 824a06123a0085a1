//! Serves the repositories of a folder, `FOLDER/{datasets,models}/OWNER/NAME/...`, as a hub does, until standard input
//! ends. The CDN serves the files of a mebibyte or more. Prints the value for `HF_ENDPOINT`.

use std::env;
use std::error::Error;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use stagecoach_test_hub::{File, Hub};

const LARGE: usize = 1 << 20;

fn main() -> Result<(), Box<dyn Error>> {
    let root = PathBuf::from(env::args_os().nth(1).ok_or("usage: stagecoach-test-hub FOLDER")?);
    let hub = Hub::start();
    for kind in ["datasets", "models"].map(|kind| root.join(kind)).iter().filter(|kind| kind.is_dir()) {
        for owner in folders(kind)? {
            for repo in folders(&owner)? {
                let mut files = Vec::new();
                collect(&repo, &repo, &mut files)?;
                let name = repo.strip_prefix(&root)?.to_string_lossy().into_owned();
                hub.put(&name, "main", files.iter().map(|(path, file)| (path.as_str(), file.clone())));
            }
        }
    }
    println!("{}", hub.endpoint());
    io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

fn folders(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let paths = fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>()?;
    Ok(paths.into_iter().filter(|path| path.is_dir()).collect())
}

fn collect(repo: &Path, folder: &Path, files: &mut Vec<(String, File)>) -> Result<(), Box<dyn Error>> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            collect(repo, &path, files)?;
        } else {
            let bytes = fs::read(&path)?;
            let file = if bytes.len() < LARGE { File::small(bytes) } else { File::large(bytes) };
            files.push((path.strip_prefix(repo)?.to_string_lossy().into_owned(), file));
        }
    }
    Ok(())
}

//! A run on a volume that the test fills and frees.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};

use rustix::process::{Pid, Resource, Rlimit, prlimit};

use crate::{TestJob, signal, spawn, stagecoach, stages, until};

/// The size of the tmpfs in bytes.
const SIZE: usize = 16 << 20;
/// The name of the file that fills the volume.
const FILLER: &str = "filler";

/// The cause of a full volume.
#[derive(Clone, Copy, Debug)]
pub enum FullVolumeCause {
    /// RLIMIT_FSIZE: neither the launcher nor a stage can write to any file. A test needs no privilege for this cause.
    Limit,
    /// A small tmpfs in a mount namespace of the launcher. The namespace ends with the launcher. The value has the
    /// options of `unshare` that create the namespace.
    Tmpfs(&'static [&'static str]),
}

impl FullVolumeCause {
    /// Returns the causes that this machine can produce: always the limit, and a tmpfs if root or a user namespace can
    /// mount one.
    pub fn available() -> Vec<FullVolumeCause> {
        let folder = tempfile::tempdir().unwrap();
        let mounts = |options: &[&str]| {
            let mut unshare = Command::new("unshare");
            unshare.args(options).args(["mount", "-t", "tmpfs", "none"]).arg(folder.path());
            unshare.stderr(Stdio::null()).status().is_ok_and(|status| status.success())
        };
        let options: [&[&str]; 2] = [&["--mount"], &["--mount", "--map-root-user"]];
        let tmpfs = options.into_iter().find(|options| mounts(options)).map(FullVolumeCause::Tmpfs);
        if tmpfs.is_none() {
            println!("no tmpfs may be mounted here: the volume is full by RLIMIT_FSIZE alone");
        }
        [FullVolumeCause::Limit].into_iter().chain(tmpfs).collect()
    }

    /// Returns the options of `unshare` for a namespace that can mount a tmpfs, or `None` for the limit.
    pub fn unshare_options(self) -> Option<&'static [&'static str]> {
        match self {
            FullVolumeCause::Limit => None,
            FullVolumeCause::Tmpfs(options) => Some(options),
        }
    }
}

/// A launcher on a volume that the test can fill. Dropping this value kills the launcher and its stages.
#[derive(Debug)]
pub struct FillableRun {
    child: Child,
    full: FullVolumeCause,
    output: Arc<Mutex<String>>,
    /// The workspace as the launcher sees it. While this file is open, the workspace exists even after the launcher's
    /// end.
    workspace: File,
    _folder: tempfile::TempDir,
}

impl FillableRun {
    /// Starts `job` on a volume that initially is a copy of the folder `seed`. The launcher writes its output to pipes,
    /// because the limit on files does not apply to pipes.
    pub fn start(full: FullVolumeCause, seed: &Path, job: &TestJob) -> FillableRun {
        let folder = tempfile::tempdir().unwrap();
        let mount = folder.path().join("workspace");
        fs::create_dir(&mount).unwrap();
        fs::write(seed.join("job.yaml"), job.yaml()).unwrap();
        let mut command = match full {
            FullVolumeCause::Limit => Command::new("sh"),
            FullVolumeCause::Tmpfs(options) => {
                let mut unshare = Command::new("unshare");
                unshare.args(options).arg("sh");
                unshare
            }
        };
        let mounted = match full {
            FullVolumeCause::Limit => String::new(),
            FullVolumeCause::Tmpfs(_) => format!("mount -t tmpfs -o size={SIZE} none \"$2\" && "),
        };
        // a write beyond the limit must fail and must not kill the process
        let script = format!("trap '' XFSZ; {mounted}cp -r \"$1\"/. \"$2\" && cd \"$2\" && shift 2 && exec \"$@\"");
        command.args(["-c", &script, "sh"]).args([seed, &mount]).arg(stagecoach());
        command.args(["run", "job.yaml", "--workspace", "."]).env("RUST_LOG", "info");
        let mut child = spawn(command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped())).unwrap();
        let output = Arc::default();
        collect_output(child.stdout.take().unwrap(), &output);
        collect_output(child.stderr.take().unwrap(), &output);
        let inside = Path::new("/proc").join(child.id().to_string()).join("cwd");
        let workspace = until("the workspace", || {
            fs::metadata(inside.join("job.yaml")).ok()?;
            File::open(&inside).ok()
        });
        FillableRun { child, full, output, workspace, _folder: folder }
    }

    /// Fills the volume. Every later write fails.
    pub fn fill(&self) {
        match self.full {
            FullVolumeCause::Limit => self.limit(Some(0)),
            FullVolumeCause::Tmpfs(_) => {
                let mut filler = File::create(self.path(FILLER)).unwrap();
                for size in [1 << 20, 4 << 10] {
                    let bytes = vec![1; size];
                    let full = std::iter::repeat_with(|| filler.write_all(&bytes)).find_map(Result::err).unwrap();
                    assert_eq!(full.kind(), std::io::ErrorKind::StorageFull);
                }
            }
        }
    }

    /// Frees space in the volume.
    pub fn free(&self) {
        match self.full {
            FullVolumeCause::Limit => self.limit(None),
            FullVolumeCause::Tmpfs(_) => fs::remove_file(self.path(FILLER)).unwrap(),
        }
    }

    /// Sets the largest size in bytes to which the launcher and its stages can write a file. `None` means no limit.
    fn limit(&self, bytes: Option<u64>) {
        for pid in self.stages().into_iter().chain([self.child.id()]) {
            let limit = Rlimit { current: bytes, maximum: None };
            prlimit(Pid::from_raw(pid as i32), Resource::Fsize, limit).unwrap();
        }
    }

    /// Returns the process ids of the stages, by rank.
    pub fn stages(&self) -> Vec<u32> {
        stages(self.child.id())
    }

    /// Returns the launcher's output so far.
    pub fn printed(&self) -> String {
        self.output.lock().unwrap().clone()
    }

    /// Waits until the launcher's output satisfies `condition`.
    ///
    /// # Panics
    /// If the launcher ends before that, or if the deadline of `until` passes.
    pub fn wait(&mut self, what: &str, condition: impl Fn(&str) -> bool) {
        until(what, || {
            let ended = self.child.try_wait().unwrap();
            let printed = self.printed();
            assert!(ended.is_none() || condition(&printed), "the launcher ended ({ended:?}) before {what}:\n{printed}");
            condition(&printed).then_some(())
        });
    }

    /// Returns the path of a file in the workspace. The path stays valid after the launcher's end.
    pub fn path(&self, name: &str) -> PathBuf {
        Path::new("/proc/self/fd").join(self.workspace.as_raw_fd().to_string()).join(name)
    }

    /// Stops the launcher by Ctrl-C and waits for its end.
    pub fn interrupt(&mut self) -> ExitStatus {
        signal(self.child.id(), libc::SIGINT);
        until("the launcher's end", || self.child.try_wait().unwrap())
    }
}

impl Drop for FillableRun {
    fn drop(&mut self) {
        let _ = self.child.kill(); // the stages end with their launcher
        let _ = self.child.wait();
        if std::thread::panicking() {
            println!("{}", self.printed());
        }
    }
}

fn collect_output(mut pipe: impl Read + Send + 'static, output: &Arc<Mutex<String>>) {
    let output = output.clone();
    std::thread::spawn(move || {
        let mut bytes = [0; 4096];
        while let Ok(size @ 1..) = pipe.read(&mut bytes) {
            output.lock().unwrap().push_str(&String::from_utf8_lossy(&bytes[..size]));
        }
    });
}

//! A group of stages as the operator starts it in a cluster: one process for each stage, configured only by environment
//! variables, without a launcher.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use stagecoach_test_wait::{spawn, until_deadline};

use crate::phases::{send, stop};
use crate::{Deadline, TestJob, stagecoach};

/// Running stages. Dropping this value kills them.
#[derive(Debug)]
pub struct Group {
    stages: Vec<Child>,
    folder: PathBuf,
}

/// The end of a stage.
#[derive(Debug)]
pub struct Ended {
    /// The exit code, or `None` if a signal ended the stage.
    pub code: Option<i32>,
    /// The termination message, or null without one.
    pub termination_message: serde_json::Value,
    /// The output.
    pub log: String,
}

impl Group {
    /// Starts `job` in `workspace` as attempt `attempt` of the job with this UID. The job file, logs and termination
    /// messages are in a new folder of the workspace.
    pub fn start(workspace: &Path, job: &TestJob, uid: &str, attempt: u64) -> Group {
        Group::start_program(&stagecoach(), &[], workspace, job, uid, attempt)
    }

    /// Like [`Group::start`], with the job file `yaml`.
    pub fn start_yaml(workspace: &Path, job: &TestJob, yaml: &str, uid: &str, attempt: u64) -> Group {
        Group::start_job_file(&stagecoach(), &[], workspace, (job, yaml), uid, attempt)
    }

    /// Like [`Group::start`], with the program `program` and additional environment variables.
    pub fn start_program(
        program: &Path,
        env: &[(&str, &str)],
        workspace: &Path,
        job: &TestJob,
        uid: &str,
        attempt: u64,
    ) -> Group {
        Group::start_job_file(program, env, workspace, (job, &job.yaml()), uid, attempt)
    }

    fn start_job_file(
        program: &Path,
        env: &[(&str, &str)],
        workspace: &Path,
        (job, yaml): (&TestJob, &str),
        uid: &str,
        attempt: u64,
    ) -> Group {
        let folder = workspace.join(format!("{uid}-{attempt}"));
        std::fs::create_dir(&folder).unwrap();
        let config = folder.join("job.yaml");
        std::fs::write(&config, yaml).unwrap();
        let start = |rank: usize| {
            let log = std::fs::File::create(log(&folder, rank)).unwrap();
            let mut command = Command::new(program);
            command
                .arg("stage")
                .envs([("MASTER_ADDR", "127.0.0.1"), ("POD_IP", "127.0.0.1"), ("LOCAL_RANK", "0")])
                .env("RANK", rank.to_string())
                .env("WORLD_SIZE", job.stages.to_string())
                .env("STAGECOACH_STAGE", rank.to_string())
                .env("STAGECOACH_STAGES", job.stages.to_string())
                .env("STAGECOACH_JOB", &job.name)
                .env("STAGECOACH_JOB_UID", uid)
                .env("STAGECOACH_ATTEMPT", attempt.to_string())
                .env("STAGECOACH_CONFIG", &config)
                .env("STAGECOACH_WORKSPACE", workspace)
                .env("POD_UID", format!("{uid}-{attempt}-{rank}"))
                .env("STAGECOACH_HTTP_PORT", "0")
                // each stage reports a different host, since NCCL refuses two processes of one host on one GPU
                .env("NCCL_HOSTID", format!("host-of-stage-{rank}"))
                .env("STAGECOACH_TERMINATION_LOG", termination_message(&folder, rank))
                .envs(env.iter().copied())
                .stdin(Stdio::null())
                .stdout(log.try_clone().unwrap())
                .stderr(log);
            spawn(&mut command).unwrap()
        };
        Group { stages: (0..job.stages).map(start).collect(), folder }
    }

    /// Returns the process ids, by rank.
    pub fn pids(&self) -> Vec<u32> {
        self.stages.iter().map(Child::id).collect()
    }

    /// Whether all stages run.
    pub fn is_whole(&mut self) -> bool {
        self.stages.iter_mut().all(|stage| stage.try_wait().unwrap().is_none())
    }

    /// Returns the files with the output of each stage, by rank.
    pub fn logs(&self) -> Vec<PathBuf> {
        (0..self.stages.len()).map(|rank| log(&self.folder, rank)).collect()
    }

    /// Stops all stages (SIGSTOP).
    pub fn stop(&self) {
        self.pids().into_iter().for_each(stop);
    }

    /// Lets the stopped stages continue (SIGCONT).
    pub fn resume(&self) {
        self.pids().into_iter().for_each(|pid| send(pid, libc::SIGCONT));
    }

    /// Waits until every stage has ended by itself. Returns the ends by rank.
    ///
    /// # Panics
    /// If a stage still runs at the deadline.
    pub fn finish(&mut self) -> Vec<Ended> {
        self.finish_before(Deadline::start())
    }

    /// Like [`Group::finish`], with the deadline `deadline`.
    pub fn finish_before(&mut self, deadline: Deadline) -> Vec<Ended> {
        let folder = self.folder.clone();
        let read = |path: PathBuf| std::fs::read_to_string(path).unwrap_or_default();
        let deadline = &deadline;
        let end = |(rank, stage): (usize, &mut Child)| Ended {
            code: until_deadline(
                &format!("the end of stage {rank}"),
                deadline,
                || stage.try_wait().unwrap(),
                String::new,
            )
            .code(),
            termination_message: serde_json::from_str(&read(termination_message(&folder, rank))).unwrap_or_default(),
            log: read(log(&folder, rank)),
        };
        self.stages.iter_mut().enumerate().map(end).collect()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        for stage in &mut self.stages {
            let _ = stage.kill();
            let _ = stage.wait();
        }
    }
}

fn log(folder: &Path, rank: usize) -> PathBuf {
    folder.join(format!("stage-{rank}.log"))
}

fn termination_message(folder: &Path, rank: usize) -> PathBuf {
    folder.join(format!("stage-{rank}.json"))
}

//! Like `crashes`, but without the fault injection of this project: strace kills the real trainer at a system call on
//! the job's folder.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use stagecoach_api::contract::{Mesh, StageEnv};
use stagecoach_tests::corpus::Draws;
use stagecoach_tests::fixture::{COMMITTED, Case, Fixture, run_to_its_end, seed};
use stagecoach_tests::{signal, spawn, stagecoach, until};

const POINTS: usize = 20;
const CALLS: &str = "openat,mkdir,write,fsync,rename,unlink,rmdir";
/// With synchronous saves, one thread makes all calls on the folder, so that a call is identified by its number among
/// the calls of this thread.
const CHECKPOINT: &str = "{everySteps: 2, keepLast: 1, mode: Sync}";

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum TracedProcess {
    Stage(u32),
    Launcher,
}

const PROCESSES: [TracedProcess; 3] = [TracedProcess::Stage(0), TracedProcess::Stage(1), TracedProcess::Launcher];

/// The `nth` call of `syscall` by a thread. strace counts the calls of each thread separately.
#[derive(Clone, Debug)]
struct Point {
    process: TracedProcess,
    syscall: String,
    nth: usize,
    line: String,
}

/// Returns the system calls that strace recorded, in order.
fn seen(process: TracedProcess, log: &Path) -> Vec<Point> {
    let mut made: HashMap<(String, String), usize> = HashMap::new();
    let mut seen = Vec::new();
    for line in fs::read_to_string(log).unwrap().lines() {
        // for a process with a single thread, strace writes lines without the thread id
        let call = line.trim_start_matches(|c: char| c.is_ascii_digit()).trim_start();
        let thread = &line[..line.len() - call.len()];
        let Some((syscall, _)) = call.split_once('(') else { continue };
        if !CALLS.split(',').any(|known| known == syscall) {
            continue; // strace writes an interrupted call as two lines: this is the second one
        }
        let nth = made.entry((thread.to_owned(), syscall.to_owned())).or_default();
        *nth += 1;
        seen.push(Point { process, syscall: syscall.into(), nth: *nth, line: call.into() });
    }
    seen
}

/// Returns the strace command, without the command that strace runs.
fn strace(log: &Path, point: Option<&Point>) -> Command {
    let mut command = Command::new("strace");
    command.args(["-y", "-o"]).arg(log);
    match point {
        None => command.arg("-e").arg(format!("trace={CALLS}")),
        Some(Point { syscall, nth, .. }) => command
            .args(["-e", &format!("trace={syscall}")])
            .args(["-e", &format!("inject={syscall}:signal=SIGKILL:when={nth}")]),
    };
    command
}

/// Runs one attempt as the launcher does, with stage `traced` under strace. Returns the signal that killed that stage,
/// or `None` if no signal did.
fn attempt(fixture: &Fixture, case: &Case, traced: u32, log: &Path, point: Option<&Point>) -> Option<i32> {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let job = fixture.job(case);
    let start = |rank: u32| -> Child {
        let env = StageEnv {
            incarnation: 0,
            spare: None,
            rank,
            mesh: Mesh::pipeline(2),
            job: case.name.into(),
            job_uid: case.name.into(),
            attempt: 1,
            config: job.display().to_string(),
            workspace: fixture.path("").display().to_string(),
            master_addr: "127.0.0.1".into(),
            master_port: port,
            pod_ip: "127.0.0.1".into(),
            pod_uid: rank.to_string(),
        };
        let mut command = match rank == traced {
            true => strace(log, point),
            false => Command::new(stagecoach()),
        };
        if rank == traced {
            command.arg("-f").arg(stagecoach());
        }
        command
            .arg("stage")
            .envs(env.to_vars())
            .env("STAGECOACH_HTTP_PORT", "0")
            .env("STAGECOACH_TERMINATION_LOG", fixture.path(&format!("termination-message-{rank}")))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        spawn(&mut command).unwrap()
    };
    let (mut one, mut other) = (start(traced), start(1 - traced));
    let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let status = until("the end of a stage", || one.try_wait().unwrap());
        if status.signal().is_some() {
            signal(other.id(), libc::SIGTERM); // the other stage may wait for a peer that never joins
        }
        until("the end of its peer", || other.try_wait().unwrap());
        status
    }));
    [one, other].iter_mut().for_each(|stage| drop((stage.kill(), stage.wait())));
    ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic)).signal()
}

/// Runs `point.process` under strace, in a copy of the job's folder that has the leftovers of an older group. Returns
/// whether strace killed the process.
fn kill(fixture: &Fixture, case: &Case, point: &Point) -> bool {
    let log = fixture.path("strace.log");
    fixture.with_leftovers(case.name);
    let by = match point.process {
        TracedProcess::Stage(rank) => attempt(fixture, case, rank, &log, Some(point)),
        TracedProcess::Launcher => launcher(fixture, case, &log, Some(point)),
    };
    by == Some(libc::SIGKILL)
}

fn launcher(fixture: &Fixture, case: &Case, log: &Path, point: Option<&Point>) -> Option<i32> {
    let mut command = strace(log, point);
    command.arg(stagecoach()).arg("run").arg(fixture.job(case)).arg("--workspace").arg(fixture.path(""));
    run_to_its_end(&mut command, &fixture.path("launcher.notes")).status.signal()
}

/// Returns the system calls at which strace can kill each process.
fn count(fixture: &Fixture) -> HashMap<TracedProcess, Vec<Point>> {
    let log = fixture.path("strace.log");
    let points = |process| {
        let case = Case { name: "counted", checkpoint: CHECKPOINT, fault: "", restarts: 0 };
        let folder = fixture.with_leftovers(case.name);
        let by = match process {
            TracedProcess::Stage(rank) => attempt(fixture, &case, rank, &log, None),
            TracedProcess::Launcher => launcher(fixture, &case, &log, None),
        };
        assert_eq!(by, None);
        let mut points = seen(process, &log);
        let mut met = HashSet::new();
        // strace kills the process when the first thread reaches this count, so later calls with the same count do not
        // matter
        points.retain(|p| met.insert((p.syscall.clone(), p.nth)) && p.line.contains(&format!("{}/", folder.display())));
        fs::remove_dir_all(folder).unwrap();
        (process, points)
    };
    PROCESSES.into_iter().map(points).collect()
}

#[test]
#[ignore = "needs strace, and the right to trace: `make strace`"]
fn the_job_folders_own_entry_is_durable_before_anything_is_in_it() {
    let workspace = stagecoach_tests::corpus::workspace();
    let log = workspace.path().join("strace.log");
    let job = stagecoach_tests::TestJob { steps: 1, ..stagecoach_tests::TestJob::default() };
    let file = workspace.path().join("job.yaml");
    fs::write(&file, job.yaml()).unwrap();
    let mut command = strace(&log, None);
    command.arg(stagecoach()).arg("run").arg(&file).arg("--workspace").arg(workspace.path());
    assert!(run_to_its_end(&mut command, &workspace.path().join("notes")).status.success());
    let lines: Vec<String> = seen(TracedProcess::Launcher, &log).into_iter().map(|point| point.line).collect();
    let folder = workspace.path().join("small");
    let made = lines.iter().position(|l| l.starts_with("mkdir(") && l.contains(&format!("{:?}", folder))).unwrap();
    let is_sync = |l: &String| l.starts_with("fsync(") && l.contains(&format!("<{}>", workspace.path().display()));
    let synced = lines.iter().position(is_sync).expect("a sync of the folder above");
    let filled = lines.iter().position(|l| l.contains(&format!("{}/", folder.display()))).unwrap();
    assert!(made < synced && synced < filled, "{made} {synced} {filled}\n{}", lines.join("\n"));
}

#[test]
#[ignore = "needs strace, and the right to trace: `make strace`"]
fn killed_at_a_system_call() {
    let mut fixture = crate::fixture();
    fixture.program = stagecoach();
    let mut points = count(&fixture);
    let mut draws = Draws(seed());
    println!("{POINTS} points, seed {} (STAGECOACH_SEED)", seed());
    let (mut died, mut tries) = (0, 0);
    while died < POINTS {
        // the loop alternates between the processes, and for each process between the system calls
        let process = PROCESSES[tries % PROCESSES.len()];
        let points = points.get_mut(&process).unwrap();
        let calls: BTreeSet<&str> = points.iter().map(|point| point.syscall.as_str()).collect();
        let call = calls.iter().nth(tries / PROCESSES.len() % calls.len()).map(ToString::to_string).unwrap();
        let candidates: Vec<usize> = (0..points.len()).filter(|&at| points[at].syscall == call).collect();
        let point = &points.remove(candidates[draws.below(candidates.len() as u64) as usize]);
        tries += 1;
        assert!(tries < 2 * POINTS, "{died} of {tries} died");
        let name = &format!("point-{tries}");
        let case = Case { name, checkpoint: CHECKPOINT, fault: "", restarts: 3 };
        if !kill(&fixture, &case, point) {
            println!("not reached: {point:?}");
            continue;
        }
        died += 1;
        let seen = seen(process, &fixture.path("strace.log"));
        let at = seen.iter().find(|seen| (&seen.syscall, seen.nth) == (&point.syscall, point.nth)).unwrap();
        println!("{died:2}: {process:?} died at its {} number {}: {}", at.syscall, at.nth, at.line);
        // after the launcher's death, a user would start the job again; after a stage's death, the launcher would start
        // the stages again: this run stands for both
        let ran = fixture.run(&case);
        ran.ended_well(&fixture);
        ran.is_tidy(&[0, COMMITTED[2]]);
    }
}

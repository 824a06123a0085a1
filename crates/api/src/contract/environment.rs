//! The environment variables of a stage. Torchrun's variables are among them, so that a script written for torchrun
//! runs unchanged.

use std::collections::HashMap;

use thiserror::Error;

use super::{CONFIG_PATH, MASTER_PORT, MAX_STAGES, Mesh, WORKSPACE_PATH};

/// The names of the environment variables.
pub mod env {
    /// The host of rank 0.
    pub const MASTER_ADDR: &str = "MASTER_ADDR";
    /// The port of rank 0.
    pub const MASTER_PORT: &str = "MASTER_PORT";
    /// The number of the process, from 0: its replica times the number of stages, plus its stage.
    pub const RANK: &str = "RANK";
    /// The number of processes: the number of stages times the number of replicas.
    pub const WORLD_SIZE: &str = "WORLD_SIZE";
    /// Always 0, because each stage counts as the only stage of its machine.
    pub const LOCAL_RANK: &str = "LOCAL_RANK";
    /// The job's name.
    pub const JOB: &str = "STAGECOACH_JOB";
    /// The job's UID.
    pub const JOB_UID: &str = "STAGECOACH_JOB_UID";
    /// The number of the attempt, from 1. A new attempt begins whenever all stages start.
    pub const ATTEMPT: &str = "STAGECOACH_ATTEMPT";
    /// The number of a spare: a pod or process that waits to replace a lost stage. RANK, STAGECOACH_STAGE,
    /// STAGECOACH_REPLICA and STAGECOACH_INCARNATION are not set for a spare.
    pub const SPARE: &str = "STAGECOACH_SPARE";
    /// The incarnation: the number of the pod or process that runs this stage in this attempt. Each replacement has a
    /// higher number than its predecessors.
    pub const INCARNATION: &str = "STAGECOACH_INCARNATION";
    /// The stage, from 0, within its replica of the pipeline.
    pub const STAGE: &str = "STAGECOACH_STAGE";
    /// The number of stages of each replica.
    pub const STAGES: &str = "STAGECOACH_STAGES";
    /// The replica of the pipeline, from 0.
    pub const REPLICA: &str = "STAGECOACH_REPLICA";
    /// The number of replicas: `spec.dataParallel`.
    pub const DATA_PARALLEL: &str = "STAGECOACH_DATA_PARALLEL";
    /// The path of the attempt's job file.
    pub const CONFIG: &str = "STAGECOACH_CONFIG";
    /// The path of the volume that all stages share.
    pub const WORKSPACE: &str = "STAGECOACH_WORKSPACE";
    /// The pod's address, at which the other stages reach it.
    pub const POD_IP: &str = "POD_IP";
    /// The pod's UID.
    pub const POD_UID: &str = "POD_UID";

    /// The path of the stage's termination message. The default is `/dev/termination-log`.
    pub const TERMINATION_LOG: &str = "STAGECOACH_TERMINATION_LOG";
    /// The port of the stage's HTTP server. The default is `contract::HTTP_PORT`. With 0, the stage has no server.
    pub const HTTP_PORT: &str = "STAGECOACH_HTTP_PORT";

    /// The variables of `StageEnv`, which the operator and the launcher set for stages and spares. A pod template must
    /// not set them.
    pub const ALL: [&str; 18] = [
        MASTER_ADDR,
        MASTER_PORT,
        RANK,
        WORLD_SIZE,
        LOCAL_RANK,
        JOB,
        JOB_UID,
        ATTEMPT,
        SPARE,
        INCARNATION,
        STAGE,
        STAGES,
        REPLICA,
        DATA_PARALLEL,
        CONFIG,
        WORKSPACE,
        POD_IP,
        POD_UID,
    ];
}

/// The error of an environment variable that is missing or invalid.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("environment variable {variable}: {message}")]
pub struct ContractError {
    /// The variable's name.
    pub variable: &'static str,
    /// The problem: the value found and the value expected.
    pub message: String,
}

/// The environment of a stage when it starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StageEnv {
    /// The number of this stage among the stages of all replicas. 0 for a spare, which has no stage yet.
    pub rank: u32,
    /// The numbers of stages and replicas.
    pub mesh: Mesh,
    /// The job's name.
    pub job: String,
    /// The job's UID.
    pub job_uid: String,
    /// The number of the attempt, from 1.
    pub attempt: u64,
    /// The incarnation: see [`env::INCARNATION`]. 0 for a spare.
    pub incarnation: u32,
    /// The number of the spare. A spare that becomes a stage keeps this number. `None` for a process that started as a
    /// stage.
    pub spare: Option<u32>,
    /// The path of the attempt's job file.
    pub config: String,
    /// The path of the volume that all stages share.
    pub workspace: String,
    /// The host of rank 0.
    pub master_addr: String,
    /// The port of rank 0.
    pub master_port: u16,
    /// The address at which the other stages reach this stage.
    pub pod_ip: String,
    /// The UID of this stage's pod. For a process without a pod, the launcher sets another unique value.
    pub pod_uid: String,
}

impl StageEnv {
    /// Reads the variables of [`env`], and ignores all other variables. The port, the job file and the workspace
    /// default to their values in a pod.
    ///
    /// # Errors
    /// The first variable that is missing, is invalid, or contradicts another variable.
    pub fn from_vars<K: Into<String>, V: Into<String>>(
        vars: impl IntoIterator<Item = (K, V)>,
    ) -> Result<Self, ContractError> {
        let vars = Vars(vars.into_iter().map(|(key, value)| (key.into(), value.into())).collect());
        let spare = if vars.has(env::SPARE) { Some(vars.number(env::SPARE)?) } else { None };
        let read = Self {
            rank: if spare.is_some() { 0 } else { vars.number(env::RANK)? },
            mesh: vars.mesh()?,
            job: vars.text(env::JOB)?,
            job_uid: vars.text(env::JOB_UID)?,
            attempt: vars.number(env::ATTEMPT)?,
            incarnation: if vars.has(env::INCARNATION) { vars.number(env::INCARNATION)? } else { 0 },
            spare,
            config: vars.text(env::CONFIG).unwrap_or_else(|_| CONFIG_PATH.into()),
            workspace: vars.text(env::WORKSPACE).unwrap_or_else(|_| WORKSPACE_PATH.into()),
            master_addr: vars.text(env::MASTER_ADDR)?,
            master_port: if vars.has(env::MASTER_PORT) { vars.number(env::MASTER_PORT)? } else { MASTER_PORT },
            pod_ip: vars.text(env::POD_IP)?,
            pod_uid: vars.text(env::POD_UID)?,
        };
        read.check(&vars)?;
        Ok(read)
    }

    fn check(&self, vars: &Vars) -> Result<(), ContractError> {
        let wrong = |variable, message| Err(ContractError { variable, message });
        let Self { rank, mesh, .. } = *self;
        let world_size = mesh.ranks();
        for variable in [env::RANK, env::STAGE, env::REPLICA, env::INCARNATION] {
            if self.spare.is_some() && vars.has(variable) {
                return wrong(variable, format!("is set, and so is {}: a spare has no stage", env::SPARE));
            }
        }
        if rank >= world_size {
            return wrong(
                env::RANK,
                format!("is {rank}; with WORLD_SIZE {world_size} the ranks are 0 to {}", world_size - 1),
            );
        }
        for (variable, of_rank) in [(env::STAGE, mesh.stage(rank)), (env::REPLICA, mesh.replica(rank).unwrap_or(0))] {
            let found = if vars.has(variable) { vars.number(variable)? } else { of_rank };
            if found != of_rank {
                return wrong(env::RANK, format!("is {rank}, {}, but {variable} is {found}", mesh.name(rank)));
            }
        }
        Ok(())
    }

    /// Returns the variables with which to start the stage or spare. This function is the inverse of `from_vars`.
    pub fn to_vars(&self) -> Vec<(&'static str, String)> {
        let stage_only = |value: u32| self.spare.is_none().then(|| value.to_string());
        let variables = [
            (env::MASTER_ADDR, Some(self.master_addr.clone())),
            (env::MASTER_PORT, Some(self.master_port.to_string())),
            (env::RANK, stage_only(self.rank)),
            (env::WORLD_SIZE, Some(self.mesh.ranks().to_string())),
            (env::LOCAL_RANK, Some("0".into())),
            (env::JOB, Some(self.job.clone())),
            (env::JOB_UID, Some(self.job_uid.clone())),
            (env::ATTEMPT, Some(self.attempt.to_string())),
            (env::SPARE, self.spare.map(|spare| spare.to_string())),
            (env::INCARNATION, stage_only(self.incarnation)),
            (env::STAGE, stage_only(self.mesh.stage(self.rank))),
            (env::STAGES, Some(self.mesh.stages.to_string())),
            (env::REPLICA, stage_only(self.mesh.replica(self.rank).unwrap_or(0))),
            (env::DATA_PARALLEL, Some(self.mesh.data_parallel.to_string())),
            (env::CONFIG, Some(self.config.clone())),
            (env::WORKSPACE, Some(self.workspace.clone())),
            (env::POD_IP, Some(self.pod_ip.clone())),
            (env::POD_UID, Some(self.pod_uid.clone())),
        ];
        variables.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
    }
}

struct Vars(HashMap<String, String>);

impl Vars {
    fn has(&self, variable: &str) -> bool {
        self.0.contains_key(variable)
    }

    /// Returns the mesh that the variables describe. STAGECOACH_DATA_PARALLEL defaults to 1, and STAGECOACH_STAGES to
    /// WORLD_SIZE.
    fn mesh(&self) -> Result<Mesh, ContractError> {
        let wrong = |message| Err(ContractError { variable: env::WORLD_SIZE, message });
        let world_size = self.number(env::WORLD_SIZE)?;
        if !(1..=MAX_STAGES).contains(&world_size) {
            return wrong(format!("is {world_size}; a job has 1 to {MAX_STAGES} stages"));
        }
        let number_or = |variable, other| if self.has(variable) { self.number(variable) } else { Ok(other) };
        let data_parallel = number_or(env::DATA_PARALLEL, 1)?;
        let mesh = Mesh { stages: number_or(env::STAGES, world_size)?, data_parallel };
        if mesh.ranks() != world_size {
            return wrong(format!(
                "is {world_size}, but {} times {} is {} times {data_parallel}: the product must be WORLD_SIZE, the \
                 number of the job's processes",
                env::STAGES,
                env::DATA_PARALLEL,
                mesh.stages
            ));
        }
        Ok(mesh)
    }

    fn text(&self, variable: &'static str) -> Result<String, ContractError> {
        match self.0.get(variable) {
            Some(text) if !text.is_empty() => Ok(text.clone()),
            Some(_) => Err(ContractError { variable, message: "is empty".into() }),
            None => {
                Err(ContractError { variable, message: "is not set; the operator and `stagecoach run` set it".into() })
            }
        }
    }

    fn number<N: std::str::FromStr>(&self, variable: &'static str) -> Result<N, ContractError> {
        let text = self.text(variable)?;
        text.parse().map_err(|_| ContractError {
            variable,
            message: format!("is \"{}\", expected a whole number in the range of the variable", text.escape_debug()),
        })
    }
}

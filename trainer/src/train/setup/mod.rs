//! The setup of a stage for one group before it trains: its layers, links, checkpoints in memory and audits.

pub(in crate::train) mod environment;
pub(in crate::train) mod initial_weights;
pub(in crate::train) mod resume;
pub(in crate::train) mod transports;

use std::net::TcpListener;
use std::rc::Rc;

use serde_json::Value;
use stagecoach_api::job::Transport;
use stagecoach_engine::execute::{Stage, StageConfig, TensorDump, gather_weights, kind};
use stagecoach_engine::state_dict::PeerCopy;
use stagecoach_group::{Member, Roster};
use stagecoach_launcher::METRICS;
use stagecoach_model::Architecture;
use stagecoach_planner::{Plan, VerifiedPlan};
use stagecoach_telemetry::{StartRecord, TrainingEvent, read_metrics};
use stagecoach_transport::{Interrupt, LinkId, Links, LinksConfig, PeerRing, open_links, replicated_link_ids};

use crate::train::context::StageContext;
use crate::train::join::group_timeouts;
use crate::train::leave::LeaveReason;
use crate::train::recover::carry_over::CarryOver;
use crate::train::recover::link_failure;
use crate::train::save::memory::{MemoryCheckpoints, PeerCheckpoints, StateCopies};
use crate::train::setup::environment::compare_stages;
use crate::train::step::audit::Audits;

/// The data from which the parts of a stage are set up.
pub(in crate::train) struct GroupSetup<'a> {
    /// The context of a stage in its group.
    pub(in crate::train) context: &'a StageContext<'a>,
    pub(in crate::train) member: &'a Member,
    pub(in crate::train) roster: &'a Roster,
    pub(in crate::train) verified: &'a VerifiedPlan,
    pub(in crate::train) architecture: &'a dyn Architecture,
}

impl<'a> GroupSetup<'a> {
    /// Agrees with the other stages on the newest memory checkpoint. If there is one, training resumes from its state.
    /// Returns `None` if the job has no memory checkpoints.
    pub(in crate::train) fn agree_on_memory_checkpoint(
        &self,
        plan: &mut Plan,
        copies: &StateCopies,
    ) -> Result<Option<PeerCheckpoints>, LeaveReason> {
        let StageContext { env, config, .. } = *self.context;
        if config.job.spec.memory_checkpoints().is_none() {
            return Ok(None);
        }
        let is_replicated = env.mesh.data_parallel > 1;
        let recorded = (self.context.is_leader() && is_replicated).then(|| self.last_recorded_step());
        let held = PeerCheckpoints::agree(self.member, copies, self.copy_ring(), plan.trainer_state.step, recorded)?;
        if let Some(state) = held.state() {
            plan.trainer_state = state.clone();
        }
        Ok(Some(held))
    }

    /// Returns the configuration from which the stage is built.
    pub(in crate::train) fn stage_config(&self, plan: &Plan) -> StageConfig<'a> {
        let StageContext { config, device, .. } = *self.context;
        // a stage that resumes needs no seed: if its checkpoint is damaged, it loads an older one, never fresh weights
        let is_fresh =
            plan.trainer_state.step == 0 && (plan.initial_weights.is_none() || config.training.lora.is_some());
        StageConfig {
            architecture: self.architecture,
            placement: &self.verified.training.placement,
            partition: &self.verified.partition,
            seed: is_fresh.then_some(config.training.seed),
            optimizer: config.adamw(),
            recompute: plan.recompute,
            precision: config.training.precision,
            device,
            replica: self.verified.replica,
        }
    }

    /// Builds the stage, and the dump of tensors if a replay requests one. Reuses the memory of the last group's stage
    /// if that stage had the same tensors and this group loads all of them.
    pub(in crate::train) fn build_stage(
        &self,
        config: &StageConfig,
        plan: &Plan,
        carry_over: &mut CarryOver,
    ) -> Result<(Stage, Option<Rc<TensorDump>>), LeaveReason> {
        let dump = self.context.replay.dump.as_ref();
        let is_reused = plan.trainer_state.step > 0 && dump.is_none();
        let reused = if is_reused { carry_over.tensors.take_stage()? } else { None };
        let mut stage = reused.unwrap_or_else(|| Stage::build(self.stage_index(), config));
        let dump = dump.map(|dump| stage.prepare_dump(dump, &self.verified.partition));
        Ok((stage, dump))
    }

    /// Opens the links to the other stages, including the links for state copies and audits if the job has them.
    pub(in crate::train) fn open_links(
        &self,
        listener: TcpListener,
        interrupt: &Interrupt,
    ) -> Result<Links, LeaveReason> {
        let StageContext { env, config, device, monitor, group_rank, .. } = *self.context;
        let spec = &config.job.spec;
        let (placement, architecture) = (&self.verified.training.placement, self.architecture);
        let addresses: Vec<String> = self.roster.members.iter().map(|hello| hello.data_address.clone()).collect();
        let ranks = addresses.len();
        let mut link_ids =
            replicated_link_ids(placement, architecture.adds_tied_gradients(), self.verified.replica.count);
        if spec.memory_checkpoints().is_some() {
            link_ids.extend(self.copy_ring().link_ids());
        }
        if spec.audit().is_some() {
            link_ids.extend((0..ranks).map(|rank| LinkId::audit(rank, ranks)));
        }
        let opened = open_links(LinksConfig {
            rank: group_rank,
            group: format!("{}/{}", env.job_uid, env.attempt),
            secret: self.member.secret(),
            on_rejected: &|| monitor.telemetry().count_rejected_connection(),
            listener,
            addresses: &addresses,
            link_ids: &link_ids,
            transport: spec.pipeline.transport,
            device,
            encryption: spec.pipeline.encryption,
            boundary_bytes: kind(config.training.precision).elt_size_in_bytes()
                * config.microbatch_size()
                * config.data.sequence_length as usize
                * architecture.hidden_size(),
            tied_bytes: 4 * architecture.vocab_size() * architecture.hidden_size(),
            interrupt: interrupt.clone(),
            timeout: group_timeouts(config).startup_timeout,
        });
        opened.map_err(|error| link_failure(self.member, error))
    }

    /// Reports the faster transports that links can't use. Only the leader reports them, and not again in the next
    /// group.
    pub(in crate::train) fn report_missing_transports(
        &self,
        links: &Links,
        carry_over: &mut CarryOver,
    ) -> Result<(), LeaveReason> {
        if self.context.config.job.spec.pipeline.transport != Transport::Auto {
            return Ok(());
        }
        let missing = transports::missing(self.context, self.member, self.roster, links)?;
        if self.context.is_leader()
            && !std::mem::replace(&mut carry_over.reported_missing_transports, !missing.is_empty())
        {
            self.context.monitor.notes(missing);
        }
        Ok(())
    }

    /// Begins the audits of this stage, if the job has audits.
    pub(in crate::train) fn begin_audits(&self, config: &'a StageConfig<'a>, links: &mut Links) -> Option<Audits<'a>> {
        let StageContext { config: job, group_rank, .. } = *self.context;
        let seed = job.training.seed;
        Audits::begin(job.job.spec.audit()?, seed, (group_rank, self.roster), self.verified, config, links)
    }

    /// Begins the memory checkpoints, and loads `stage` from the checkpoint on which the stages agreed.
    pub(in crate::train) fn begin_memory_checkpoints<'c>(
        &self,
        held: Option<PeerCheckpoints>,
        links: &mut Links,
        copies: &'c mut StateCopies,
        stage: &mut Stage,
    ) -> Result<Option<MemoryCheckpoints<'c>>, LeaveReason> {
        let StageContext { config, group_rank, .. } = *self.context;
        let (Some(spec), Some(held)) = (config.job.spec.memory_checkpoints(), held) else { return Ok(None) };
        let VerifiedPlan { training, partition, replica, .. } = self.verified;
        let numel = |rank| PeerCopy::numel(self.architecture, &training.placement, partition, replica.count, rank);
        let ring = self.copy_ring();
        let numels = [numel(group_rank), numel(ring.held_by(group_rank))];
        let begun = MemoryCheckpoints::begin(spec, held, (group_rank, ring), numels, links, copies, stage);
        begun.map_err(|error| link_failure(self.member, error))
    }

    /// Gathers the loaded weights, because each replica has loaded only the parameters that it owns.
    pub(in crate::train) fn gather_loaded_weights(
        &self,
        plan: &Plan,
        stage: &mut Stage,
        links: &mut Links,
    ) -> Result<(), LeaveReason> {
        if plan.trainer_state.step == 0 {
            return Ok(());
        }
        let gathered = gather_weights(stage, links, self.stages(), &self.member.activity());
        gathered.map_err(|error| link_failure(self.member, error))
    }

    /// Compares the environments of all stages, and reports the differences on the leader. Returns the environments by
    /// group rank.
    pub(in crate::train) fn compare_environments(
        &self,
        plan: &mut Plan,
        audits: Option<&mut Audits>,
    ) -> Result<Vec<Value>, LeaveReason> {
        let names: Vec<String> = self.roster.members.iter().map(|hello| self.context.name_of(hello)).collect();
        let own = self.context.environment;
        let (different, environments) = compare_stages(self.member, &names, &mut plan.trainer_state, own)?;
        let has_unaudited = audits.is_some_and(|audits| audits.set_environments(environments.clone()));
        let unaudited = has_unaudited.then(|| "stages in different environments do not audit each other".to_owned());
        if self.context.is_leader() {
            self.context.monitor.notes(different.into_iter().chain(unaudited));
        }
        Ok(environments)
    }

    /// Reports on the leader that training starts, or that no step is left to train.
    pub(in crate::train) fn report_start(&self, plan: &Plan) {
        if !self.context.is_leader() {
            return;
        }
        let record = self.start_record(plan);
        let step = plan.trainer_state.step;
        match record.first_step > record.steps {
            true => self.context.monitor.notes([format!(
                "step {step} is trained, and the job has {} steps: nothing is left to train",
                plan.steps
            )]),
            false => self.context.monitor.emit(&TrainingEvent::Started(record)),
        }
    }

    /// Returns the stage's number in its replica.
    pub(in crate::train) fn stage_index(&self) -> usize {
        self.context.group_rank % self.stages()
    }

    fn stages(&self) -> usize {
        self.verified.training.placement.ranks()
    }

    /// Returns the ring that determines the holder of each rank's state copies.
    fn copy_ring(&self) -> PeerRing {
        PeerRing { stages: self.stages(), replicas: self.verified.replica.count }
    }

    /// Returns the last step in the metrics, or 0 if there is none.
    fn last_recorded_step(&self) -> u64 {
        let records = read_metrics(&self.context.config.folder().join(METRICS)).unwrap_or_default();
        records.last().map_or(0, |record| record.step)
    }

    fn start_record(&self, plan: &Plan) -> StartRecord {
        let config = self.context.config;
        StartRecord {
            stages: config.job.spec.stages as usize,
            schedule: plan.schedule.clone(),
            partition: plan.schedule_partition().layers,
            microbatches: config.training.microbatches as usize,
            first_step: plan.trainer_state.step + 1,
            steps: plan.steps,
            parameters: self.architecture.parameter_count(),
            tokens: plan.training_tokens,
            vocab_size: plan.vocab_size,
            expected_bubble: plan.expected_bubble,
            unigram_entropy: plan.unigram_entropy,
            environment_differences: plan.trainer_state.environment_differences.clone(),
            audit_differences: plan.trainer_state.audit_differences.clone(),
            incarnations: self.roster.incarnations(),
        }
    }
}

//! The ways to divide a number of GPUs between stages and replicas.

use stagecoach_api::contract::Mesh;
use stagecoach_engine::StageError;
use stagecoach_model::Architecture;
use stagecoach_pipeline::RankSpeeds;

use super::job_config::JobConfig;
use super::pipeline_layout::{PipelineLayout, plan_pipeline};

/// A mesh with the job's plan for it, or with the reason that the mesh is impossible.
#[derive(Debug)]
pub struct MeshPlan {
    /// The numbers of stages and replicas.
    pub mesh: Mesh,
    /// The plan, or the reason that the mesh is impossible.
    pub layout: Result<PipelineLayout, StageError>,
}

impl MeshPlan {
    /// Returns the seconds of a simulated step; infinite if the mesh is impossible.
    pub fn seconds(&self) -> f64 {
        self.layout.as_ref().map_or(f64::INFINITY, |layout| layout.timeline.makespan)
    }
}

/// Returns the plans of all meshes of `gpus` processes with one GPU each. The mesh with the shortest step comes first,
/// and impossible meshes come last. All stages are assumed to be equally fast.
pub fn every_mesh(config: &JobConfig, architecture: &dyn Architecture, gpus: u32) -> Vec<MeshPlan> {
    let meshes = (1..=gpus).filter(|stages| gpus.is_multiple_of(*stages));
    let meshes = meshes.map(|stages| Mesh { stages, data_parallel: gpus / stages });
    let mut plans: Vec<MeshPlan> =
        meshes.map(|mesh| MeshPlan { mesh, layout: plan_mesh(config, architecture, mesh) }).collect();
    plans.sort_by(|a, b| a.seconds().total_cmp(&b.seconds()));
    plans
}

fn plan_mesh(config: &JobConfig, architecture: &dyn Architecture, mesh: Mesh) -> Result<PipelineLayout, StageError> {
    let config = config.with_mesh(mesh);
    let (replicas, blocks) = (mesh.data_parallel as usize, config.gradient_blocks);
    if replicas > blocks {
        return Err(StageError::invalid(format!(
            "spec.training.gradientBlocks is {blocks}: {replicas} replicas need a block each"
        )));
    }
    plan_pipeline(&config, architecture, mesh.stages as usize, &RankSpeeds::default())
}

#[cfg(test)]
mod tests {
    use super::super::Machines;
    use super::super::identity::tests::config;
    use super::super::pipeline_layout::plan_pipeline_on;
    use super::*;

    fn plans(set: &[(&str, &str)], gpus: u32) -> Vec<MeshPlan> {
        let config = config(set);
        every_mesh(&config, config.architecture(4096, tch::Device::Cpu).as_ref(), gpus)
    }

    #[test]
    fn all_meshes_are_planned_and_the_shortest_step_comes_first() {
        let plans = plans(&[("training.microbatches", "8"), ("model.llama.numHiddenLayers", "12")], 4);
        let mut meshes: Vec<_> = plans.iter().map(|plan| (plan.mesh.stages, plan.mesh.data_parallel)).collect();
        assert!(plans.iter().all(|plan| plan.layout.is_ok()) && plans.is_sorted_by_key(MeshPlan::seconds));
        meshes.sort_unstable();
        assert_eq!(meshes, [(1, 4), (2, 2), (4, 1)]);
        // each replica computes an equal share of the microbatches
        let microbatches = |plan: &MeshPlan| plan.layout.as_ref().unwrap().programs.microbatches;
        assert!(plans.iter().all(|plan| microbatches(plan) == 8 / plan.mesh.data_parallel as usize));
    }

    #[test]
    fn what_is_impossible_comes_last_and_says_why() {
        let set =
            [("training.microbatches", "4"), ("training.globalBatchSize", "16"), ("training.gradientBlocks", "2")];
        let plans = plans(&set, 4);
        let last = plans.last().unwrap();
        assert_eq!((last.mesh.data_parallel, last.seconds()), (4, f64::INFINITY));
        let error = last.layout.as_ref().unwrap_err().to_string();
        assert_eq!(error, "spec.training.gradientBlocks is 2: 4 replicas need a block each");
    }

    #[test]
    fn slow_links_make_replicas_dear() {
        let config = config(&[("stages", "1"), ("training.microbatches", "8")]);
        let architecture = config.architecture(4096, tch::Device::Cpu);
        let seconds = |data_parallel: u32, bandwidth: f64| {
            let config = config.with_mesh(Mesh { stages: 1, data_parallel });
            let machines = Machines { link_bytes_per_second: Some(bandwidth), ..Machines::default() };
            plan_pipeline_on(&config, architecture.as_ref(), 1, &machines).unwrap().timeline.makespan
        };
        assert_eq!(seconds(1, 1e9), seconds(1, 1e3), "one replica exchanges nothing");
        assert!(seconds(2, 1e12) < seconds(1, 1e9));
        assert!(seconds(2, 1e3) > seconds(1, 1e9));
        // a replica sends 4 bytes for each gradient and 4 bytes for each weight, for half of the parameters
        let numel: u64 = architecture.parameter_count();
        let exchanged = seconds(2, 1e6) - seconds(2, 1e15);
        let whole = numel as f64 * 4.0 / 1e6;
        // the exchange overlaps with computations for at most the duration of the computations
        let hidden = whole - exchanged;
        assert!(hidden > 0.0 && hidden < seconds(2, 1e15), "{hidden} of {whole}");
    }
}

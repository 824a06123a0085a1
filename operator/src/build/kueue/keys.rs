//! Keys of labels, annotations and scheduling gates: keys that Kueue defines, and keys that the operator sets on
//! Workloads.

/// The job label whose value is the name of the job's LocalQueue.
pub(crate) const QUEUE_NAME_LABEL: &str = "kueue.x-k8s.io/queue-name";
/// The job label whose value is the name of the job's WorkloadPriorityClass.
pub(crate) const PRIORITY_CLASS_LABEL: &str = "kueue.x-k8s.io/priority-class";
/// The job label or annotation whose value is the name of an existing Workload. MultiKueue sets this key on each job
/// that it copies into a worker cluster.
pub(crate) const PREBUILT_WORKLOAD: &str = "kueue.x-k8s.io/prebuilt-workload-name";
/// The job label whose value is the name of the manager cluster. MultiKueue sets it on each job that it copies into
/// this cluster.
pub(crate) const MULTI_KUEUE_ORIGIN_LABEL: &str = "kueue.x-k8s.io/multikueue-origin";
/// The annotation whose value is `true` on a job that changes its number of pods through Workload slices, and on the
/// Workloads of such a job.
pub(crate) const ELASTIC_JOB_ANNOTATION: &str = "kueue.x-k8s.io/elastic-job";
/// The annotation of a Workload slice whose value is the Workload that the slice replaces, as `namespace/name`.
pub(crate) const SLICE_REPLACEMENT_ANNOTATION: &str = "kueue.x-k8s.io/workload-slice-replacement-for";
/// The annotation whose value is the name of the first Workload in a chain of slices.
pub(crate) const SLICE_NAME_ANNOTATION: &str = "kueue.x-k8s.io/workload-slice-name";
/// The Workload annotation whose value Kueue adds to the priority of the Workload.
pub(crate) const PRIORITY_BOOST_ANNOTATION: &str = "kueue.x-k8s.io/priority-boost";
/// The Workload label whose value is the UID of the Workload's job.
pub(crate) const KUEUE_JOB_UID_LABEL: &str = "kueue.x-k8s.io/job-uid";

/// The pod label whose value is the name of the pod's pod set.
pub(crate) const POD_SET_LABEL: &str = "kueue.x-k8s.io/podset";
/// The pod labels whose values are the names of the pod's LocalQueue and ClusterQueue.
pub(crate) const LOCAL_QUEUE_LABEL: &str = "kueue.x-k8s.io/local-queue-name";
pub(crate) const CLUSTER_QUEUE_LABEL: &str = "kueue.x-k8s.io/cluster-queue-name";
/// The pod annotation whose value is the name of the pod's Workload.
pub(crate) const WORKLOAD_ANNOTATION: &str = "kueue.x-k8s.io/workload";
/// The scheduling gate that Kueue removes from a pod after Kueue has chosen the pod's topology domain.
pub(crate) const TOPOLOGY_GATE: &str = "kueue.x-k8s.io/topology";

/// The annotations of a pod template with which users ask Kueue to place pods by the topology of the cluster.
pub(crate) const REQUIRED_TOPOLOGY: &str = "kueue.x-k8s.io/podset-required-topology";
pub(crate) const PREFERRED_TOPOLOGY: &str = "kueue.x-k8s.io/podset-preferred-topology";
pub(crate) const UNCONSTRAINED_TOPOLOGY: &str = "kueue.x-k8s.io/podset-unconstrained-topology";
pub(crate) const SLICE_REQUIRED_TOPOLOGY: &str = "kueue.x-k8s.io/podset-slice-required-topology";
pub(crate) const SLICE_SIZE: &str = "kueue.x-k8s.io/podset-slice-size";

/// The annotations of a Workload that store the numbers of stages and replicas from which the operator derived the
/// counts of the Workload's pod sets.
pub(crate) const STAGES_ANNOTATION: &str = "stagecoach.dev/stages";
pub(crate) const DATA_PARALLEL_ANNOTATION: &str = "stagecoach.dev/data-parallel";
/// The Workload annotation whose value is a hash of the Workload's pod sets without their counts.
pub(crate) const POD_SETS_ANNOTATION: &str = "stagecoach.dev/pod-sets-hash";
/// The Workload annotation whose value is a time in RFC 3339: the time of the job's newest checkpoint when the operator
/// last wrote the priority boost.
pub(crate) const LAST_CHECKPOINT_ANNOTATION: &str = "stagecoach.dev/last-checkpoint-time";

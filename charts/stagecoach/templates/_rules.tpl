{{- /* All rights of the operator, each with its reason. The operator reads no Secret, and no verb or resource is a
wildcard. */ -}}
{{- define "stagecoach.rules" -}}
# to read the jobs, and to delete them after ttlSecondsAfterFinished
- apiGroups: [stagecoach.dev]
  resources: [pipelinejobs]
  verbs: [get, list, watch, delete]
# to write the status of the jobs
- apiGroups: [stagecoach.dev]
  resources: [pipelinejobs/status]
  verbs: [update, patch]
# to own pods with blockOwnerDeletion in a cluster with the admission plugin
# OwnerReferencesPermissionEnforcement. The operator sets no finalizer
- apiGroups: [stagecoach.dev]
  resources: [pipelinejobs/finalizers]
  verbs: [update]
# one pod per stage: the operator creates, watches and deletes pods, and never changes them
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, create, delete]
# to read the end of a failed stage's log, for status.lastFailure
- apiGroups: [""]
  resources: [pods/log]
  verbs: [get]
# the DNS name of stage 0: the operator changes the Service to the pod of the next attempt, and deletes it when the
# job has finished or is suspended
- apiGroups: [""]
  resources: [services]
  verbs: [get, list, watch, create, update, delete]
# the template of an attempt's pods: an immutable ConfigMap, which the operator deletes with the attempt
- apiGroups: [""]
  resources: [configmaps]
  verbs: [get, list, watch, create, delete]
# the connections of the job's pods: the operator deletes the policy when networkPolicy.mode becomes None
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, list, watch, create, update, delete]
# to schedule all stages of an attempt or none: one PodGroup per attempt, of Kubernetes, Volcano or the coscheduling
# plugin
- apiGroups: [scheduling.k8s.io, scheduling.volcano.sh, scheduling.x-k8s.io]
  resources: [podgroups]
  verbs: [get, create, delete]
{{- if .Values.kueue.enabled }}
# the job's request to its queue: the operator creates it, changes it with the job, and deletes it when the job leaves
# the queue
- apiGroups: [kueue.x-k8s.io]
  resources: [workloads]
  verbs: [get, list, watch, create, update, delete]
# to report to the queue whether the pods are ready, which reservations the job returns, and the end of the job
- apiGroups: [kueue.x-k8s.io]
  resources: [workloads/status]
  verbs: [update]
{{- end }}
# the events that `kubectl describe` shows
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [create]
{{- end -}}
{{- /* The cluster-scoped objects that the operator reads for Kueue. */ -}}
{{- define "stagecoach.kueueRules" -}}
# the nodes on which Kueue admits a job
- apiGroups: [kueue.x-k8s.io]
  resources: [resourceflavors]
  verbs: [get]
# the value of a job's priority, by its WorkloadPriorityClass
- apiGroups: [kueue.x-k8s.io]
  resources: [workloadpriorityclasses]
  verbs: [get]
# the value of a job's priority, by the PriorityClass of its pods
- apiGroups: [scheduling.k8s.io]
  resources: [priorityclasses]
  verbs: [get]
{{- end -}}

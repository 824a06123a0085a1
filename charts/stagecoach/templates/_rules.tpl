{{- /* Everything that the operator does with the API, and why. It reads no Secret, and no verb or resource is a wildcard. */ -}}
{{- define "stagecoach.rules" -}}
# the jobs themselves; deleted when ttlSecondsAfterFinished says so
- apiGroups: [stagecoach.dev]
  resources: [pipelinejobs]
  verbs: [get, list, watch, delete]
# what became of them
- apiGroups: [stagecoach.dev]
  resources: [pipelinejobs/status]
  verbs: [update, patch]
# to own pods with blockOwnerDeletion where OwnerReferencesPermissionEnforcement is on; no finalizer is ever set
- apiGroups: [stagecoach.dev]
  resources: [pipelinejobs/finalizers]
  verbs: [update]
# one per stage: made, watched and deleted, never changed
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, create, delete]
# the tail of a failed stage's log, for status.lastFailure
- apiGroups: [""]
  resources: [pods/log]
  verbs: [get]
# the name in front of stage 0, turned to the next attempt's pod; deleted when the job is over or suspended
- apiGroups: [""]
  resources: [services]
  verbs: [get, list, watch, create, update, delete]
# what an attempt is made from; immutable, and deleted with its attempt
- apiGroups: [""]
  resources: [configmaps]
  verbs: [get, list, watch, create, delete]
# who may talk to the job's pods; deleted when networkPolicy.mode becomes None
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, list, watch, create, update, delete]
# all stages at once or none, one per attempt: Kubernetes' own, Volcano's, and the coscheduling plugin's
- apiGroups: [scheduling.k8s.io, scheduling.volcano.sh, scheduling.x-k8s.io]
  resources: [podgroups]
  verbs: [get, create, delete]
{{- if .Values.kueue.enabled }}
# what a job asks of its queue: made, changed with the job, and deleted when the job leaves the queue
- apiGroups: [kueue.x-k8s.io]
  resources: [workloads]
  verbs: [get, list, watch, create, update, delete]
# what the job answers: whether its pods are ready, that it gives a reservation back, its end
- apiGroups: [kueue.x-k8s.io]
  resources: [workloads/status]
  verbs: [update]
{{- end }}
# what `kubectl describe` shows
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [create]
{{- end -}}
{{- /* What the operator reads of the cluster for Kueue. */ -}}
{{- define "stagecoach.kueueRules" -}}
# on which nodes a job is admitted
- apiGroups: [kueue.x-k8s.io]
  resources: [resourceflavors]
  verbs: [get]
# the value of a job's priority
- apiGroups: [kueue.x-k8s.io]
  resources: [workloadpriorityclasses]
  verbs: [get]
# the same of a job whose pods name a PriorityClass
- apiGroups: [scheduling.k8s.io]
  resources: [priorityclasses]
  verbs: [get]
{{- end -}}

{{- define "stagecoach.name" -}}
{{- .Values.fullnameOverride | default (printf "%s-operator" .Release.Name) | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "stagecoach.account" -}}
{{- .Values.serviceAccount.name | default (include "stagecoach.name" .) -}}
{{- end -}}

{{- define "stagecoach.selector" -}}
app.kubernetes.io/name: stagecoach
app.kubernetes.io/component: operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "stagecoach.labels" -}}
{{ include "stagecoach.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "stagecoach.metadata" -}}
name: {{ include "stagecoach.name" . }}
namespace: {{ .Release.Namespace }}
labels:
  {{- include "stagecoach.labels" . | nindent 2 }}
{{- end -}}

{{- /* The labels that the operator sets on all trainer pods. */ -}}
{{- define "stagecoach.trainers" -}}
app.kubernetes.io/name: stagecoach
app.kubernetes.io/component: trainer
{{- end -}}

{{- /* Takes {image, version}. A digest has precedence over a tag. */ -}}
{{- define "stagecoach.image" -}}
{{- if .image.digest -}}
{{ .image.repository }}@{{ .image.digest }}
{{- else -}}
{{ .image.repository }}:{{ .image.tag | default .version }}
{{- end -}}
{{- end -}}

{{- define "stagecoach.operatorImage" -}}
{{- include "stagecoach.image" (dict "image" .Values.image "version" .Chart.AppVersion) -}}
{{- end -}}

{{- define "stagecoach.trainerImage" -}}
{{- include "stagecoach.image" (dict "image" .Values.trainerImage "version" .Chart.AppVersion) -}}
{{- end -}}

{{- /* The peers that may read the trainers' status port, for the jobs' NetworkPolicies. The kubelet expands
$(POD_NAMESPACE), so the namespace is right even if kustomize installs the operator in another one. */ -}}
{{- define "stagecoach.readers" -}}
{{- $namespace := dict "matchLabels" (dict "kubernetes.io/metadata.name" "$(POD_NAMESPACE)") -}}
{{- $pods := dict "matchLabels" (include "stagecoach.selector" . | fromYaml) -}}
{{- $operator := dict "namespaceSelector" $namespace "podSelector" $pods -}}
{{- concat (list $operator) .Values.scrapers | toJson -}}
{{- end -}}

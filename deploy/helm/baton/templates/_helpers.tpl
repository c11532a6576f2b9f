{{- define "baton.labels" -}}
app.kubernetes.io/name: baton
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- /* The labels by which selectors find all pods of a release. */}}
{{- define "baton.selector" -}}
app.kubernetes.io/name: baton
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- /* A value as quoted text. Helm reads numbers as float64, which `toString` writes as 2e+07; `toJson` doesn't. */}}
{{- define "baton.text" -}}
{{ ternary . (toJson .) (kindIs "string" .) | quote }}
{{- end }}

{{- define "baton.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- /* What is the same in all pods. Takes the user's id. */}}
{{- define "baton.podSecurity" -}}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: {{ . }}
  runAsGroup: {{ . }}
  fsGroup: {{ . }} # may read the mounted Secrets
  seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "baton.containerSecurity" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end }}

{{- define "baton.pullSecrets" -}}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
{{- range . }}
  - name: {{ . }}
{{- end }}
{{- end }}
{{- end }}

{{- define "baton.placement" -}}
{{- range $field := list "nodeSelector" "tolerations" "affinity" "priorityClassName" }}
{{- with index $ $field }}
{{ dict $field . | toYaml }}
{{- end }}
{{- end }}
{{- end }}

{{- /* The password of the journal and the encryption keys, as variables. */}}
{{- define "baton.journalSecrets" -}}
- name: PGPASSWORD
  valueFrom:
    secretKeyRef: {name: {{ .Values.secrets.journal.name }}, key: {{ .Values.secrets.journal.key }}}
{{- with .Values.secrets.encryption }}
- name: BATON_ENCRYPTION_KEYS
  valueFrom:
    secretKeyRef: {name: {{ .name }}, key: {{ .key }}, optional: true}
{{- end }}
{{- end }}

{{- /* The key by which gateways sign who decides, and by which workers with the role `workflows` verify it. */}}
{{- define "baton.identitySecret" -}}
{{- with .Values.secrets.identity }}
- name: BATON_IDENTITY_KEY
  valueFrom:
    secretKeyRef: {name: {{ .name }}, key: {{ .key }}, optional: true}
{{- end }}
{{- end }}

{{- /* The variables of workers and gateways: the settings, and the keys of Temporal and of the bucket of long values. */}}
{{- define "baton.environment" -}}
- configMapRef: {name: {{ .Release.Name }}-settings}
{{- with .Values.secrets.temporal }}
- secretRef: {name: {{ . }}, optional: true} # TEMPORAL_API_KEY
{{- end }}
{{- with .Values.secrets.storage }}
- secretRef: {name: {{ . }}, optional: true} # AWS_…
{{- end }}
{{- end }}

{{- define "baton.teamsConfigMap" -}}
{{- if eq .Values.manifests.source "configMap" -}}
{{ required "manifests.configMap: the name of a ConfigMap with manifests" .Values.manifests.configMap }}
{{- else -}}
{{ .Release.Name }}-teams
{{- end }}
{{- end }}

{{- /* Changes when the settings or the teams do, so that pods are replaced. */}}
{{- define "baton.checksums" -}}
checksum/settings: {{ .Values.settings | toJson | sha256sum | trunc 16 }}
checksum/manifests: {{ .Values.manifests | toJson | sha256sum | trunc 16 }}
{{- end }}

{{- /* The workers with their defaults, as JSON. Fails if a role is executed by none, or if queues are shared wrongly. */}}
{{- define "baton.workers" -}}
{{- $workers := dict }}
{{- $roles := list }}
{{- range $name, $own := .Values.workers }}
{{- if $own }}
{{- $workers = set $workers $name (mergeOverwrite (deepCopy $.Values.workerDefaults) $own) }}
{{- $roles = concat $roles $own.roles }}
{{- if lt (len $own.roles) 3 }}
{{- range list "BATON_MODEL_TASK_QUEUE" "BATON_TOOL_TASK_QUEUE" }}
{{- if not (index $.Values.settings .) }}{{ fail (printf "settings.%s: workers with some of the roles (%s) need a task queue for each role" . $name) }}{{ end }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- range list "workflows" "models" "tools" }}
{{- if not (has . $roles) }}{{ fail (printf "workers: none has the role %s, so runs would wait for ever" .) }}{{ end }}
{{- end }}
{{- toJson $workers }}
{{- end }}

{{- define "sluice.name" -}}
{{ .Values.nameOverride | default .Chart.Name | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "sluice.fullname" -}}
{{- $name := include "sluice.name" . -}}
{{- if .Values.fullnameOverride -}}
{{ .Values.fullnameOverride | trunc 50 | trimSuffix "-" }}
{{- else if contains $name .Release.Name -}}
{{ .Release.Name | trunc 50 | trimSuffix "-" }}
{{- else -}}
{{ printf "%s-%s" .Release.Name $name | trunc 50 | trimSuffix "-" }}
{{- end -}}
{{- end }}

{{- define "sluice.selector" -}}
app.kubernetes.io/name: {{ include "sluice.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- /*
Sluice's own pods. The last label decides: a plugin's podTemplateOverlay can give a step's pod in this namespace every other
label, but none of `sluice.dev/`. A pod that it made look like a server would be sent reviews, and a ReplicaSet would adopt it.
*/}}
{{- define "sluice.podSelector" -}}
{{ include "sluice.selector" . }}
sluice.dev/component: server
{{- end }}

{{- define "sluice.standardLabels" -}}
{{ include "sluice.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- /* Merged, not appended: a key given twice would be no YAML. The first one wins. */}}
{{- define "sluice.labels" -}}
{{ toYaml (merge (fromYaml (include "sluice.standardLabels" .)) .Values.commonLabels) }}
{{- end }}

{{- /* Labels and annotations, as two keys of an object's metadata. */}}
{{- define "sluice.marks" -}}
labels:
  {{- include "sluice.labels" . | nindent 2 }}
{{- with .Values.commonAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "sluice.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}
{{ printf "%s@%s" .repository .digest }}
{{- else -}}
{{ printf "%s:%s" .repository (.tag | default $.Chart.AppVersion) }}
{{- end -}}
{{- end -}}
{{- end }}

{{- /* Every namespace in which runners work, the release's own first, as a comma-separated list. */}}
{{- define "sluice.runnerNamespaces" -}}
{{ prepend (without .Values.runnerNamespaces .Release.Namespace) .Release.Namespace | uniq | join "," }}
{{- end }}

{{- /* The ConfigMap with the CA of the API server's client certificate; empty where none is asked for. */}}
{{- define "sluice.clientCA" -}}
{{- $webhook := .Values.webhook | default dict -}}
{{- $given := $webhook.clientCA | default dict -}}
{{- if $given.configMap -}}
{{ $given.configMap }}
{{- else if trim ($given.pem | default "") -}}
{{ include "sluice.fullname" . }}-client-ca
{{- else if $webhook.clientNames -}}
{{- fail "webhook.clientNames needs webhook.clientCA.pem or webhook.clientCA.configMap: say which CA signs the certificates" }}
{{- end -}}
{{- end }}

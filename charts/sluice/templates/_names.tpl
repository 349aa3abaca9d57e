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

{{- /*
Where plugins run that name no namespace. `helm upgrade --reuse-values` brings the values of a release that knew none of
`runners`, here and below.
*/}}
{{- define "sluice.defaultRunnerNamespace" -}}
{{ dig "namespace" "name" "sluice-runners" (.Values.runners | default dict) }}
{{- end }}

{{- /* Every namespace in which runners work, the default one first, as a comma-separated list. */}}
{{- define "sluice.runnerNamespaces" -}}
{{ prepend (.Values.runnerNamespaces | default list) (include "sluice.defaultRunnerNamespace" .) | uniq | join "," }}
{{- end }}

{{- /* Where no sandbox may be: Sluice's own namespace and the runners', as a list in CEL. */}}
{{- define "sluice.closedNamespaces" -}}
{{ append (include "sluice.runnerNamespaces" . | splitList ",") .Release.Namespace | uniq | toJson }}
{{- end }}

{{- /* The user that Sluice is to the API server. */}}
{{- define "sluice.user" -}}
system:serviceaccount:{{ .Release.Namespace }}:{{ include "sluice.fullname" . }}
{{- end }}

{{- /* The service accounts that values name, by namespace. */}}
{{- define "sluice.runnerAccounts" -}}
{{ dig "serviceAccounts" dict (.Values.runners | default dict) | toYaml }}
{{- end }}

{{- /* Fails where the values would let a plugin act as Sluice. */}}
{{- define "sluice.checkRunners" -}}
{{- $own := .Release.Namespace -}}
{{- $namespaces := include "sluice.runnerNamespaces" . | splitList "," -}}
{{- $accounts := include "sluice.runnerAccounts" . | fromYaml -}}
{{- if and (has $own $namespaces) (not (dig "allowOwnNamespace" false (.Values.runners | default dict))) -}}
{{- fail (printf "plugins may not run in %q, the namespace of the release, unless runners.allowOwnNamespace is true: name another in runners.namespace.name and runnerNamespaces" $own) -}}
{{- end -}}
{{- range $namespace, $names := $accounts -}}
{{- if not (has $namespace $namespaces) -}}
{{- fail (printf "runners.serviceAccounts names the namespace %q, where no plugin runs: add it to runnerNamespaces, or take it out" $namespace) -}}
{{- end -}}
{{- if and (eq $namespace $own) (has (include "sluice.fullname" $) $names) -}}
{{- fail (printf "runners.serviceAccounts.%s names %q, which is Sluice's own account and no plugin may act as: make one for the plugin, with the rights that it needs" $own (include "sluice.fullname" $)) -}}
{{- end -}}
{{- end -}}
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

{{- /* rls.name is the name of all objects. The longest suffix is -metrics, and a name has 63 bytes. */}}
{{- define "rls.name" -}}
{{- $name := contains .Chart.Name .Release.Name | ternary .Release.Name (printf "%s-%s" .Release.Name .Chart.Name) }}
{{- .Values.fullnameOverride | default $name | trunc 55 | trimSuffix "-" }}
{{- end }}

{{- define "rls.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "rls.commonLabels" -}}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version | replace "+" "_" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "rls.labels" -}}
{{ include "rls.selector" . }}
{{ include "rls.commonLabels" . }}
{{- end }}

{{- /* rls.testLabels are the labels of the pod of helm test, which is no pod of the service. */}}
{{- define "rls.testLabels" -}}
app.kubernetes.io/name: {{ .Chart.Name }}-test
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- /* rls.image is registry/repository:tag@digest. A digest alone needs no tag. */}}
{{- define "rls.image" -}}
{{- with .Values.image }}
{{- with .registry }}{{ . }}/{{ end }}{{ .repository }}
{{- if or .tag (not .digest) }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}
{{- with .digest }}@{{ . }}{{ end }}
{{- end }}
{{- end }}

{{- define "rls.serviceAccount" -}}
{{- .Values.serviceAccount.name | default (.Values.serviceAccount.create | ternary (include "rls.name" .) "default") }}
{{- end }}

{{- /* rls.limitsConfigMap is the name of the ConfigMap of limits files, or empty. */}}
{{- define "rls.limitsConfigMap" -}}
{{- if .Values.limits }}{{ include "rls.name" . }}-limits{{ else }}{{ .Values.limitsConfigMap }}{{ end }}
{{- end }}

{{- /* rls.usesRedis is not empty if the values name a Redis, or envFrom may name one. */}}
{{- define "rls.usesRedis" -}}
{{- with .Values }}
{{- if or .redis.url .redis.urlSecret .env.REDIS_URL .envFrom }}yes{{ end }}
{{- range .extraEnv }}{{ if eq .name "REDIS_URL" }}yes{{ end }}{{ end }}
{{- end }}
{{- end }}

{{- define "rls.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name }}{{ else }}{{ .Release.Name }}-{{ .Chart.Name }}{{ end }}
{{- end }}

{{- define "rls.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "rls.labels" -}}
{{ include "rls.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "rls.pods" -}}
{{ .Values.autoscaling.enabled | ternary .Values.autoscaling.minReplicas .Values.replicas }}
{{- end }}

{{- /* rejects values with which the pods would not start */}}
{{- define "rls.check" -}}
{{- if not (or .Values.limits (eq (toString .Values.env.CONFIG_TYPE) "GRPC_XDS_SOTW")) }}
{{- fail "no limits: set limits (for example --set-file 'limits.shop\\.yaml=FILE'), or use an xDS server (env.CONFIG_TYPE: GRPC_XDS_SOTW)" }}
{{- end }}
{{- if and .Values.overrides (not (or .Values.redis.url .Values.env.REDIS_URL)) }}
{{- fail "overrides: got true without Redis, want redis.url" }}
{{- end }}
{{- end }}

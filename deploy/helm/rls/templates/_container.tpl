{{- /* rls.ownEnv is the list of variables that the values of the chart set. */}}
{{- define "rls.ownEnv" -}}
- {name: DRAIN_DELAY, value: "{{ int .Values.drain.delaySeconds }}s"}
- {name: DRAIN_TIMEOUT, value: "{{ int .Values.drain.timeoutSeconds }}s"}
- {name: USE_PROMETHEUS, value: "true"}
- {name: PROMETHEUS_ADDR, value: ":9090"}
{{- if include "rls.limitsConfigMap" . }}
- {name: LIMITS_PATH, value: /limits}
{{- end }}
{{- if .Values.overrides }}
- {name: OVERRIDES_ENABLED, value: "true"}
{{- end }}
{{- with .Values.admin.tokenSecret }}
- {name: ADMIN_TOKEN, valueFrom: {secretKeyRef: {name: {{ . | quote }}, key: token}}}
{{- end }}
{{- include "rls.xdsEnv" . }}
{{- include "rls.redisEnv" . }}
{{- include "rls.tlsEnv" . }}
{{- end }}

{{- define "rls.xdsEnv" -}}
{{- with .Values.xds }}
{{- if .server }}
- {name: CONFIG_TYPE, value: GRPC_XDS_SOTW}
- {name: CONFIG_GRPC_XDS_SERVER_URL, value: {{ .server | quote }}}
{{- with .nodeID }}
- {name: CONFIG_GRPC_XDS_NODE_ID, value: {{ . | quote }}}
{{- end }}
{{- if .tls.enabled }}
- {name: CONFIG_GRPC_XDS_SERVER_USE_TLS, value: "true"}
{{- if .tls.secret }}
- {name: CONFIG_GRPC_XDS_SERVER_TLS_CACERT, value: /certs/xds/ca.crt}
{{- end }}
{{- if .tls.clientCert }}
- {name: CONFIG_GRPC_XDS_CLIENT_TLS_CERT, value: /certs/xds/tls.crt}
- {name: CONFIG_GRPC_XDS_CLIENT_TLS_KEY, value: /certs/xds/tls.key}
{{- end }}
{{- with .tls.serverName }}
- {name: CONFIG_GRPC_XDS_SERVER_TLS_SAN, value: {{ . | quote }}}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{- define "rls.redisEnv" -}}
{{- with .Values.redis }}
{{- if or .url .urlSecret }}
{{- if .url }}
- {name: REDIS_URL, value: {{ .url | quote }}}
{{- else }}
- {name: REDIS_URL, valueFrom: {secretKeyRef: {name: {{ .urlSecret | quote }}, key: url}}}
{{- end }}
- {name: REDIS_TYPE, value: {{ .type | quote }}}
- {name: REDIS_TIMEOUT, value: {{ .timeout | quote }}}
{{- with .authSecret }}
- {name: REDIS_AUTH, valueFrom: {secretKeyRef: {name: {{ . | quote }}, key: auth}}}
{{- end }}
{{- with .sentinelAuthSecret }}
- {name: REDIS_SENTINEL_AUTH, valueFrom: {secretKeyRef: {name: {{ . | quote }}, key: auth}}}
{{- end }}
{{- if .tls.enabled }}
- {name: REDIS_TLS, value: "true"}
{{- if .tls.secret }}
- {name: REDIS_TLS_CACERT, value: /certs/redis/ca.crt}
{{- end }}
{{- if .tls.clientCert }}
- {name: REDIS_TLS_CLIENT_CERT, value: /certs/redis/tls.crt}
- {name: REDIS_TLS_CLIENT_KEY, value: /certs/redis/tls.key}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{- define "rls.tlsEnv" -}}
{{- with .Values.tls }}
{{- if .secret }}
- {name: GRPC_SERVER_USE_TLS, value: "true"}
- {name: GRPC_SERVER_TLS_CERT, value: /certs/grpc/tls.crt}
- {name: GRPC_SERVER_TLS_KEY, value: /certs/grpc/tls.key}
{{- if .clientAuth }}
- {name: GRPC_CLIENT_TLS_CACERT, value: /certs/grpc/ca.crt}
{{- end }}
{{- with .clientSAN }}
- {name: GRPC_CLIENT_TLS_SAN, value: {{ . | quote }}}
{{- end }}
{{- if .callers }}
- {name: CALLER_DOMAINS_FILE, value: /callers/callers.yaml}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{- /* rls.volumes is the list of volumes that the values of the chart need. Each is mounted. */}}
{{- define "rls.volumes" -}}
{{- with include "rls.limitsConfigMap" . }}
- {name: limits, configMap: {name: {{ . | quote }}}}
{{- end }}
{{- if .Values.tls.callers }}
- {name: callers, configMap: {name: {{ include "rls.name" . }}-callers}}
{{- end }}
{{- with .Values.tls.secret }}
- {name: grpc-certs, secret: {secretName: {{ . | quote }}}}
{{- end }}
{{- with .Values.redis.tls.secret }}
- {name: redis-certs, secret: {secretName: {{ . | quote }}}}
{{- end }}
{{- with .Values.xds.tls.secret }}
- {name: xds-certs, secret: {secretName: {{ . | quote }}}}
{{- end }}
{{- end }}

{{- /* rls.container is the part that the container rls has in common with the container of helm test. */}}
{{- define "rls.container" -}}
image: {{ include "rls.image" . | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext: {{- toYaml .Values.securityContext | nindent 2 }}
env:
  {{- include "rls.ownEnv" . | nindent 2 }}
  {{- range $name, $value := .Values.env }}
  {{- /* quote alone turns 2000000 into "2e+06" */}}
  - {name: {{ $name }}, value: {{ kindIs "string" $value | ternary $value (toJson $value) | quote }}}
  {{- end }}
  {{- with .Values.extraEnv }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with .Values.envFrom }}
envFrom: {{- toYaml . | nindent 2 }}
{{- end }}
{{- $volumes := include "rls.volumes" . | fromYamlArray }}
{{- if or $volumes .Values.extraVolumeMounts }}
volumeMounts:
  {{- range $volumes }}
  - {name: {{ .name }}, mountPath: {{ has .name (list "limits" "callers") | ternary (printf "/%s" .name) (printf "/certs/%s" (trimSuffix "-certs" .name)) }}, readOnly: true}
  {{- end }}
  {{- with .Values.extraVolumeMounts }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}
{{- end }}

{{- /* rls.pod is the part that the pods of the deployment have in common with the pod of helm test. */}}
{{- define "rls.pod" -}}
serviceAccountName: {{ include "rls.serviceAccount" . }}
automountServiceAccountToken: false
securityContext: {{- toYaml .Values.podSecurityContext | nindent 2 }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- range $field := list "imagePullSecrets" "nodeSelector" "tolerations" "affinity" "initContainers" }}
{{- with index $.Values $field }}
{{ $field }}: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
{{- $volumes := include "rls.volumes" . | trim }}
{{- if or $volumes .Values.extraVolumes }}
volumes:
  {{- with $volumes }}{{ . | nindent 2 }}{{ end }}
  {{- with .Values.extraVolumes }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}
{{- end }}

{{- /* rls.check rejects values with which the pods would not start, or would not do what the values say. */}}
{{- define "rls.check" -}}
{{- include "rls.checkLimits" . }}
{{- include "rls.checkLimitsFiles" . }}
{{- include "rls.checkRedis" . }}
{{- include "rls.checkTLS" . }}
{{- include "rls.checkEnv" . }}
{{- with .Values.autoscaling }}
{{- if and .enabled (gt (int .minReplicas) (int .maxReplicas)) }}
{{- fail (printf "autoscaling.minReplicas: got %d, want at most maxReplicas (%d)" (int .minReplicas) (int .maxReplicas)) }}
{{- end }}
{{- end }}
{{- if and .Values.autoscaling.enabled (not (dig "requests" "cpu" "" .Values.resources)) }}
{{- fail "autoscaling: got no resources.requests.cpu, want a CPU request, because the target is a percentage of it" }}
{{- end }}
{{- if and .Values.service.headless (ne .Values.service.type "ClusterIP") }}
{{- fail (printf "service.headless: got true with type %s, want type ClusterIP or headless: false" .Values.service.type) }}
{{- end }}
{{- if and .Values.serviceMonitor.enabled .Values.podMonitor.enabled }}
{{- fail "podMonitor.enabled: got true with serviceMonitor.enabled, want one monitor, because Prometheus would scrape each pod twice" }}
{{- end }}
{{- if and .Values.networkPolicy.enabled (not .Values.networkPolicy.from) }}
{{- fail "networkPolicy.from: got no peers, want the pods of Envoy, such as [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: envoy}}}]" }}
{{- end }}
{{- include "rls.checkImage" . }}
{{- end }}

{{- define "rls.checkImage" -}}
{{- with .Values.image }}
{{- if not (or .registry (contains "/" .repository) (eq .pullPolicy "Never")) }}
{{- fail (printf "image.registry: got none, want the registry to which you pushed the image %s, or image.pullPolicy=Never for an image that the nodes have" (include "rls.image" $)) }}
{{- end }}
{{- end }}
{{- end }}

{{- define "rls.checkLimits" -}}
{{- with .Values }}
{{- $isXDS := or .xds.server (eq (toString .env.CONFIG_TYPE) "GRPC_XDS_SOTW") }}
{{- if and .limits .limitsConfigMap }}
{{- fail "limitsConfigMap: got a name beside limits, want only one of both" }}
{{- end }}
{{- if and $isXDS (or .limits .limitsConfigMap) }}
{{- fail "limits: got limits files and an xDS server, want only one of both" }}
{{- end }}
{{- if not (or $isXDS .limits .limitsConfigMap .env.LIMITS_PATH) }}
{{- fail "limits: got none, want limits files (for example --set-file 'limits.shop\\.yaml=FILE'), limitsConfigMap, xds.server, or env.LIMITS_PATH for files of extraVolumes" }}
{{- end }}
{{- if and (not .xds.server) (or .xds.nodeID .xds.tls.enabled) }}
{{- fail "xds: got settings without xds.server, want its host:port" }}
{{- end }}
{{- end }}
{{- end }}

{{- define "rls.checkRedis" -}}
{{- range $name, $url := dict "redis.url" .Values.redis.url "env.REDIS_URL" .Values.env.REDIS_URL "env.REDIS_PERSECOND_URL" .Values.env.REDIS_PERSECOND_URL "env.REDIS_GLOBAL_URL" .Values.env.REDIS_GLOBAL_URL }}
{{- if regexMatch "//[^/@]*:.*@" (toString $url) }}
{{- fail (printf "%s: got a password, which the release would store in plain text; want a secret: redis.urlSecret or redis.authSecret (or valueFrom in extraEnv)" $name) }}
{{- end }}
{{- end }}
{{- with .Values.redis }}
{{- if and .url .urlSecret }}
{{- fail "redis.urlSecret: got a name beside redis.url, want only one of both" }}
{{- end }}
{{- if and (not (or .url .urlSecret)) (or .authSecret .sentinelAuthSecret .tls.enabled (ne .type "single")) }}
{{- fail "redis: got settings without redis.url, want redis.url or redis.urlSecret" }}
{{- end }}
{{- if and .sentinelAuthSecret (ne .type "sentinel") }}
{{- fail (printf "redis.sentinelAuthSecret: got a name with type %s, want type sentinel" .type) }}
{{- end }}
{{- end }}
{{- if and .Values.overrides (not (include "rls.usesRedis" .)) }}
{{- fail "overrides: got true without Redis, want redis.url" }}
{{- end }}
{{- end }}

{{- define "rls.checkTLS" -}}
{{- with .Values.tls }}
{{- if and .clientAuth (not .secret) }}
{{- fail "tls.clientAuth: got true without tls.secret, want a secret with tls.crt, tls.key and ca.crt" }}
{{- end }}
{{- if and .clientSAN (not .clientAuth) }}
{{- fail "tls.clientSAN: got a name without tls.clientAuth, want clientAuth: true, because only then clients show a certificate" }}
{{- end }}
{{- if and .callers (not .clientAuth) }}
{{- fail "tls.callers: got callers without tls.clientAuth, want clientAuth: true, because only then clients show a certificate" }}
{{- end }}
{{- end }}
{{- range $path, $tls := dict "redis.tls" .Values.redis.tls "xds.tls" .Values.xds.tls }}
{{- if and (or $tls.secret $tls.clientCert) (not $tls.enabled) }}
{{- fail (printf "%s: got a certificate without %[1]s.enabled, want enabled: true" $path) }}
{{- end }}
{{- if and $tls.clientCert (not $tls.secret) }}
{{- fail (printf "%s.clientCert: got true without %[1]s.secret, want a secret with tls.crt and tls.key" $path) }}
{{- end }}
{{- end }}
{{- end }}

{{- /* rls.checkEnv rejects names in env that are no settings, and variables that the chart sets itself. */}}
{{- define "rls.checkEnv" -}}
{{- $settings := .Files.Get "files/settings.txt" | splitList "\n" }}
{{- range $name, $value := .Values.env }}
{{- if not (or (has $name $settings) (hasPrefix "OTEL_" $name) (hasPrefix "DOG_STATSD_MOGRIFIER_" $name)) }}
{{- fail (printf "env.%s: got an unknown setting, want a name of docs/settings.md; variables of other programs go into extraEnv" $name) }}
{{- end }}
{{- end }}
{{- $own := list "GRPC_PORT" "GRPC_UDS" "PORT" }}
{{- range include "rls.ownEnv" . | fromYamlArray }}{{ $own = append $own .name }}{{ end }}
{{- $names := keys .Values.env | sortAlpha }}
{{- range .Values.extraEnv }}{{ $names = append $names .name }}{{ end }}
{{- if ne (len $names) (len (uniq $names)) }}
{{- fail (printf "extraEnv: got a variable twice in env and extraEnv, want each once: %s" (join ", " $names)) }}
{{- end }}
{{- $values := dict "DRAIN_DELAY" "drain.delaySeconds" "DRAIN_TIMEOUT" "drain.timeoutSeconds" }}
{{- range $names }}
{{- if has . $own }}
{{- fail (printf "env.%s: got a variable that the chart sets, want %s" . (get $values . | default "the values of the chart in its place")) }}
{{- end }}
{{- end }}
{{- end }}

package deploy

import (
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/lint"
	"helm.sh/helm/v3/pkg/lint/support"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

func TestChartPassesLint(t *testing.T) {
	values, err := chartutil.ReadValues([]byte(shopFile))
	require.NoError(t, err)
	for _, message := range lint.AllWithKubeVersion(path(chartFolder), values, "limits", nil).Messages {
		if message.Severity > support.InfoSev {
			assert.NoError(t, message.Err)
		}
	}
}

// shopFile is the minimum of values that the chart accepts.
const shopFile = exampleImage + `limits: {shop.yaml: "domain: shop"}`

const exampleImage = "image: {registry: registry.example}\n"

// addPodEnv returns settings, with those that every pod has.
func addPodEnv(settings map[string]string) map[string]string {
	env := map[string]string{"DRAIN_DELAY": "40s", "DRAIN_TIMEOUT": "15s", "USE_PROMETHEUS": "true", "PROMETHEUS_ADDR": ":9090"}
	maps.Copy(env, settings)
	return env
}

func TestDefaultValuesRenderASafeDeployment(t *testing.T) {
	manifests := renderManifests(t, shopFile)
	assert.Equal(t, "shop-rls", manifests.deployment.Name)
	assert.EqualValues(t, 2, *manifests.deployment.Spec.Replicas)
	assert.Equal(t, addPodEnv(map[string]string{"LIMITS_PATH": "/limits"}), manifests.env())
	assert.Equal(t, map[string]string{"shop.yaml": "domain: shop"}, manifests.limits(), "only the given limits")
	assert.Equal(t, "None", manifests.service.Spec.ClusterIP)
	require.NotNil(t, manifests.pdb)
	assert.Equal(t, intstr.FromInt32(1), *manifests.pdb.Spec.MaxUnavailable)
	assert.Nil(t, manifests.hpa)
	assert.Nil(t, manifests.network)
	assert.Nil(t, manifests.metrics)
	assert.Nil(t, manifests.alerts)
	assert.Nil(t, manifests.dashboard)

	pod := manifests.deployment.Spec.Template.Spec
	assert.True(t, *pod.SecurityContext.RunAsNonRoot)
	assert.EqualValues(t, 65532, *pod.SecurityContext.RunAsUser)
	assert.False(t, *pod.AutomountServiceAccountToken)
	require.NotNil(t, manifests.serviceAccount)
	assert.False(t, *manifests.serviceAccount.AutomountServiceAccountToken)
	container := pod.Containers[0].SecurityContext
	assert.True(t, *container.ReadOnlyRootFilesystem)
	assert.False(t, *container.AllowPrivilegeEscalation)
	assert.Equal(t, []corev1.Capability{"ALL"}, container.Capabilities.Drop)
}

func TestEachValueOfTheChartTakesEffect(t *testing.T) {
	manifests := renderManifests(t, shopFile+`
fullnameOverride: limiter
commonLabels: {team: edge}
image: {registry: registry.example, repository: platform/rls, tag: v1}
redis:
  url: redis.example:6379
  type: sentinel
  authSecret: redis-password
  sentinelAuthSecret: sentinel-password
  tls: {enabled: true, secret: redis-tls, clientCert: true}
overrides: true
admin: {tokenSecret: admin-token}
tls: {secret: grpc-tls, clientAuth: true, clientSAN: envoy.example, callers: [{dns: envoy.example, domains: [shop]}]}
env: {LIMIT_RESPONSE_HEADERS_ENABLED: true, LOCAL_MAX_KEYS: 2000000, REDIS_FALLBACK_RATIO: 0.25, CACHE_KEY_PREFIX: "1e6"}
extraEnv: [{name: DECISION_LOG_HASH_KEY, valueFrom: {secretKeyRef: {name: log, key: hash}}}]
envFrom: [{secretRef: {name: more-settings}}]
extraVolumes: [{name: candidate, configMap: {name: candidate}}, {name: logs, emptyDir: {}}]
extraVolumeMounts: [{name: candidate, mountPath: /candidate}, {name: logs, mountPath: /logs}]
initContainers: [{name: wait, image: busybox, command: [sleep, "1"]}]
extraContainers: [{name: shipper, image: fluent-bit, volumeMounts: [{name: logs, mountPath: /logs}]}]
autoscaling: {enabled: true, maxReplicas: 5, metrics: [{type: Resource, resource: {name: memory, target: {type: Utilization, averageUtilization: 80}}}]}
resources: {limits: {memory: 2Gi}}
serviceAccount: {name: limiter-edge, annotations: {role: limits}}
priorityClassName: high
nodeSelector: {disk: fast}
tolerations: [{key: edge, operator: Exists}]
affinity: {podAntiAffinity: {}}
podLabels: {tier: edge}
podAnnotations: {owner: edge}
service: {annotations: {owner: edge}}
`)
	assert.Equal(t, addPodEnv(map[string]string{
		"LIMITS_PATH": "/limits", "REDIS_URL": "redis.example:6379", "REDIS_TYPE": "sentinel", "REDIS_TIMEOUT": "50ms",
		"REDIS_AUTH": "secret redis-password auth", "REDIS_SENTINEL_AUTH": "secret sentinel-password auth",
		"REDIS_TLS": "true", "REDIS_TLS_CACERT": "/certs/redis/ca.crt",
		"REDIS_TLS_CLIENT_CERT": "/certs/redis/tls.crt", "REDIS_TLS_CLIENT_KEY": "/certs/redis/tls.key",
		"OVERRIDES_ENABLED": "true", "ADMIN_TOKEN": "secret admin-token token",
		"GRPC_SERVER_USE_TLS": "true", "GRPC_SERVER_TLS_CERT": "/certs/grpc/tls.crt", "GRPC_SERVER_TLS_KEY": "/certs/grpc/tls.key",
		"GRPC_CLIENT_TLS_CACERT": "/certs/grpc/ca.crt", "GRPC_CLIENT_TLS_SAN": "envoy.example", "CALLER_DOMAINS_FILE": "/callers/callers.yaml",
		"LIMIT_RESPONSE_HEADERS_ENABLED": "true", "LOCAL_MAX_KEYS": "2000000", "REDIS_FALLBACK_RATIO": "0.25", "CACHE_KEY_PREFIX": "1e6",
		"DECISION_LOG_HASH_KEY": "secret log hash",
	}), manifests.env())
	assert.Nil(t, manifests.deployment.Spec.Replicas, "the autoscaler sets the number")
	require.NotNil(t, manifests.hpa)
	assert.EqualValues(t, 5, manifests.hpa.Spec.MaxReplicas)
	assert.Len(t, manifests.hpa.Spec.Metrics, 2)
	assert.Equal(t, manifests.deployment.Spec.Template.Spec.Containers[0].Name, manifests.hpa.Spec.Metrics[0].ContainerResource.Container)
	assert.Equal(t, manifests.deployment.Name, manifests.hpa.Spec.ScaleTargetRef.Name)

	assert.Equal(t, "limiter", manifests.deployment.Name)
	assert.Equal(t, "limiter", manifests.service.Name)
	assert.Equal(t, "edge", manifests.service.Annotations["owner"])
	pod := manifests.deployment.Spec.Template
	assert.Equal(t, "edge", pod.Labels["team"])
	assert.Equal(t, "edge", pod.Labels["tier"])
	assert.NotContains(t, manifests.deployment.Spec.Selector.MatchLabels, "team", "a selector can't change")
	assert.Equal(t, map[string]string{"owner": "edge"}, pod.Annotations)
	assert.Equal(t, map[string]string{"disk": "fast"}, pod.Spec.NodeSelector)
	assert.Equal(t, "high", pod.Spec.PriorityClassName)
	assert.Equal(t, "limiter-edge", pod.Spec.ServiceAccountName)
	assert.Len(t, pod.Spec.Tolerations, 1)
	assert.NotNil(t, pod.Spec.Affinity)
	assert.Equal(t, "wait", pod.Spec.InitContainers[0].Name)
	require.Len(t, pod.Spec.Containers, 2)
	assert.Equal(t, "more-settings", pod.Spec.Containers[0].EnvFrom[0].SecretRef.Name)
	assert.Equal(t, "shipper", pod.Spec.Containers[1].Name)
	assert.Nil(t, renderManifests(t, shopFile+"\nserviceAccount: {create: false}").serviceAccount)
}

func TestImageHasRegistryTagAndDigest(t *testing.T) {
	const digest = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	version := loadChart(t).Metadata.AppVersion
	for values, want := range map[string]string{
		"{pullPolicy: Never}":                                  "rls:" + version,
		"{registry: r.example, repository: a/rls}":             "r.example/a/rls:" + version,
		"{pullPolicy: Never, tag: v2}":                         "rls:v2",
		"{registry: r.example, digest: " + digest + "}":        "r.example/rls@" + digest,
		"{pullPolicy: Never, tag: v2, digest: " + digest + "}": "rls:v2@" + digest,
	} {
		manifests := renderManifests(t, strings.TrimPrefix(shopFile, exampleImage)+"\nimage: "+values)
		assert.Equal(t, want, manifests.deployment.Spec.Template.Spec.Containers[0].Image, values)
		assert.Equal(t, want, manifests.test.Spec.Containers[0].Image, values)
	}
}

func TestGracePeriodOutlastsDrain(t *testing.T) {
	manifests := renderManifests(t, shopFile+"\ndrain: {delaySeconds: 30, timeoutSeconds: 60}")
	assert.Equal(t, "30s", manifests.env()["DRAIN_DELAY"])
	assert.Equal(t, "60s", manifests.env()["DRAIN_TIMEOUT"])
	assert.EqualValues(t, 100, *manifests.deployment.Spec.Template.Spec.TerminationGracePeriodSeconds)
}

func TestDisruptionBudgetNeverBlocksDrain(t *testing.T) {
	for _, values := range []string{"replicas: 1", "replicas: 2", "podDisruptionBudget: {maxUnavailable: 1%}", "autoscaling: {enabled: true, minReplicas: 1}"} {
		pdb := renderManifests(t, values+"\n"+shopFile).pdb
		require.NotNil(t, pdb, values)
		assert.Nil(t, pdb.Spec.MinAvailable, values)
		maxStopped, err := intstr.GetScaledValueFromIntOrPercent(pdb.Spec.MaxUnavailable, 1, true)
		require.NoError(t, err)
		assert.Positive(t, maxStopped, values)
		assert.EqualValues(t, "AlwaysAllow", *pdb.Spec.UnhealthyPodEvictionPolicy, values)
	}
	assert.Nil(t, renderManifests(t, shopFile+"\npodDisruptionBudget: {enabled: false}").pdb)
}

func TestPodsSpreadOverNodesAndZones(t *testing.T) {
	pod := renderManifests(t, shopFile).deployment.Spec.Template.Spec
	require.Len(t, pod.TopologySpreadConstraints, 2)
	for _, c := range pod.TopologySpreadConstraints {
		assert.EqualValues(t, "ScheduleAnyway", c.WhenUnsatisfiable)
		assert.Equal(t, []string{"pod-template-hash"}, c.MatchLabelKeys, "old pods don't count in a rollout")
	}
	pod = renderManifests(t, shopFile+`
podLabels: {a: b}
topologySpreadConstraints: [{maxSkew: 2, topologyKey: rack, whenUnsatisfiable: DoNotSchedule, labelSelector: {matchLabels: {a: b}}}]`).deployment.Spec.Template.Spec
	require.Len(t, pod.TopologySpreadConstraints, 1)
	assert.Equal(t, map[string]string{"a": "b"}, pod.TopologySpreadConstraints[0].LabelSelector.MatchLabels)
}

func TestNetworkPolicyAdmitsEnvoyPrometheusAndTest(t *testing.T) {
	manifests := renderManifests(t, shopFile+`
networkPolicy:
  enabled: true
  from: [{podSelector: {matchLabels: {app: envoy}}}]
  metricsFrom: [{podSelector: {matchLabels: {app: prometheus}}}]
  debugFrom: [{podSelector: {matchLabels: {app: friday-sale}}}]
`)
	require.NotNil(t, manifests.network)
	assert.Equal(t, []networkingv1.PolicyType{"Ingress"}, manifests.network.Spec.PolicyTypes)
	require.Len(t, manifests.network.Spec.Ingress, 3)
	callers := manifests.network.Spec.Ingress[0]
	assert.Equal(t, "grpc", callers.Ports[0].Port.StrVal)
	require.Len(t, callers.From, 2)
	assert.Subset(t, manifests.test.Labels, callers.From[1].PodSelector.MatchLabels, "helm test calls the service")
	assert.Equal(t, "metrics", manifests.network.Spec.Ingress[1].Ports[0].Port.StrVal)
	assert.Equal(t, "debug", manifests.network.Spec.Ingress[2].Ports[0].Port.StrVal)

	manifests = renderManifests(t, shopFile+`
networkPolicy:
  enabled: true
  from: [{podSelector: {}}]
  httpFrom: [{podSelector: {}}]
  egress: [{ports: [{port: 6379}]}]
`)
	assert.Equal(t, []networkingv1.PolicyType{"Ingress", "Egress"}, manifests.network.Spec.PolicyTypes)
	require.Len(t, manifests.network.Spec.Egress, 2)
	assert.EqualValues(t, 53, manifests.network.Spec.Egress[0].Ports[0].Port.IntVal, "names must resolve")
}

func TestServiceNameFollowsReleaseName(t *testing.T) {
	longName := "a-release-whose-name-is-as-long-as-helm-lets-a-name-b"
	for name, want := range map[string]string{"rls": "rls", "rls-eu": "rls-eu", "shop": "shop-rls", longName: longName + "-r"} {
		r, err := render(t, name, shopFile+"\nserviceMonitor: {enabled: true}")
		require.NoError(t, err)
		manifests := readManifests(t, fullManifest(r))
		assert.Equal(t, want, manifests.service.Name)
		assert.LessOrEqual(t, len(manifests.metrics.Name), 63)
	}
}

func TestChartAcceptsValuesOfExamples(t *testing.T) {
	for gateway, domain := range map[string]string{"istio": "mesh", "contour": "contour", "emissary": "emissary", "gloo": "custom"} {
		manifests := renderManifests(t, exampleImage+readFile(t, "examples/"+gateway+"/limits.yaml"))
		domains := compile(t, manifests.limits()["limits.yaml"]).Domains()
		require.Len(t, domains, 1)
		assert.Equal(t, domain, domains[0].Name)
	}
}

// TestPackagedChartRendersTheSame packages the chart as helm package does, without the files that
// .helmignore names.
func TestPackagedChartRendersTheSame(t *testing.T) {
	chart := loadChart(t)
	archive, err := chartutil.Save(chart, t.TempDir())
	require.NoError(t, err)
	packagedChart, err := loader.Load(archive)
	require.NoError(t, err)
	for _, f := range packagedChart.Files {
		assert.NotEqual(t, "ci", filepath.Dir(f.Name), f.Name)
	}
	assert.Equal(t, len(chart.Templates), len(packagedChart.Templates))
	info, err := os.Stat(archive)
	require.NoError(t, err)
	assert.Less(t, info.Size(), int64(100_000))
}

func TestNotesWarnAboutCountersOfEachPod(t *testing.T) {
	assert.Contains(t, renderManifests(t, shopFile).notes, "The 2 pods together admit 2 times each limit.")
	notes := renderManifests(t, shopFile+"\nredis: {url: \"redis:6379\"}\noverrides: true").notes
	assert.NotContains(t, notes, "WARNING")
	assert.Contains(t, notes, "Set admin.tokenSecret")
	assert.Contains(t, notes, "shop-rls.limits.svc:8081")
}

func TestHelmTestCallsTheService(t *testing.T) {
	manifests := renderManifests(t, exampleImage+`
limits: {a.yaml: "domain: shop"}
tls: {secret: grpc-tls}
tests: {serverName: rls.example}
`)
	require.Len(t, manifests.test.Spec.Containers, 2)
	assert.Equal(t, []string{"doctor"}, manifests.test.Spec.Containers[0].Args)
	assert.Equal(t, []string{
		"hit", "--addr=shop-rls.limits.svc:8081", "--domain=shop", "--hits=0", "--timeout=10s",
		"--tls", "--ca=/certs/grpc/ca.crt", "--server-name=rls.example", "helm-test=1",
	}, manifests.test.Spec.Containers[1].Args)
	manifests = renderManifests(t, shopFile+"\ntls: {secret: grpc-tls, clientAuth: true}")
	assert.Len(t, manifests.test.Spec.Containers, 1, "the test has no certificate of a client")
	assert.Nil(t, renderManifests(t, shopFile+"\ntests: {enabled: false}").test)
}

package deploy

import (
	"encoding/json"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestChartRejectsWrongValues(t *testing.T) {
	for values, want := range map[string]string{
		// The schema finds these.
		shopFile + "\nreplica: 3":                                    "additional properties 'replica' not allowed",
		shopFile + "\nredis: {ulr: redis:6379}":                      "at '/redis': additional properties 'ulr' not allowed",
		shopFile + "\nredis: {type: sentinels}":                      "at '/redis/type': value must be one of 'single', 'sentinel', 'cluster'",
		shopFile + "\nredis: {tls: {enable: true}}":                  "additional properties 'enable' not allowed",
		shopFile + "\nreplicas: two":                                 "at '/replicas': got string, want integer",
		"image: {digest: v1}":                                        "at '/image/digest': 'v1' does not match pattern",
		shopFile + "\nserviceMonitor: {interval: 15}":                "at '/serviceMonitor/interval': got number, want string",
		shopFile + "\npodDisruptionBudget: {minAvailable: 2}":        "additional properties 'minAvailable' not allowed",
		shopFile + "\npodDisruptionBudget: {maxUnavailable: 0}":      "at '/podDisruptionBudget/maxUnavailable'",
		shopFile + "\npodDisruptionBudget: {maxUnavailable: 0%}":     "at '/podDisruptionBudget/maxUnavailable'",
		shopFile + "\nextraEnv: [{nam: A}]":                          "missing property 'name'",
		shopFile + "\nextraEnv: [{name: A, valeu: b}]":               "additional properties 'valeu' not allowed",
		shopFile + "\ntls: {callers: [{dns: envoy.example}]}":        "missing property 'domains'",
		shopFile + "\nxds: {server: control-plane}":                  "at '/xds/server'",
		shopFile + "\nenv: {LOCAL_MAX_KEYS: [1]}":                    "at '/env/LOCAL_MAX_KEYS': got array, want boolean or number or string",
		"limits: {shop.yaml: {domain: shop}}":                        "at '/limits/shop.yaml': got object, want string",
		shopFile + "\ndrainDelay: 5s":                                "additional properties 'drainDelay' not allowed",
		shopFile + "\nautoscaling: {enabled: true, minReplicas: 0}":  "at '/autoscaling/minReplicas'",
		shopFile + "\nprobes: {liveness: {httpGet: {path: /other}}}": "additional properties 'httpGet' not allowed",

		// The templates find these.
		"":                                    "limits: got none, want limits files",
		"limits: {}":                          "limits: got none, want limits files",
		"env: {CONFIG_TYPE: FILE}":            "limits: got none, want limits files",
		shopFile + "\nlimitsConfigMap: shop":  "limitsConfigMap: got a name beside limits",
		shopFile + "\nxds: {server: \"a:1\"}": "limits: got limits files and an xDS server",
		"limitsConfigMap: a":                  "image.registry: got none, want the registry to which you pushed the image rls:0.1.0, or image.pullPolicy=Never",
		shopFile + "\nredis: {url: \"rediss://rls:secret@redis:6379\"}": "redis.url: got a password, which the release would store in plain text; want a secret: redis.urlSecret or redis.authSecret",
		shopFile + "\nenv: {REDIS_URL: \"redis://:secret@redis:6379\"}": "env.REDIS_URL: got a password",
		limitsFile(`domain: [`):                                                           "limits.shop.yaml: got no valid YAML, want a limits file: ",
		limitsFile(`{descriptors: []}`):                                                   "limits.shop.yaml: got no field domain, want one",
		limitsFile(`{domain: a, rules: []}`):                                              `limits.shop.yaml: got the unknown field "rules", want one of defaults, descriptors, domain`,
		limitsFile(`{domain: a, descriptors: [{key: b}, {value: c}]}`):                    "limits.shop.yaml.descriptors[1]: got no field key, want one",
		limitsFile(`{domain: a, descriptors: [{key: b, rate_limit: {uint: second}}]}`):    `limits.shop.yaml.descriptors[0].rate_limit: got the unknown field "uint", want one of algorithm, burst`,
		limitsFile(`{domain: a, defaults: {algorithm: slow}}`):                            "limits.shop.yaml.defaults.algorithm: got slow, want one of fixed_window, sliding_window",
		shopFile + "\nxds: {nodeID: a}":                                                   "xds: got settings without xds.server",
		shopFile + "\noverrides: true":                                                    "overrides: got true without Redis, want redis.url",
		shopFile + "\nredis: {type: cluster}":                                             "redis: got settings without redis.url",
		shopFile + "\nredis: {authSecret: a}":                                             "redis: got settings without redis.url",
		shopFile + "\nredis: {url: \"a:1\", urlSecret: a}":                                "redis.urlSecret: got a name beside redis.url",
		shopFile + "\nredis: {url: \"a:1\", sentinelAuthSecret: a}":                       "redis.sentinelAuthSecret: got a name with type single, want type sentinel",
		shopFile + "\nredis: {url: \"a:1\", tls: {secret: a}}":                            "redis.tls: got a certificate without redis.tls.enabled",
		shopFile + "\nredis: {url: \"a:1\", tls: {enabled: true, clientCert: true}}":      "redis.tls.clientCert: got true without redis.tls.secret",
		shopFile + "\ntls: {clientAuth: true}":                                            "tls.clientAuth: got true without tls.secret, want a secret",
		shopFile + "\ntls: {secret: a, clientSAN: b}":                                     "tls.clientSAN: got a name without tls.clientAuth",
		shopFile + "\ntls: {secret: a, callers: [{domains: [shop]}]}":                     "tls.callers: got callers without tls.clientAuth",
		shopFile + "\nautoscaling: {enabled: true, minReplicas: 5, maxReplicas: 3}":       "autoscaling.minReplicas: got 5, want at most maxReplicas (3)",
		shopFile + "\nautoscaling: {enabled: true}\nresources: {requests: {cpu: null}}":   "autoscaling: got no resources.requests.cpu",
		shopFile + "\nservice: {type: LoadBalancer}":                                      "service.headless: got true with type LoadBalancer",
		shopFile + "\nserviceMonitor: {enabled: true}\npodMonitor: {enabled: true}":       "podMonitor.enabled: got true with serviceMonitor.enabled",
		shopFile + "\nnetworkPolicy: {enabled: true}":                                     "networkPolicy.from: got no peers",
		shopFile + "\nprometheusRule: {enabled: true, changes: {RlsDown: {for: 1m}}}":     "prometheusRule.changes: got the unknown alert RlsDown",
		shopFile + "\nprometheusRule: {enabled: true, without: [RlsDown]}":                "prometheusRule.without: got the unknown alert RlsDown",
		shopFile + "\nenv: {REDSI_URL: \"redis:6379\"}":                                   "env.REDSI_URL: got an unknown setting",
		shopFile + "\nenv: {DRAIN_DELAY: 1s}":                                             "env.DRAIN_DELAY: got a variable that the chart sets, want drain.delaySeconds",
		shopFile + "\nextraEnv: [{name: USE_PROMETHEUS, value: \"false\"}]":               "env.USE_PROMETHEUS: got a variable that the chart sets",
		shopFile + "\nenv: {PORT: 80}":                                                    "env.PORT: got a variable that the chart sets",
		shopFile + "\nenv: {LOG_LEVEL: info}\nextraEnv: [{name: LOG_LEVEL, value: info}]": "extraEnv: got a variable twice",
	} {
		_, err := render(t, "shop", values)
		assert.ErrorContains(t, err, want, values)
	}
}

func TestChartAcceptsUnusualValues(t *testing.T) {
	for _, values := range []string{
		shopFile + "\noverrides: true\nenv: {REDIS_URL: \"redis.example:6379\"}",
		shopFile + "\noverrides: true\nextraEnv: [{name: REDIS_URL, valueFrom: {secretKeyRef: {name: a, key: b}}}]",
		exampleImage + "env: {CONFIG_TYPE: GRPC_XDS_SOTW, CONFIG_GRPC_XDS_SERVER_URL: \"control-plane:18000\"}",
		exampleImage + "env: {LIMITS_PATH: /baked}\nextraVolumes: [{name: baked, emptyDir: {}}]\nextraVolumeMounts: [{name: baked, mountPath: /baked}]",
		shopFile + "\nenv: {OTEL_EXPORTER_OTLP_ENDPOINT: \"http://collector:4318\", TRACING_ENABLED: true}",
		shopFile + "\nglobal: {registry: a}\nenabled: true",
		shopFile + "\nservice: {type: LoadBalancer, headless: false}",
		exampleImage + "limitsConfigMap: shop-limits",
		"image: {pullPolicy: Never}\nlimitsConfigMap: shop-limits",
		"image: {repository: registry.example/rls}\nlimitsConfigMap: shop-limits",
		shopFile + "\nredis: {url: \"rediss://rls@redis.example:6379\"}",
	} {
		renderManifests(t, values)
	}
}

// TestSchemaKnowsEachValue compares the schema with values.yaml: each default has a schema, and
// each schema a default.
func TestSchemaKnowsEachValue(t *testing.T) {
	var schema schemaNode
	require.NoError(t, json.Unmarshal([]byte(readFile(t, chartFolder+"/values.schema.json")), &schema))
	// A parent chart sets global and enabled.
	delete(schema.Properties, "global")
	delete(schema.Properties, "enabled")
	compareSchema(t, "", loadChart(t).Values, schema, schema.Definitions)
}

// schemaNode is the part of a JSON schema that the test compares.
type schemaNode struct {
	Ref                  string `json:"$ref"`
	Definitions          map[string]schemaNode
	Properties           map[string]schemaNode
	AdditionalProperties any
}

func compareSchema(t *testing.T, place string, values map[string]any, node schemaNode, definitions map[string]schemaNode) {
	t.Helper()
	if node.Ref != "" {
		node = definitions[strings.TrimPrefix(node.Ref, "#/definitions/")]
	}
	if node.Properties == nil {
		return // the schema lists no fields, so any field is allowed
	}
	assert.Equal(t, false, node.AdditionalProperties, "%s lets typos pass", place)
	if place == ".resources" || strings.HasPrefix(place, ".probes.") || place == ".affinity" || place == ".autoscaling.behavior" {
		return // not all fields of Kubernetes have a default
	}
	for name := range node.Properties {
		assert.Contains(t, values, name, "%s.%s has no default", place, name)
	}
	for name, value := range values {
		require.Contains(t, node.Properties, name, "%s.%s has no schema", place, name)
		if inner, ok := value.(map[string]any); ok {
			compareSchema(t, place+"."+name, inner, node.Properties[name], definitions)
		}
	}
}

func TestChartChecksNoTestFiles(t *testing.T) {
	_, err := render(t, "shop", exampleImage+"limits: {shop_test.yaml: \"tests: []\", shop.yaml: \"domain: shop\"}")
	assert.NoError(t, err)
}

// limitsFile returns values with a limits file.
func limitsFile(text string) string {
	return exampleImage + "limits: {shop.yaml: " + strconv.Quote(text) + "}"
}

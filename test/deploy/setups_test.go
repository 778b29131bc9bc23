package deploy

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/internal/testkit/certtest"
	"github.com/seed-81f232ab/rls/internal/testkit/polltest"
	"github.com/seed-81f232ab/rls/internal/testkit/redistest"
	"github.com/seed-81f232ab/rls/internal/testkit/xdstest"
)

// environment is what a set-up needs around its pods.
type environment struct {
	secrets       secrets
	localSettings map[string]string   // settings that name servers of this machine
	redis         []*redistest.Server // which must have a key after the calls
	flags         []string            // of rls hit
}

// setUps are the set-ups of the chart in its folder ci.
var setUps = []struct {
	name  string
	start func(t *testing.T) environment
}{
	{"embedded", func(*testing.T) environment { return environment{} }},
	{"redis", func(t *testing.T) environment {
		server := redistest.Start(t, "--user", "rls", "on", ">password", "~*", "&*", "+@all")
		return environment{
			secrets:       secrets{"rls-redis": {"auth": "rls:password"}, "rls-admin": {"token": "alice:token"}},
			localSettings: map[string]string{"REDIS_URL": server.Addr},
			redis:         []*redistest.Server{server},
		}
	}},
	{"sentinel", func(t *testing.T) environment {
		sentinels := redistest.StartSentinels(t)
		return environment{
			localSettings: map[string]string{"REDIS_URL": sentinels.URL()},
			redis:         []*redistest.Server{sentinels.Master},
		}
	}},
	{"cluster-tls", func(t *testing.T) environment {
		certs := redistest.NewCerts(t, "localhost")
		cluster := redistest.StartClusterTLS(t, 3, certs)
		return environment{
			secrets:       secrets{"rls-redis-tls": pemFiles(t, certs.CA, certs.ClientCert, certs.ClientKey)},
			localSettings: map[string]string{"REDIS_URL": strings.ReplaceAll(cluster.URL(), "127.0.0.1", "localhost")},
			redis:         cluster.Masters,
		}
	}},
	{"regions", func(t *testing.T) environment {
		server := redistest.Start(t)
		return environment{
			localSettings: map[string]string{"REDIS_URL": server.Addr, "REDIS_GLOBAL_URL": redistest.Start(t).Addr},
			redis:         []*redistest.Server{server},
		}
	}},
	{"xds-envoy-gateway", startGateway},
	{"mtls", startMTLS},
}

// startGateway starts a Redis, and an xDS server as Envoy Gateway has it.
func startGateway(t *testing.T) environment {
	t.Helper()
	server := redistest.Start(t)
	ca := xdstest.NewAuthority(t)
	gateway := xdstest.Serve(t, "127.0.0.1:0", ca.MutualTLS(ca.Issue("envoy-gateway", "localhost")))
	gateway.Set("1", xdstest.Config("shop", 60))
	pair := ca.Issue("envoy-ratelimit")
	return environment{
		secrets: secrets{"envoy-rate-limit": pemFiles(t, ca.File, pair.CertFile, pair.KeyFile)},
		localSettings: map[string]string{
			"REDIS_URL":                  server.Addr,
			"CONFIG_GRPC_XDS_SERVER_URL": strings.Replace(gateway.Addr, "127.0.0.1", "localhost", 1),
		},
		redis: []*redistest.Server{server},
		flags: []string{"--tls", "--ca", ca.File, "--server-name", "envoy-ratelimit"},
	}
}

func startMTLS(t *testing.T) environment {
	t.Helper()
	server := redistest.Start(t)
	ca := certtest.New(t)
	pair, envoy := ca.Issue("rls.example"), ca.IssueURI("spiffe://cluster.local/ns/shop/sa/envoy")
	return environment{
		secrets: secrets{
			"rls-tls":   pemFiles(t, ca.File, pair.CertFile, pair.KeyFile),
			"rls-redis": {"url": "redis://" + server.Addr},
			"rls-log":   {"hash": "secret"},
		},
		redis: []*redistest.Server{server},
		flags: []string{"--tls", "--ca", ca.File, "--server-name", "rls.example", "--cert", envoy.CertFile, "--key", envoy.KeyFile},
	}
}

// pemFiles returns the data of a secret for TLS.
func pemFiles(t *testing.T, ca, cert, key string) map[string]string {
	t.Helper()
	data := map[string]string{}
	for name, file := range map[string]string{"ca.crt": ca, "tls.crt": cert, "tls.key": key} {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		data[name] = string(text)
	}
	return data
}

// setUpValues returns the values of a set-up.
func setUpValues(t *testing.T, name string) string {
	t.Helper()
	return readFile(t, chartFolder+"/ci/"+name+"-values.yaml")
}

func TestEachSetUpOfChartIsTested(t *testing.T) {
	files, err := filepath.Glob(path(chartFolder + "/ci/*-values.yaml"))
	require.NoError(t, err)
	var names []string
	for _, setUp := range setUps {
		names = append(names, path(chartFolder+"/ci/"+setUp.name+"-values.yaml"))
	}
	assert.ElementsMatch(t, names, files)
}

// TestManifestsOfSetUpsEqualGoldenFiles compares the manifests of the set-ups with golden files. The alerts are
// left out, because another test compares them with their source.
func TestManifestsOfSetUpsEqualGoldenFiles(t *testing.T) {
	for _, setUp := range setUps {
		t.Run(setUp.name, func(t *testing.T) {
			renderManifests(t, setUpValues(t, setUp.name))
			r, err := render(t, "shop", setUpValues(t, setUp.name))
			require.NoError(t, err)
			var documents []string
			for _, document := range strings.Split(fullManifest(r), "---\n") {
				if strings.TrimSpace(document) != "" && !strings.Contains(document, "kind: PrometheusRule") {
					documents = append(documents, strings.TrimSpace(document)+"\n")
				}
			}
			assertGolden(t, "setups/"+setUp.name+".yaml", strings.Join(documents, "---\n"))
		})
	}
}

// TestSetUpsRun starts rls with the environment and the files of the rendered pods, beside real
// servers, and calls it.
func TestSetUpsRun(t *testing.T) {
	for _, setUp := range setUps {
		t.Run(setUp.name, func(t *testing.T) {
			t.Parallel()
			environment := setUp.start(t)
			manifests := renderManifests(t, setUpValues(t, setUp.name))
			rendered := newPod(t, manifests.deployment.Spec.Template.Spec, manifests.configMaps, environment.secrets)
			out, code := rendered.run("doctor", "--settings")
			require.Zero(t, code, "rls rejects the settings as they are rendered:\n%s", out)

			pod := rendered.withSettings(environment.localSettings)
			pod.assertHealthy()
			addr := pod.serve()
			hit := append([]string{"hit", "-a", addr, "--timeout", "10s", "-d", "shop"}, environment.flags...)
			if setUp.name == "embedded" {
				hit = append(hit, "remote_address=10.0.0.1")
			} else {
				hit = append(hit, "tenant=acme")
			}
			polltest.Until(t, 30*time.Second, func() bool { // until the limits of xDS are in force, and Redis has the key
				out, code = pod.run(hit...)
				return code == 0 && (len(environment.redis) == 0 || hasKey(t, environment.redis))
			}, "the call is not counted")
			assert.Contains(t, out, "remaining", "a limit counts the call")
		})
	}
}

// hasKey reports whether one of the servers has a key.
func hasKey(t *testing.T, servers []*redistest.Server) bool {
	for _, s := range servers {
		if s.Client(t).DBSize(t.Context()).Val() > 0 {
			return true
		}
	}
	return false
}

// TestCallersOfMTLSAskOnlyTheirDomains calls the set-up mtls for the domain of another caller.
func TestCallersOfMTLSAskOnlyTheirDomains(t *testing.T) {
	e := startMTLS(t)
	manifests := renderManifests(t, setUpValues(t, "mtls"))
	pod := newPod(t, manifests.deployment.Spec.Template.Spec, manifests.configMaps, e.secrets).withSettings(e.localSettings)
	out, code := pod.run(append([]string{"hit", "-a", pod.serve(), "-d", "partner", "partner=p1"}, e.flags...)...)
	assert.Equal(t, 1, code)
	assert.Contains(t, out, "PermissionDenied")
}

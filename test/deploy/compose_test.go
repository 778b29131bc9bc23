package deploy

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/compose-spec/compose-go/v2/cli"
	"github.com/compose-spec/compose-go/v2/types"
	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/seed-81f232ab/rls/test/envoyconf"
)

func loadComposeProject(t *testing.T) *types.Project { return loadComposeFile(t, "docker-compose.yml") }

func loadComposeFile(t *testing.T, file string) *types.Project {
	t.Helper()
	options, err := cli.NewProjectOptions([]string{path(file)}, cli.WithName("rls"))
	require.NoError(t, err)
	project, err := options.LoadProject(t.Context())
	require.NoError(t, err)
	return project
}

func TestComposeRunsTwoReplicasWithOneRedis(t *testing.T) {
	project := loadComposeProject(t)
	assert.Equal(t, []string{"echo", "envoy", "prometheus", "redis", "rls"}, project.ServiceNames())
	rls := project.Services["rls"]
	assert.Equal(t, 2, rls.GetScale())
	for name := range rls.Environment {
		assertSetting(t, name)
	}
	host, _, _ := strings.Cut(*rls.Environment["REDIS_URL"], ":")
	assert.Contains(t, project.Services, host)
	assert.FileExists(t, filepath.Join(rls.Build.Context, rls.Build.Dockerfile))
	for _, service := range project.Services {
		for _, volume := range service.Volumes {
			assert.FileExists(t, volume.Source)
		}
	}
}

func TestComposeOfRegionsGivesEachRegionItsOwnRedis(t *testing.T) {
	project := loadComposeFile(t, "examples/regions/docker-compose.yml")
	regions, servers := map[string]bool{}, map[string]bool{}
	for _, service := range project.Services {
		if service.Image != "rls" {
			continue
		}
		for name := range service.Environment {
			assertSetting(t, name)
		}
		for _, url := range []string{"REDIS_URL", "REDIS_GLOBAL_URL"} {
			host, _, _ := strings.Cut(*service.Environment[url], ":")
			assert.Contains(t, project.Services, host)
		}
		regions[*service.Environment["REGION"]], servers[*service.Environment["REDIS_URL"]] = true, true
		assert.Equal(t, "3", *service.Environment["REGIONS"])
		assert.Equal(t, "redis-global:6379", *service.Environment["REDIS_GLOBAL_URL"])
		assert.FileExists(t, service.Volumes[0].Source)
		assert.FileExists(t, filepath.Join(service.Build.Context, "Dockerfile"))
	}
	assert.Len(t, regions, 3)
	assert.Len(t, servers, 3)
}

func TestPrometheusScrapesEveryReplica(t *testing.T) {
	text, err := os.ReadFile(path("examples/prometheus.yml"))
	require.NoError(t, err)
	var config struct {
		ScrapeConfigs []struct {
			DNS []struct {
				Names []string `yaml:"names"`
				Port  int      `yaml:"port"`
			} `yaml:"dns_sd_configs"`
		} `yaml:"scrape_configs"`
	}
	require.NoError(t, yaml.Unmarshal(text, &config))
	require.Len(t, config.ScrapeConfigs, 1)
	dns := config.ScrapeConfigs[0].DNS[0]
	project := loadComposeProject(t)
	assert.Contains(t, project.Services, dns.Names[0])
	assert.Equal(t, 9090, dns.Port, "the default of PROMETHEUS_ADDR")
	env := project.Services["rls"].Environment
	require.NotNil(t, env["USE_PROMETHEUS"])
	assert.Equal(t, "true", *env["USE_PROMETHEUS"])
	assert.NotContains(t, env, "PROMETHEUS_ADDR")
}

// TestComposeEntrypointEditsExample runs the sed of the entrypoint and reads its result
// as Envoy would.
func TestComposeEntrypointEditsExample(t *testing.T) {
	entrypoint := loadComposeProject(t).Services["envoy"].Entrypoint
	require.Equal(t, []string{"/bin/sh", "-c"}, []string(entrypoint[:2]))
	dir := t.TempDir()
	file := filepath.Join(dir, "envoy.yaml")
	// The shell of the container sees $ where the file has $$.
	script := strings.NewReplacer(
		"/etc/envoy/example.yaml", path("examples/envoy.yaml"),
		"/tmp/envoy.yaml", file,
		"exec envoy", "echo envoy", "$$", "$",
	).Replace(entrypoint[2])
	out, err := exec.CommandContext(t.Context(), "/bin/sh", "-c", script).CombinedOutput()
	require.NoError(t, err, string(out))
	assert.Equal(t, "envoy -c "+file, trim(out))

	text, err := os.ReadFile(file)
	require.NoError(t, err)
	b := new(bootstrapv3.Bootstrap)
	require.NoError(t, envoyconf.Unmarshal(text, b))
	hosts := map[string]string{}
	for _, c := range b.StaticResources.Clusters {
		hosts[c.Name] = c.LoadAssignment.Endpoints[0].LbEndpoints[0].GetEndpoint().Address.GetSocketAddress().Address
	}
	assert.Equal(t, map[string]string{"rls": "rls", "echo": "echo"}, hosts)
	assert.Equal(t, "127.0.0.1", b.StaticResources.Listeners[1].Address.GetSocketAddress().Address)
}

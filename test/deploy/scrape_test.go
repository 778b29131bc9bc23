package deploy

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

func TestScrapeConfigurationFindsThePodsOfTheChart(t *testing.T) {
	var config struct {
		RuleFiles     []string `yaml:"rule_files"`
		ScrapeConfigs []struct {
			JobName  string `yaml:"job_name"`
			Relabels []struct {
				Labels []string `yaml:"source_labels"`
				Regex  string
				Action string
			} `yaml:"relabel_configs"`
		} `yaml:"scrape_configs"`
	}
	require.NoError(t, yaml.Unmarshal([]byte(readFile(t, "deploy/prometheus/scrape.yaml")), &config))
	assert.Equal(t, []string{"alerts.yaml"}, config.RuleFiles)
	require.NotEmpty(t, config.ScrapeConfigs)
	last := len(config.ScrapeConfigs) - 1
	assert.Equal(t, "envoy", config.ScrapeConfigs[last].JobName)
	for _, job := range config.ScrapeConfigs[:last] {
		assert.Contains(t, job.JobName, "rls", "RlsNotScraped finds jobs by this name")
	}

	keepRule := config.ScrapeConfigs[0].Relabels[0]
	assert.Equal(t, "keep", keepRule.Action)
	assert.Equal(t, []string{"__meta_kubernetes_pod_label_app_kubernetes_io_name", "__meta_kubernetes_pod_container_port_name"}, keepRule.Labels)
	name, port, _ := strings.Cut(keepRule.Regex, ";")
	pod := renderManifests(t, shopFile).deployment.Spec.Template
	assert.Equal(t, pod.Labels["app.kubernetes.io/name"], name)
	var ports []string
	for _, p := range pod.Spec.Containers[0].Ports {
		ports = append(ports, p.Name)
	}
	assert.Contains(t, ports, port)
}

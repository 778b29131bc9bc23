package deploy

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
)

// TestCronJobReachesDebugListenerOfChart compares the example with the pods of a release with the name rls.
func TestCronJobReachesDebugListenerOfChart(t *testing.T) {
	t.Parallel()
	manifest := objects(t, readFile(t, "examples/cronjob.yaml"))
	require.Len(t, manifest, 2)
	var service corev1.Service
	manifest[0].decode(t, &service)
	r, err := render(t, "rls", shopFile)
	require.NoError(t, err)
	chart := readManifests(t, fullManifest(r))
	pod := chart.deployment.Spec.Template
	for label, value := range service.Spec.Selector {
		assert.Equal(t, value, pod.Labels[label], label)
	}
	var ports []string
	for _, p := range pod.Spec.Containers[0].Ports {
		ports = append(ports, p.Name)
	}
	assert.Contains(t, ports, service.Spec.Ports[0].TargetPort.StrVal)

	var job batchv1.CronJob
	manifest[1].decode(t, &job)
	assert.Contains(t, job.Spec.JobTemplate.Spec.Template.Spec.Containers[0].Args, "https://"+service.Name+":6070")
}

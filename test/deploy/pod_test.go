package deploy

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
)

// secrets are the data of secrets by name.
type secrets map[string]map[string]string

// pod is a rendered pod of rls as a process on this machine. Its volumes are folders.
type pod struct {
	t   *testing.T
	env map[string]string
}

// newPod makes the volumes and the environment of a pod. A missing ConfigMap, secret or key fails
// the test, unless it is optional.
func newPod(t *testing.T, spec corev1.PodSpec, configMaps map[string]map[string]string, podSecrets secrets) pod {
	t.Helper()
	container := spec.Containers[0]
	result := pod{t: t, env: map[string]string{}}
	folders := map[string]string{} // by mount path
	for _, volume := range spec.Volumes {
		folder := t.TempDir()
		for _, mount := range container.VolumeMounts {
			if mount.Name == volume.Name {
				folders[mount.MountPath] = folder
			}
		}
		var data map[string]string
		switch {
		case volume.ConfigMap != nil:
			data = configMaps[volume.ConfigMap.Name]
			require.True(t, data != nil || isTrue(volume.ConfigMap.Optional), "no ConfigMap %s", volume.ConfigMap.Name)
		case volume.Secret != nil:
			data = podSecrets[volume.Secret.SecretName]
			require.NotNil(t, data, "no secret %s", volume.Secret.SecretName)
		}
		for name, text := range data {
			require.NoError(t, os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600))
		}
	}
	for _, variable := range container.Env {
		value := variable.Value
		if from := variable.ValueFrom; from != nil && from.SecretKeyRef != nil {
			require.Contains(t, podSecrets[from.SecretKeyRef.Name], from.SecretKeyRef.Key, "secret %s", from.SecretKeyRef.Name)
			value = podSecrets[from.SecretKeyRef.Name][from.SecretKeyRef.Key]
		} else if from != nil {
			value = "pod-0" // a field of the pod
		}
		for mountPath, folder := range folders {
			if rest, found := strings.CutPrefix(value, mountPath); found && (rest == "" || rest[0] == '/') {
				value = folder + rest
			}
		}
		result.env[variable.Name] = value
	}
	return result
}

func isTrue(b *bool) bool { return b != nil && *b }

// withSettings returns the pod with other values of settings: those that name servers of the cluster or
// ports of the pod, which this machine has elsewhere.
func (p pod) withSettings(localSettings map[string]string) pod {
	p.t.Helper()
	env := maps.Clone(p.env)
	for name := range localSettings {
		require.Contains(p.t, env, name, "only settings that the pod has can be elsewhere")
	}
	maps.Copy(env, localSettings)
	if _, servesMetrics := env["PROMETHEUS_ADDR"]; servesMetrics {
		env["PROMETHEUS_ADDR"] = "127.0.0.1:0"
	}
	for _, port := range []string{"GRPC_PORT", "PORT", "DEBUG_PORT"} {
		env[port] = "0"
	}
	return pod{p.t, env}
}

// run runs a command of rls in the pod and returns its output and exit code.
func (p pod) run(args ...string) (out string, code int) {
	p.t.Helper()
	cmd := exec.CommandContext(p.t.Context(), rls(p.t), args...)
	cmd.Env = p.environ()
	text, err := cmd.CombinedOutput()
	if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) {
		require.NoError(p.t, err)
	}
	return string(text), cmd.ProcessState.ExitCode()
}

func (p pod) environ() []string {
	var env []string
	for name, value := range p.env {
		env = append(env, name+"="+value)
	}
	return env
}

// assertHealthy checks that rls accepts the settings without a warning, and that rls doctor finds
// no problem.
func (p pod) assertHealthy() {
	p.t.Helper()
	out, _ := p.run("doctor", "--json")
	var diagnoses []struct{ Level, Area, Subject, Text string }
	require.NoError(p.t, json.Unmarshal([]byte(out), &diagnoses), out)
	require.NotEmpty(p.t, diagnoses)
	for _, d := range diagnoses {
		assert.NotEqual(p.t, "problem", d.Level, "%s: %s: %s", d.Area, d.Subject, d.Text)
		if d.Area == "settings" {
			assert.Equal(p.t, "ok", d.Level, "%s: %s", d.Subject, d.Text)
		}
	}
}

var listening = regexp.MustCompile(`msg=listening grpc=(\S+) `)

// serve starts rls in the pod and returns its gRPC address. rls stops at the end of the test.
func (p pod) serve() (addr string) {
	p.t.Helper()
	cmd := exec.Command(program(p.t))
	cmd.Env = p.environ()
	stderr, err := cmd.StderrPipe()
	require.NoError(p.t, err)
	require.NoError(p.t, cmd.Start())
	var log bytes.Buffer
	var mu sync.Mutex
	addresses, done := make(chan string, 1), make(chan struct{})
	go func() {
		defer close(done)
		lines := bufio.NewScanner(stderr)
		for lines.Scan() {
			mu.Lock()
			log.WriteString(lines.Text() + "\n")
			mu.Unlock()
			if m := listening.FindStringSubmatch(lines.Text()); m != nil {
				addresses <- m[1]
			}
		}
		_ = cmd.Wait()
	}()
	logText := func() string {
		mu.Lock()
		defer mu.Unlock()
		return log.String()
	}
	p.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-done
		if p.t.Failed() {
			p.t.Log(logText())
		}
	})
	select {
	case addr = <-addresses:
	case <-done:
		require.FailNow(p.t, "rls ended", logText())
	case <-time.After(30 * time.Second):
		require.FailNow(p.t, "rls does not listen", logText())
	}
	return addr
}

//go:build e2e

package e2e_test

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ratelimit/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/seed-81f232ab/rls/internal/testkit/polltest"
	"github.com/seed-81f232ab/rls/internal/testkit/redistest"
)

const (
	rollingReplicas = 3
	rollingRate     = 500 // calls per second

	// propagation is the time until Envoy learns that a replica stops. In Kubernetes, the endpoint of
	// a pod goes through the API server and a control plane, which usually takes one second.
	propagation = 3 * time.Second
)

// TestRollingRestartFailsNoCall restarts three replicas one after the other under load, with
// default settings. failure_mode_deny turns each failed call to rls into a 500, and Envoy counts
// the failed call in either mode.
//
// ROLLING_TIMEOUT=20ms sets the timeout of the example. By default the timeout is longer, because a
// busy machine can stop all processes for 20 ms.
func TestRollingRestartFailsNoCall(t *testing.T) {
	for name, newDeployment := range map[string]func(*testing.T, *deployment){
		"endpoints of a control plane": useEndpoints,
		"health checks":                useHealthChecks,
	} {
		t.Run(name, func(t *testing.T) {
			timeout := rollingTimeout(t)
			if timeout == defaultRollingTimeout {
				t.Parallel() // the replicas mostly wait
			}
			rollout := &deployment{t: t, redis: redistest.Start(t).Addr, limits: exampleLimits(t)}
			for range rollingReplicas {
				rollout.replicas = append(rollout.replicas, rollout.startReplica())
			}
			config := exampleConfig(t, "envoy.yaml", rollout.replicas...)
			config.editFilter(func(f *ratelimitv3.RateLimit) {
				f.FailureModeDeny, f.Timeout = true, durationpb.New(timeout)
			})
			rollout.config = config
			newDeployment(t, rollout)
			envoy := config.start()
			rollout.envoy = envoy
			if timeout < defaultRollingTimeout {
				envoy.checkCallsWithoutRestart(t)
			}

			rollout.failures = envoy.watchFailures(t)
			load := envoy.startLoadAtRate(t, rollingRate, call{"/search?key=k1"})
			time.Sleep(time.Second) // of load before the first restart
			for i := range rollout.replicas {
				rollout.replace(i)
			}
			rollout.awaitStoppedReplicas()
			time.Sleep(time.Second)
			answers := load.stop(t)
			failedCount := rollout.failures.stop()
			t.Log("stats of Envoy:\n" + strings.Join(callStats.FindAllString(envoy.adminPage("/stats?usedonly"), -1), "\n"))
			assert.Positive(t, answers[http.StatusOK])
			assert.Positive(t, answers[http.StatusTooManyRequests])
			assert.Len(t, answers, 2, "only 200 and 429")
			assert.Zero(t, failedCount, "calls to rls that failed, by Envoy")
		})
	}
}

// checkCallsWithoutRestart sends calls without a restart. If some of them fail, the machine is too busy for
// the timeout, and the test says nothing about restarts.
func (e *envoy) checkCallsWithoutRestart(t *testing.T) {
	t.Helper()
	t.Log("calls without a restart:")
	failures := e.watchFailures(t)
	load := e.startLoadAtRate(t, rollingRate, call{"/search?key=k2"})
	time.Sleep(10 * time.Second)
	load.stop(t)
	failures.stop()
	resp, err := http.Post(e.admin+"/reset_counters", "", nil)
	require.NoError(t, err)
	resp.Body.Close()
	t.Log("calls with restarts:")
}

// callStats matches Envoy's counters of calls to rls.
var callStats = regexp.MustCompile(`(?m)^cluster\.(echo\.ratelimit\..*|rls\.upstream_(rq_timeout|rq_retry|rq_pending_failure_eject|rq_rx_reset|rq_tx_reset|rq_cancelled|cx_connect_fail|cx_connect_timeout|cx_destroy_with_active_rq|cx_total|cx_close_notify|cx_connect_ms): .*|rls\.membership.*)$`)

const defaultRollingTimeout = 5 * time.Second

// rollingTimeout returns the timeout of the filter.
func rollingTimeout(t *testing.T) time.Duration {
	t.Helper()
	text := os.Getenv("ROLLING_TIMEOUT")
	if text == "" {
		return defaultRollingTimeout
	}
	timeout, err := time.ParseDuration(text)
	require.NoError(t, err)
	return timeout
}

// deployment is a set of replicas behind an Envoy.
type deployment struct {
	t                *testing.T
	redis, limits    string
	config           config
	envoy            *envoy
	failures         *failureWatch
	replicas         []*rls
	stoppingReplicas []*rls
	replace          func(i int) // replaces a replica as the deployment does
}

// terminate stops a replica as a deployment does. It does not wait for the end.
func (d *deployment) terminate(r *rls) {
	d.t.Helper()
	d.failures.log("replica %s stops", r.grpc)
	require.NoError(d.t, r.terminate())
	d.stoppingReplicas = append(d.stoppingReplicas, r)
}

// startReplica starts a replica with default settings, and returns once it is ready.
func (d *deployment) startReplica(env ...string) *rls {
	d.t.Helper()
	service := startRLS(d.t, d.limits, append([]string{"REDIS_URL=" + d.redis, "DRAIN_DELAY="}, env...)...)
	service.await("readiness", func() bool {
		resp, err := http.Get("http://" + service.http + "/healthcheck")
		if err == nil {
			resp.Body.Close()
		}
		return err == nil && resp.StatusCode == http.StatusOK
	})
	return service
}

// awaitStoppedReplicas waits until all stopped replicas have ended without cut calls.
func (d *deployment) awaitStoppedReplicas() {
	d.t.Helper()
	for _, r := range d.stoppingReplicas {
		select {
		case <-r.done:
		case <-time.After(maxWait):
			require.FailNow(d.t, "replica doesn't end", r.text())
		}
		assert.Regexp(d.t, `msg="drain finished" took=\S+ calls_cut=0\n`, r.text())
		assert.NotContains(d.t, r.text(), "calls still arrive")
	}
}

// useEndpoints gives Envoy the endpoints of ready replicas, as a control plane does. A replica is
// replaced by a new one as in a Deployment: the new one becomes ready, then the old one stops, and
// Envoy learns of it after propagation. The next replica does not wait for the end of this one.
func useEndpoints(t *testing.T, rollout *deployment) {
	dir := t.TempDir()
	file := filepath.Join(dir, "endpoints.json")
	version := 0
	publish := func() {
		var addrs []string
		for _, r := range rollout.replicas {
			addrs = append(addrs, r.grpc)
		}
		resource, err := anypb.New(loadAssignment("rls", addrs))
		require.NoError(t, err)
		version++
		text, err := protojson.Marshal(&discoveryv3.DiscoveryResponse{VersionInfo: fmt.Sprint(version), Resources: []*anypb.Any{resource}})
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(file+".new", text, 0o600))
		require.NoError(t, os.Rename(file+".new", file)) // Envoy notices files that are moved
	}
	publish()
	rollout.config.Node = &corev3.Node{Id: "envoy", Cluster: "shop"}
	cluster := rollout.config.cluster("rls")
	cluster.ClusterDiscoveryType = &clusterv3.Cluster_Type{Type: clusterv3.Cluster_EDS}
	cluster.LoadAssignment, cluster.HealthChecks, cluster.OutlierDetection = nil, nil, nil
	cluster.EdsClusterConfig = &clusterv3.Cluster_EdsClusterConfig{EdsConfig: &corev3.ConfigSource{
		ResourceApiVersion:    corev3.ApiVersion_V3,
		ConfigSourceSpecifier: &corev3.ConfigSource_PathConfigSource{PathConfigSource: &corev3.PathConfigSource{Path: file}},
	}}
	rollout.replace = func(int) {
		newReplica := rollout.startReplica()
		rollout.replicas = append(rollout.replicas, newReplica)
		publish()
		rollout.failures.log("replica %s added", newReplica.grpc)
		rollout.terminate(rollout.replicas[0])
		rollout.replicas = slices.Delete(rollout.replicas, 0, 1)
		time.Sleep(propagation)
		publish()
		rollout.failures.log("endpoint removed")
	}
}

// useHealthChecks lets Envoy check the health of the replicas, as the example does. A replica is
// replaced by one with the same address after its end, as in a StatefulSet.
func useHealthChecks(t *testing.T, rollout *deployment) {
	rollout.replace = func(i int) {
		oldReplica := rollout.replicas[i]
		rollout.terminate(oldReplica)
		rollout.awaitStoppedReplicas()
		rollout.replicas[i] = rollout.startReplica("GRPC_PORT=" + portOf(oldReplica.grpc))
		polltest.Until(t, maxWait, func() bool {
			return strings.Contains(rollout.envoy.adminPage("/clusters"), "rls::"+oldReplica.grpc+"::health_flags::healthy\n")
		}, "healthy in Envoy")
		rollout.failures.log("replica %s is back", oldReplica.grpc)
	}
}

//go:build soak

package faults

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/internal/testkit/redistest"
)

var soakTime = flag.Duration("soak", 10*time.Minute, "duration of the soak")

const soakReplicas = 3

// soakLimits are the two versions of the limits file, and a third with a mistake.
var soakLimits = func() (versions [3]string) {
	const text = `domain: soak
descriptors:
  - {key: counted, rate_limit: {unit: minute, requests_per_unit: %d}}
  - {key: scripted, rate_limit: {unit: minute, requests_per_unit: 40, algorithm: sliding_window}}
  - {key: leased, rate_limit: {unit: minute, requests_per_unit: 100000, lease: true, lease_waste: 0.1}}
  - {key: %s, rate_limit: {unit: hour, requests_per_unit: 5}}
`
	versions[0], versions[1] = fmt.Sprintf(text, 40, "old"), fmt.Sprintf(text, 60, "new")
	versions[2] = versions[1] + "  - {key: new, rate_limit: {unit: decade}}\n"
	return versions
}()

// soakFaults break Redis, or the way to it, for a time.
func soakFaults(t *testing.T, server *redistest.Server, p *proxy) map[string]func(time.Duration) {
	client := server.Client(t)
	disturb := func(kind string, share float64, attributes string) func(time.Duration) {
		return func(d time.Duration) {
			p.addToxic(kind, share, attributes)
			time.Sleep(d)
			p.removeToxics()
		}
	}
	return map[string]func(time.Duration){
		"killed":             func(d time.Duration) { server.Kill(); time.Sleep(d); server.Restart(t) },
		"frozen":             func(d time.Duration) { server.Pause(); time.Sleep(d); server.Resume() },
		"late":               disturb("latency", 1, `"latency": 60`),
		"connections reset":  disturb("reset_peer", 0.5, `"timeout": 0`),
		"packets vanish":     disturb("timeout", 1, `"timeout": 0`),
		"scripts flushed":    func(time.Duration) { client.ScriptFlush(context.Background()) },
		"connections killed": func(time.Duration) { client.ClientKillByFilter(context.Background(), "TYPE", "normal") },
	}
}

// Replicas under steady load, random faults and changes of the limits file take no more
// goroutines, files and memory at the end than after the warm-up. They answer each call.
func TestSoak(t *testing.T) {
	program := filepath.Join(t.TempDir(), "rls")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", program, "./cmd/rls")
	build.Dir = "../.."
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)

	server := redistest.Start(t)
	proxy := startProxy(t, "127.0.0.1:0", server.Addr)
	limits := filepath.Join(t.TempDir(), "limits.yaml")
	writeLimits(t, limits, 0)
	var replicas []*soakReplica
	for range soakReplicas {
		replicas = append(replicas, startSoakReplica(t, program, limits, proxy.Listen))
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	for _, replica := range replicas {
		replica.begin(ctx)
	}

	faults := soakFaults(t, server, proxy)
	names := slices.Collect(maps.Keys(faults))
	counts, reloads := map[string]int{}, 0
	for end := time.Now().Add(*soakTime); time.Now().Before(end); {
		name := names[rand.IntN(len(names))]
		faults[name](time.Duration(100+rand.IntN(1500)) * time.Millisecond)
		counts[name]++
		if rand.IntN(3) == 0 {
			reloads++
			writeLimits(t, limits, rand.IntN(len(soakLimits)))
		}
		time.Sleep(time.Duration(1000+rand.IntN(3000)) * time.Millisecond)
	}
	writeLimits(t, limits, 0)
	stop()
	awaitAllExpire(t, server)
	t.Logf("faults: %v; writes of the limits file: %d", counts, reloads)
	fmt.Println("| replica | calls | failed | decided by the fallback | with a lease | goroutines | open files | heap after GC, MiB | resident, MiB |\n|---|---|---|---|---|---|---|---|---|")
	for i, replica := range replicas {
		replica.check(t, i+1)
	}
}

// writeLimits replaces the limits file by a version.
func writeLimits(t *testing.T, path string, version int) {
	nextFile := path + ".next"
	require.NoError(t, errors.Join(os.WriteFile(nextFile, []byte(soakLimits[version]), 0o600), os.Rename(nextFile, path)))
}

// check ends the replica, prints its row, and compares its first samples with its last.
func (r *soakReplica) check(t *testing.T, number int) {
	r.goroutines.Wait()
	log := r.end(t)
	assert.NotContains(t, log, "panic")
	assert.Contains(t, log, "limits in force", "the file is read again")
	assert.Zero(t, r.failed.Load(), "failed calls; the first error: %v", r.failure.Load())
	assert.Greater(t, r.events.Load(), int64(soakTime.Seconds()/2), "the live page has an event for each second")

	require.GreaterOrEqual(t, len(r.samples), 20, "the soak is too short, or the replica did not answer")
	row, lastSample := fmt.Sprintf("| %d | %d | %d |", number, r.calls.Load(), r.failed.Load()), r.samples[len(r.samples)-1]
	for _, source := range []string{"fallback", "lease"} {
		assert.Positive(t, lastSample.decisions[source], source)
		row += fmt.Sprintf(" %.0f |", lastSample.decisions[source])
	}
	samplesAfterWarmUp := r.samples[len(r.samples)/5:]
	quarter := len(samplesAfterWarmUp) / 4
	for _, g := range soakGauges {
		firstMedian, lastMedian := median(samplesAfterWarmUp[:quarter], g.metric), median(samplesAfterWarmUp[len(samplesAfterWarmUp)-quarter:], g.metric)
		row += fmt.Sprintf(" %.1f → %.1f |", firstMedian/g.unit, lastMedian/g.unit)
		assert.LessOrEqual(t, lastMedian, firstMedian*g.growth+g.margin*g.unit, "replica %d: %s grows from %v", number, g.metric, firstMedian)
	}
	fmt.Println(row)
}

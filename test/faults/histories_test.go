package faults

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/internal/testkit/redistest"
)

const (
	historyKeys     = 5
	historyMax      = 300 // limit of a key
	historyReplicas = 3
	historyCallers  = 4 // of each replica
	historyPause    = 20 * time.Millisecond
)

// nemesis breaks the servers of a history.
type nemesis struct {
	settings []string // of the replicas, which find Redis by them
	proxy    string   // address of Redis for the first replica, if it differs
	steps    []nemesisStep
	masters  []*redistest.Server // at the end of the history
}

// nemesisStep is a fault that takes place once in a history.
type nemesisStep struct {
	name string
	loss lossKind
	run  func(h *historyRun)
}

// historyRun is a run of replicas whose calls are recorded.
type historyRun struct {
	t               *testing.T
	settings        []string
	proxy           string
	start           time.Time
	replicas        [historyReplicas]atomic.Pointer[process]
	startedReplicas int // replicas that ever ran

	mu      sync.Mutex // guards the field below
	history []porcupine.Operation
}

func TestHistoriesAreLinearizable(t *testing.T) {
	for name, start := range map[string]func(*testing.T) nemesis{
		"single Redis, killed and frozen": singleNemesis,
		"partition of one replica":        partitionNemesis,
		"slow disk":                       slowDiskNemesis,
		"Sentinel":                        sentinelNemesis,
		"Cluster":                         clusterNemesis,
	} {
		t.Run(name, func(t *testing.T) {
			n := start(t)
			limits := filepath.Join(t.TempDir(), "limits.yaml")
			text := fmt.Sprintf("domain: d\ndescriptors: [{key: k, rate_limit: {unit: year, requests_per_unit: %d}}]\n", historyMax)
			require.NoError(t, os.WriteFile(limits, []byte(text), 0o600))
			h := &historyRun{t: t, start: time.Now(), proxy: n.proxy, settings: append(n.settings,
				"LIMITS_PATH="+limits, "RESPONSE_RULE_METADATA=true", fmt.Sprintf("REDIS_FALLBACK_RATIO=%v", ratio))}
			for i := range h.replicas {
				h.startReplica(i)
			}
			h.run(n.steps)
			h.check()
			awaitAllExpire(t, n.masters...)
		})
	}
}

func (h *historyRun) startReplica(i int) {
	settings := h.settings
	if i == 0 && h.proxy != "" {
		settings = append(slices.Clone(settings), "REDIS_URL="+h.proxy)
	}
	h.replicas[i].Store(startProcess(h.t, settings...))
	h.startedReplicas++
}

// replaceReplica kills a replica and starts another one in its place.
func (h *historyRun) replaceReplica(i int) {
	h.replicas[i].Load().kill()
	h.startReplica(i)
}

// run sends calls while the steps take place, one after the other.
func (h *historyRun) run(steps []nemesisStep) {
	stop := make(chan struct{})
	var goroutines sync.WaitGroup
	for i := range historyReplicas * historyCallers {
		goroutines.Go(func() {
			for {
				select {
				case <-stop:
					return
				case <-time.After(rand.N(2 * historyPause)):
				}
				h.call(i)
			}
		})
	}
	pause := func() { time.Sleep(shortUnlessFull(3*time.Second) / 2) }
	for _, step := range steps {
		pause()
		begin := h.now()
		step.run(h)
		if step.loss != noLoss {
			h.add(porcupine.Operation{
				ClientId: historyReplicas * historyCallers, Input: historyInput{loss: step.loss}, Output: historyOutput{}, Call: begin, Return: h.now(),
			})
		}
	}
	pause()
	close(stop)
	goroutines.Wait()
}

func (h *historyRun) now() int64 { return int64(time.Since(h.start)) }

func (h *historyRun) add(op porcupine.Operation) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.history = append(h.history, op)
}

// call sends a hit on a random key, and records the answer.
func (h *historyRun) call(caller int) {
	key := fmt.Sprint("key", rand.IntN(historyKeys))
	client := h.replicas[caller%historyReplicas].Load().client
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	op := porcupine.Operation{ClientId: caller, Input: historyInput{key: key}, Call: h.now()}
	response, err := client.ShouldRateLimit(ctx, &rlsv3.RateLimitRequest{Domain: "d", Descriptors: []*ratelimitv3.RateLimitDescriptor{
		{Entries: []*ratelimitv3.RateLimitDescriptor_Entry{{Key: "k", Value: key}}},
	}})
	op.Return = h.now()
	if err != nil {
		op.Output = historyOutput{failed: true}
	} else {
		fields := response.DynamicMetadata.Fields["decision"].GetStructValue().Fields
		op.Output = historyOutput{
			source: fields["source"].GetStringValue(), allowed: !fields["over_limit"].GetBoolValue(), remaining: int64(fields["remaining"].GetNumberValue()),
		}
	}
	h.add(op)
}

// checkTime bounds the search for an order of the calls.
const checkTime = time.Minute

// check finds an order of the calls that the model allows.
func (h *historyRun) check() {
	share := int64(h.startedReplicas) * int64(historyMax*ratio)
	result, info := porcupine.CheckOperationsVerbose(historyModel(historyMax, share), h.history, checkTime)
	counts := map[string]int{}
	for _, op := range h.history {
		if o := op.Output.(historyOutput); op.Input.(historyInput).loss == noLoss {
			counts[o.source]++
		}
	}
	h.t.Logf("%d calls by source: %v", len(h.history), counts)
	assert.NotZero(h.t, counts["redis"])
	if !assert.Equal(h.t, porcupine.Ok, result, "no order of the calls explains their answers") {
		file, err := os.CreateTemp("", "history-*.html")
		require.NoError(h.t, err)
		defer file.Close()
		require.NoError(h.t, porcupine.Visualize(historyModel(historyMax, share), info, file))
		h.t.Logf("drawing of the history: %s", file.Name())
	}
}

// killReplica is a step of every nemesis.
var killReplica = nemesisStep{"replica killed", noLoss, func(h *historyRun) { h.replaceReplica(1) }}

// freezeTime is the length of a pause of Redis, or of the network.
const freezeTime = 400 * time.Millisecond

func singleNemesis(t *testing.T) nemesis {
	server := redistest.Start(t)
	return nemesis{settings: []string{"REDIS_URL=" + server.Addr}, masters: []*redistest.Server{server}, steps: []nemesisStep{
		{"Redis frozen", noLoss, func(*historyRun) { server.Pause(); time.Sleep(freezeTime); server.Resume() }},
		killReplica,
		{"Redis killed, started empty", allLost, func(h *historyRun) { server.Kill(); time.Sleep(freezeTime); server.Restart(h.t) }},
	}}
}

// partitionNemesis breaks the network of the first replica in several ways.
func partitionNemesis(t *testing.T) nemesis {
	server := redistest.Start(t)
	proxy := startProxy(t, "127.0.0.1:0", server.Addr)
	return nemesis{settings: []string{"REDIS_URL=" + server.Addr}, proxy: proxy.Listen, masters: []*redistest.Server{server}, steps: []nemesisStep{
		{"packets vanish", noLoss, func(*historyRun) {
			proxy.addToxic("timeout", 1, `"timeout": 0`)
			time.Sleep(freezeTime)
			proxy.removeToxics()
		}},
		{"late answers", noLoss, func(*historyRun) {
			proxy.addToxic("latency", 1, `"latency": 40`)
			time.Sleep(freezeTime)
			proxy.removeToxics()
		}},
		{"connections reset", noLoss, func(*historyRun) {
			proxy.addToxic("reset_peer", 1, `"timeout": 0`)
			time.Sleep(freezeTime)
			proxy.removeToxics()
		}},
		killReplica,
	}}
}

// slowDiskNemesis stalls Redis where a slow disk stalls it. The disk itself can't be slowed
// without rights on the machine, so DEBUG SLEEP takes the place of a slow fsync after each
// write. The server is killed and reads its data again.
func slowDiskNemesis(t *testing.T) nemesis {
	server := redistest.Start(t, "--appendonly", "yes", "--appendfsync", "always", "--dir", t.TempDir())
	client := server.Client(t)
	return nemesis{settings: []string{"REDIS_URL=" + server.Addr}, masters: []*redistest.Server{server}, steps: []nemesisStep{
		{"slow disk", noLoss, func(*historyRun) {
			for range 8 {
				_ = client.Do(context.Background(), "DEBUG", "SLEEP", "0.06").Err()
				time.Sleep(30 * time.Millisecond)
			}
		}},
		{"Redis killed, started with its data", noLoss, func(h *historyRun) { server.Kill(); time.Sleep(freezeTime); server.Restart(h.t) }},
		killReplica,
	}}
}

func sentinelNemesis(t *testing.T) nemesis {
	sentinels := redistest.StartSentinels(t)
	replica := sentinels.Replica.Client(t)
	return nemesis{settings: []string{"REDIS_TYPE=sentinel", "REDIS_URL=" + sentinels.URL()}, masters: []*redistest.Server{sentinels.Replica}, steps: []nemesisStep{
		{"master frozen", noLoss, func(*historyRun) { sentinels.Master.Pause(); time.Sleep(freezeTime / 2); sentinels.Master.Resume() }},
		{"master killed", someLost, func(h *historyRun) {
			sentinels.Master.Kill()
			await(h.t, "a new master", func() bool { return isMaster(replica) })
		}},
		killReplica,
	}}
}

func clusterNemesis(t *testing.T) nemesis {
	cluster := redistest.StartCluster(t, 3, true)
	replica := cluster.Replicas[0].Client(t)
	return nemesis{settings: []string{"REDIS_TYPE=cluster", "REDIS_URL=" + cluster.URL()}, masters: []*redistest.Server{cluster.Replicas[0], cluster.Masters[1], cluster.Masters[2]}, steps: []nemesisStep{
		{"a master frozen", noLoss, func(*historyRun) { cluster.Masters[1].Pause(); time.Sleep(freezeTime / 2); cluster.Masters[1].Resume() }},
		killReplica,
		{"a master killed", someLost, func(h *historyRun) {
			cluster.Masters[0].Kill()
			await(h.t, "a new master", func() bool { return isMaster(replica) })
		}},
	}}
}

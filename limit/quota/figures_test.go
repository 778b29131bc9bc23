package quota

import (
	"flag"
	"fmt"
	"slices"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
)

var fleetSize = flag.Int("fleet", 100, "Envoys of the fleet whose figures docs/lab/quota.md has")

// TestFleetUsesLimit prints the figures of docs/lab/quota.md. It follows one bucket, because buckets are independent.
func TestFleetUsesLimit(t *testing.T) {
	n := *fleetSize
	l := perMinute(int64(n)*6000, int64(n)*100)
	f := newFleet(l, n, 3, 1)
	const step = 10 * millisecond
	for _, e := range f.envoys {
		e.demand = 150 // each may use 100 a second
	}
	start := f.now
	for i, e := range f.envoys {
		for f.now < start+int64(i)*5*second/int64(n) {
			f.run(step, step)
		}
		f.connect(e, i%3)
	}
	t.Logf("cold start of %d Envoys within 5 s: 95 %% of the limit in use %s after the last start", n, f.timeUntilUse(0.95, step))
	f.run(30*second, step)

	admittedBefore := make([]float64, n)
	for i, e := range f.envoys {
		admittedBefore[i] = e.admitted
	}
	messagesBefore := f.messages
	use := f.measureUse(60*second, step)
	for i, e := range f.envoys {
		admittedBefore[i] = e.admitted - admittedBefore[i]
	}
	t.Logf("saturated: use %.2f %%, Jain's index %.4f, %.2f messages/s per Envoy (reports and grants)",
		100*use, jainIndex(admittedBefore), float64(f.messages-messagesBefore)/60/float64(n))
	assert.GreaterOrEqual(t, use, 0.97)
	assert.GreaterOrEqual(t, jainIndex(admittedBefore), 0.98)

	for i, e := range f.envoys {
		e.demand = []float64{190, 19}[i%2]
	}
	f.run(60*second, step)
	for i, e := range f.envoys {
		e.demand = []float64{19, 190}[i%2]
	}
	t.Logf("swap of the demand (10 : 1): 95 %% of the limit in use %s later", f.timeUntilUse(0.95, step))

	for _, e := range f.envoys {
		e.demand = 150
	}
	f.run(60*second, step)
	for _, id := range sortedStreams(f.replicas[0].openStreams) {
		e := f.replicas[0].openStreams[id]
		f.disconnect(e)
		f.connect(e, 1)
	}
	f.replicas[0].knownHolders = nil
	use = f.measureUse(30*second, step)
	t.Logf("a third of the Envoys changes its replica: use %.1f %% in the next 30 s", 100*use)
	assert.Greater(t, use, 0.9)

	t.Logf("largest sum of the enforced rates: %.4f of the limit; least tokens of a single bucket: %.0f", f.largestSum, f.lowestLevel)
	assert.LessOrEqual(t, f.largestSum, 1.0)
	assert.GreaterOrEqual(t, f.lowestLevel, -1e-3)

	storedBytes, memoryBytes := len(f.store)/n, int(unsafe.Sizeof(Holder{}))
	t.Logf("bytes per holder: %d in the store, %d in the memory of its replica", storedBytes, memoryBytes)
	assert.LessOrEqual(t, storedBytes, 60)
	assert.LessOrEqual(t, memoryBytes+storedBytes, 300)
	startTime := time.Now()
	for range 10 {
		s, _ := Decode(f.store)
		s.Apply(&l, f.now, Update{OwnHolders: f.replicas[1].knownHolders, Reports: []Report{{Holder: f.replicas[1].knownHolders[0].ID}}})
		s.Append(nil)
	}
	t.Logf("an update of %d holders takes %s, with decoding and encoding", n, (time.Since(startTime) / 10).Round(10*time.Microsecond))
}

func sortedStreams(openStreams map[HolderID]*envoy) []HolderID {
	ids := make([]HolderID, 0, len(openStreams))
	for id := range openStreams {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

// timeUntilUse returns the time until the use of a second reaches a part of the limit, and that time in intervals of reports.
func (f *fleet) timeUntilUse(part float64, step int64) string {
	start := f.now
	for f.now < start+minute && f.measureUse(second, step) < part {
	}
	seconds := (f.now - start) / second
	return fmt.Sprintf("%d s (%.1f reports)", seconds, float64(seconds)/5)
}

package spec

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

// settings are the settings of a stack.
type settings struct {
	redis     string // local, single or cluster
	perSecond bool   // limits per second have a Redis of their own
	replicas  int

	denyCache, allOrNone, leases bool

	// These settings say what the traces have.
	acquire        bool // calls that wait
	outage         bool // Redis fails for some calls
	shadow         bool
	quota          bool
	reload         bool // the limits change
	hasCallsAtOnce bool // several calls at once

	// Each trace draws these settings of the service.
	shadowMode, quotaMode bool
}

// options are the values of each setting. A row of settings has an index for each of them.
var options = []struct {
	name   string
	values []string
}{
	{"redis", []string{"single", "cluster", "local"}},
	{"per second", []string{"off", "on"}},
	{"replicas", []string{"1", "3"}},
	{"deny cache", []string{"on", "off"}},
	{"all or none", []string{"off", "on"}},
	{"leases", []string{"off", "on"}},
	{"acquire", []string{"off", "on"}},
	{"outage", []string{"off", "on"}},
	{"shadow", []string{"off", "on"}},
	{"quota", []string{"off", "on"}},
	{"reload", []string{"off", "on"}},
	{"concurrent", []string{"off", "on"}},
}

// row has a value of each option, by index.
type row []int

func (r row) value(name string) string {
	for i, o := range options {
		if o.name == name {
			return o.values[r[i]]
		}
	}
	panic(name)
}

func (r row) isOn(name string) bool { return r.value(name) == "on" }

// isPossible reports whether cmd/rls can have these settings. Without Redis there is nothing in front
// of the counters.
func (r row) isPossible() bool {
	return r.value("redis") != "local" || !r.isOn("per second") && !r.isOn("deny cache") && !r.isOn("leases") && !r.isOn("outage")
}

func (r row) settings() settings {
	return settings{
		redis: r.value("redis"), perSecond: r.isOn("per second"), replicas: 1 + 2*r[2],
		denyCache: r.isOn("deny cache"), allOrNone: r.isOn("all or none"), leases: r.isOn("leases"),
		acquire: r.isOn("acquire"), outage: r.isOn("outage"), shadow: r.isOn("shadow"), quota: r.isOn("quota"),
		reload: r.isOn("reload"), hasCallsAtOnce: r.isOn("concurrent"),
	}
}

// String returns the settings that are on.
func (r row) String() string {
	parts := []string{r.value("redis")}
	for i, o := range options[1:] {
		switch o.values[r[i+1]] {
		case "on":
			parts = append(parts, o.name)
		case "3":
			parts = append(parts, "3 replicas")
		}
	}
	return strings.Join(parts, ", ")
}

// pair is two values of two options.
type pair struct{ option, value, otherOption, otherValue int }

func (r row) pairs() (pairs []pair) {
	for i := range r {
		for j := range i {
			pairs = append(pairs, pair{j, r[j], i, r[i]})
		}
	}
	return pairs
}

// rows returns settings that cover each possible pair of values. They are the same at each call.
func rows() []row {
	rnd := rand.New(rand.NewPCG(1, 1))
	missingPairs := possiblePairs()
	var chosenRows []row
	for len(missingPairs) > 0 {
		var bestRow row
		bestCount := 0
		for range 3000 {
			candidate := randomRow(rnd)
			count := 0
			for _, p := range candidate.pairs() {
				if missingPairs[p] {
					count++
				}
			}
			if candidate.isPossible() && count > bestCount {
				bestRow, bestCount = candidate, count
			}
		}
		for _, p := range bestRow.pairs() {
			delete(missingPairs, p)
		}
		if bestRow != nil {
			chosenRows = append(chosenRows, bestRow)
		}
	}
	return chosenRows
}

func randomRow(rnd *rand.Rand) row {
	r := make(row, len(options))
	for i, o := range options {
		r[i] = rnd.IntN(len(o.values))
	}
	return r
}

// possiblePairs returns the pairs of values that some possible row has. The other options are off.
func possiblePairs() map[pair]bool {
	pairs := map[pair]bool{}
	for i, o := range options {
		for j, other := range options[:i] {
			for value := range o.values {
				for otherValue := range other.values {
					r := make(row, len(options))
					for k, o := range options {
						if o.name == "deny cache" {
							r[k] = 1 // off
						}
					}
					r[i], r[j] = value, otherValue
					if r.isPossible() {
						pairs[pair{j, otherValue, i, value}] = true
					}
				}
			}
		}
	}
	return pairs
}

func TestSettingsCoverEachPair(t *testing.T) {
	missingPairs := possiblePairs()
	for _, r := range rows() {
		assert.True(t, r.isPossible(), fmt.Sprint(r))
		for _, p := range r.pairs() {
			delete(missingPairs, p)
		}
		t.Log(r)
	}
	assert.Empty(t, missingPairs)
	assert.Less(t, len(rows()), 30)
}

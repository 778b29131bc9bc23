//go:build redis

package bench

import (
	"cmp"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/seed-81f232ab/rls/internal/testkit/redistest"
	"github.com/seed-81f232ab/rls/test/bench/curves"
	"github.com/seed-81f232ab/rls/test/bench/load"
)

// tightLimit is the limit of benchLimits for the service "exact", in a second.
const tightLimit = 300

// exactReplicas is the number of replicas that share the limit.
const exactReplicas = 3

// demander sends demand on one limit to all replicas of a server.
type demander struct {
	server, domain string // empty domain: fixed_window
	replicas       []*load.Client
}

// measureExactness returns how many hits replicas admit together. Two servers get their demand at
// the same time. They are not busy, so they don't slow each other.
func measureExactness(t *testing.T, roundPlan rounds) (results []curves.Exactness) {
	demanders := startDemanders(t)
	spans, steadies := make([][]float64, len(demanders)), make([][]float64, len(demanders))
	for round := range min(roundPlan.number, 3) {
		var callGroup errgroup.Group
		callGroup.SetLimit(2)
		for i, d := range demanders {
			callGroup.Go(func() error {
				span, steady, err := d.run(round)
				spans[i], steadies[i] = append(spans[i], span), append(steadies[i], steady)
				return err
			})
		}
		require.NoError(t, callGroup.Wait())
	}
	for i, d := range demanders {
		e := curves.Exactness{Server: d.server, Algorithm: cmp.Or(d.domain, "fixed_window"), Span: curves.SpreadOf(spans[i]), Steady: curves.SpreadOf(steadies[i])}
		results = append(results, e)
		t.Logf("%s, %s: at most %.2f limits in a second, %.3f limits under steady demand", e.Server, e.Algorithm, e.Span.Median, e.Steady.Median)
	}
	return results
}

// startDemanders starts the replicas of all servers. The replicas of a server share a Redis.
func startDemanders(t *testing.T) (demanders []demander) {
	for _, start := range redisServers(t) {
		redis := redistest.Start(t)
		var replicas []*load.Client
		var startedTarget target
		for range exactReplicas {
			var ok bool
			if startedTarget, ok = start(redis); ok {
				replicas = append(replicas, startedTarget.client)
			}
		}
		if len(replicas) == 0 {
			continue
		}
		demanders = append(demanders, demander{server: startedTarget.name, replicas: replicas})
		for _, domain := range startedTarget.algorithms {
			demanders = append(demanders, demander{server: startedTarget.name, domain: domain, replicas: replicas})
		}
	}
	return demanders
}

// run sends a burst around the end of a window, and then a steady demand of three limits. It
// returns the most that a second of the burst admitted, and the share of the limit that the
// steady demand got. 1 is the limit.
func (d demander) run(round int) (span, steady float64, err error) {
	key := fmt.Sprintf("round %d", round)
	boundary := time.Now().Truncate(time.Second).Add(2 * time.Second)
	const halfTime = 150 * time.Millisecond // of the burst
	rate := int(1.5 * tightLimit / halfTime.Seconds())
	burst, err := load.Demand(d.replicas, d.domain, key, rate, boundary.Add(-halfTime), boundary.Add(halfTime))
	if err != nil {
		return 0, 0, err
	}
	from, to := boundary.Add(3*time.Second), boundary.Add(5*time.Second)
	admitted, err := load.Demand(d.replicas, d.domain, key, 3*tightLimit, from.Add(-time.Second), to)
	if err != nil {
		return 0, 0, err
	}
	n := 0
	for _, a := range admitted {
		if !a.End.Before(from) && a.End.Before(to) {
			n++
		}
	}
	return float64(load.MostInSpan(burst, time.Second)) / tightLimit, float64(n) / (tightLimit * to.Sub(from).Seconds()), nil
}

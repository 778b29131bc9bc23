package main

import (
	"encoding/json"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/internal/observe/candidate"
	"github.com/seed-81f232ab/rls/internal/observe/live"
	"github.com/seed-81f232ab/rls/internal/testkit/polltest"
	"github.com/seed-81f232ab/rls/internal/testkit/redistest"
)

func TestCandidateIsEvaluatedBesideLiveCalls(t *testing.T) {
	t.Parallel()
	redisServer := redistest.Start(t)
	for name, env := range map[string][]string{
		"in the process": nil,
		"in Redis":       {"REDIS_URL=" + redisServer.Addr},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := writeLimits(t, strings.Replace(threePerYear, "3,", "1,", 1))
			service := start(t, append([]string{"LIMITS_CANDIDATE=" + path}, env...), "--limits", writeLimits(t, threePerYear))
			polltest.Until(t, maxWait, func() bool { return strings.Contains(service.logText(), "candidate limits evaluated") })
			for range 4 {
				rls(t, "hit", "-d", "shop", "-a", service.grpc, "tenant=acme")
			}
			var state live.State
			polltest.Until(t, maxWait, func() bool {
				state = liveState(t, service)
				return state.Candidate.Compared == 4
			})
			assert.EqualValues(t, 2, state.Candidate.NewlyDenied)
			assert.Equal(t, []candidate.RuleCount{{Path: "shop > tenant", NewlyDenied: 2}}, state.Candidate.Rules)
			assert.Contains(t, strings.Join(state.Details, "\n"), "4 calls compared, 2 newly denied, 0 newly admitted; most by shop > tenant (2)")

			out, errOut, code := rls(t, "explain", "-d", "shop", "--admin", service.debug, "tenant=other")
			require.Zero(t, code, errOut)
			assert.Contains(t, out, "candidate limits, which are not in force: OK\n  tenant=other: OK by shop > tenant")

			require.NoError(t, os.WriteFile(path, []byte("domain: ["), 0o600))
			polltest.Until(t, maxWait, func() bool { return liveState(t, service).Candidate.Problem != "" })
			assert.Contains(t, service.logText(), "candidate limits rejected; the last good candidate is still evaluated")
		})
	}
}

// liveState returns the state that the live page shows.
func liveState(t *testing.T, r *testService) live.State {
	t.Helper()
	response, err := http.Get("http://" + r.debug + live.SnapshotPath)
	require.NoError(t, err)
	defer response.Body.Close()
	var snapshot live.Snapshot
	require.NoError(t, json.NewDecoder(response.Body).Decode(&snapshot))
	return snapshot.State
}

package main

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/backend/redis"
	"github.com/seed-81f232ab/rls/internal/testkit/redistest"
)

func TestServiceSendsOnlyCommandsOfTheDocumentedRights(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := server.Client(t)
	user := []any{"ACL", "SETUSER", "rls", "on", ">pw", "~p:*", "resetchannels", "&p:rls:*", "-@all"}
	for _, r := range redis.Rights() {
		user = append(user, "+"+r.Command)
	}
	require.NoError(t, client.Do(t.Context(), user...).Err())
	limits := `
domain: shop
descriptors:
- {key: tenant, rate_limit: {unit: day, requests_per_unit: 1000000, algorithm: token_bucket, lease: true}}
- {key: user, rate_limits: [{unit: day, requests_per_unit: 5}, {unit: hour, requests_per_unit: 4, algorithm: sliding_window}]}
`
	for _, replica := range startReplicas(t, 2, server, limits, "REDIS_AUTH=rls:pw", "CACHE_KEY_PREFIX=p:") {
		takeTenant := replica.newTenantCaller()
		for range 200 { // so many that the replica leases permits
			_, err := takeTenant()
			require.NoError(t, err)
		}
		assert.Positive(t, replica.usedPermits())
		_, _, _ = rls(t, "hit", "-a", replica.grpc, "-d", "shop", "user=ann", "-n", "8")
		_, _, _ = rls(t, "hit", "-a", replica.grpc, "-d", "shop", "user=ann", "--hits", "-2")
		replica.override("shop|tenant=acme", `{"requests_per_unit": 7}`)
		code, answer := replica.admin(http.MethodDelete, "overrides", "shop|tenant=acme", "")
		require.Equal(t, http.StatusOK, code, answer)
		assert.NotContains(t, replica.logText(), "NOPERM")
		assert.NotContains(t, replica.logText(), "check=rights")
	}
	denials, err := client.Do(t.Context(), "ACL", "LOG").Slice()
	require.NoError(t, err)
	assert.Empty(t, denials)
	assert.Contains(t, client.Info(t.Context(), "commandstats").Val(), "cmdstat_evalsha")
}

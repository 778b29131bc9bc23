package main

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/internal/testkit/redistest"
)

func TestWriteToRedisWithoutTheAPIIsAudited(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t)
	replica := startReplicas(t, 1, redis, "domain: shop\ndescriptors: [{key: tenant, rate_limit: {unit: hour, requests_per_unit: 10}}]\n")[0]
	replica.override("shop|tenant=acme", `{"requests_per_unit": 20}`)
	replica.awaitLog(`msg=audit action=put by=tester`)
	client := redis.Client(t)
	require.NoError(t, client.HSet(t.Context(), "rls:overrides", "shop|tenant=other", `{"requests_per_unit": 30}`).Err())
	require.NoError(t, client.Publish(t.Context(), "rls:overrides", "shop|tenant=other").Err())
	replica.awaitLog(`level=WARN msg=audit action="direct write" by=unknown outcome=set`)
	assert.Contains(t, replica.logText(), `target="shop|tenant=other"`)
	assert.Equal(t, 1, replica.count("direct write"), "a write by the API is no direct write")
}

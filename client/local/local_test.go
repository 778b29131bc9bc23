package local

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/backend"
	counters "github.com/seed-81f232ab/rls/backend/local"
	"github.com/seed-81f232ab/rls/client"
	"github.com/seed-81f232ab/rls/limit"
	"github.com/seed-81f232ab/rls/service"
)

const limitsText = `
domain: shop
descriptors:
  - key: tenant
    rate_limit: {unit: hour, requests_per_unit: 10}
    descriptors:
      - key: path
        rate_limit: {unit: hour, requests_per_unit: 30}
  - key: free
    rate_limit: {unlimited: true}
`

func TestInvalidLimitsFilesAreErrors(t *testing.T) {
	_, err := ReadLimits()
	assert.ErrorContains(t, err, "got none")
	_, err = ReadLimits("missing.yaml")
	assert.ErrorContains(t, err, "missing.yaml")
	_, err = ParseLimits("limits.yaml", "domain: shop\ndescriptors: [{key: a, rate_limit: {unit: sekond}}]")
	assert.ErrorContains(t, err, "limits.yaml:2:")
	assert.ErrorContains(t, err, "sekond")
}

func TestProbableMistakeIsWarning(t *testing.T) {
	limits, err := ParseLimits("limits.yaml", "domain: shop\ndescriptors: [{key: 'a '}]")
	require.NoError(t, err)
	require.Len(t, limits.Warnings(), 1)
	assert.Contains(t, limits.Warnings()[0], "limits.yaml:2:")
}

func TestEachClientHasItsOwnCountersWithItsShareOfEachLimit(t *testing.T) {
	limits, err := ParseLimits("limits.yaml", limitsText)
	require.NoError(t, err)
	tenant := client.NewDescriptor("tenant", "acme")
	for _, test := range []struct {
		ratio      float64
		descriptor client.Descriptor
		want       uint32 // 0 for no limit
	}{
		{1, tenant, 10},
		{0.3, tenant, 3},
		{0.3, tenant.Add("path", "/orders"), 9},
		{0.01, tenant, 1},
		{0.3, client.NewDescriptor("free", "x"), 0},
		{1, tenant, 10},
	} {
		c, err := client.NewLocal(limits, client.Options{LocalRatio: test.ratio})
		require.NoError(t, err)
		d, err := c.Peek(t.Context(), "shop", test.descriptor)
		require.NoError(t, err)
		assert.Equal(t, []uint32{test.want, test.want}, []uint32{d.Limit, d.Remaining}, "%+v", test)
		ok, err := c.AllowN(t.Context(), max(int(test.want), 1), "shop", test.descriptor)
		require.NoError(t, err)
		assert.True(t, ok, "%+v", test)
		require.NoError(t, c.Close())
	}
}

func TestCallsFreeExpiredCounters(t *testing.T) {
	s := &sweeper{counters: counters.New(counters.Options{MaxKeys: 256})} // a sweep covers all 256 keys
	secondLimit, err := limit.New(limit.Spec{Unit: limit.Second, Requests: 1, Algorithm: limit.FixedWindow})
	require.NoError(t, err)
	now := time.Unix(1000, 0)
	s.counters.Take(t.Context(), now, []backend.Hit{{Key: []byte("a"), Limit: secondLimit, N: 1}}, make([]backend.Result, 1))
	call := &service.Call{Start: now.Add(time.Minute)}
	for range callsPerSweep - 1 {
		s.CallAnswered(t.Context(), call)
	}
	assert.Equal(t, 1, s.counters.Keys())
	s.CallAnswered(t.Context(), call)
	assert.Zero(t, s.counters.Keys())
}

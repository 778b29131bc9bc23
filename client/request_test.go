package client_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/client"
	"github.com/seed-81f232ab/rls/client/clienttest"
)

func TestEachMethodRejectsInvalidRequest(t *testing.T) {
	c := clienttest.New(t, limits, nil)
	for want, r := range map[string]client.Request{
		"domain: got none":                       {Descriptors: []client.Descriptor{tenant}, N: 1},
		"descriptors: got none":                  {Domain: "shop", N: 1},
		"descriptor 2: got no entries":           {Domain: "shop", Descriptors: []client.Descriptor{tenant, {}}, N: 1},
		"descriptor 1: entry 2: got no key":      {Domain: "shop", Descriptors: []client.Descriptor{tenant.Add("", "x")}, N: 1},
		"permits: got -5, want 1 to 17179869184": {Domain: "shop", Descriptors: []client.Descriptor{tenant}, N: -5},
		"permits: got 0, want 1 to 17179869184":  {Domain: "shop", Descriptors: []client.Descriptor{tenant}},
	} {
		methods := map[string]func() error{
			"AllowN": func() error {
				ok, err := c.AllowN(t.Context(), r.N, r.Domain, r.Descriptors...)
				assert.False(t, ok)
				return err
			},
			"AcquireN": func() error { return c.AcquireN(t.Context(), r.N, r.Domain, r.Descriptors...) },
			"ReserveN": func() error {
				_, err := c.ReserveN(t.Context(), r.N, r.Domain, r.Descriptors...)
				return err
			},
		}
		for name, method := range methods {
			assert.ErrorContains(t, method(), want, "%s of %+v", name, r)
		}
	}
}

func TestCallWithCancelledContextChargesNothing(t *testing.T) {
	c := clienttest.New(t, limits, nil)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := c.Allow(ctx, "shop", tenant)
	assert.ErrorIs(t, err, context.Canceled)
	assert.ErrorIs(t, c.Acquire(ctx, "shop", tenant), context.Canceled)
	_, err = c.Reserve(ctx, "shop", tenant)
	assert.ErrorIs(t, err, context.Canceled)
	_, err = c.AcquireHold(ctx, "shop", tenant)
	assert.ErrorIs(t, err, context.Canceled)
	assert.Equal(t, 10, remaining(t, c, tenant))
}

func TestUnknownDomainHasNoLimit(t *testing.T) {
	c := clienttest.New(t, limits, nil)
	d, err := c.Check(t.Context(), client.Request{Domain: "shopp", Descriptors: []client.Descriptor{tenant}})
	require.NoError(t, err)
	assert.Equal(t, client.Decision{Allowed: true}, d)
	assert.NoError(t, c.Acquire(t.Context(), "shopp", tenant))
}

func TestParseDescriptorParsesTheTextOfString(t *testing.T) {
	d := client.NewDescriptor("a=b", `c,d\`).Add("e", "")
	parsed, err := client.ParseDescriptor(d.String())
	require.NoError(t, err)
	assert.Equal(t, d, parsed)
	_, err = client.ParseDescriptor("tenant")
	assert.ErrorContains(t, err, "KEY=VALUE")
}

func TestAddDoesNotChangeDescriptor(t *testing.T) {
	base := client.NewDescriptor("a", "1").Add("b", "2")
	descriptorWith3, descriptorWith4 := base.Add("c", "3"), base.Add("c", "4")
	assert.Equal(t, "a=1,b=2,c=3", descriptorWith3.String())
	assert.Equal(t, "a=1,b=2,c=4", descriptorWith4.String())
}

func TestCallsOfClosedClientFail(t *testing.T) {
	c := clienttest.New(t, limits, nil)
	require.NoError(t, c.Close())
	_, err := c.Allow(t.Context(), "shop", tenant)
	assert.ErrorIs(t, err, client.ErrClosed)
	assert.ErrorIs(t, c.Acquire(t.Context(), "shop", tenant), client.ErrClosed)
	assert.NoError(t, c.Close())
}

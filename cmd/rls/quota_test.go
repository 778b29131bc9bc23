package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/service/quota"
)

func TestQuotaShowsEachEnvoyAndItsShare(t *testing.T) {
	for want, counters := range map[string][]quota.CounterShares{
		"no Envoy shares a limit\n": nil,
		"shop|tenant=acme: 100 requests a second\n" +
			"  10.0.0.1:4711 asks for 120 and may admit 60: the Envoys ask for more than the limit; until it confirms this share, it may admit 80\n" +
			"  10.0.0.2:4712 asks for 5.5 and may admit 9: its demand fits into the limit\n" +
			"  3 Envoys that are not connected to this replica may admit 10\n": {{
			Counter: "shop|tenant=acme", Limit: 100, OtherEnvoys: 3, OtherRate: 10, Shares: []quota.Share{
				{Envoy: "10.0.0.1:4711", GrantedRate: 60, EnforcedRate: 80, DemandedRate: 120, Reason: "the Envoys ask for more than the limit"},
				{Envoy: "10.0.0.2:4712", GrantedRate: 9, EnforcedRate: 9, DemandedRate: 5.5, Reason: "its demand fits into the limit"},
			},
		}},
		"a: 5 requests a second\n  Redis is down, so this replica divides a part of the limit alone\n": {{Counter: "a", Limit: 5, IsFallback: true}},
	} {
		var b strings.Builder
		require.NoError(t, writeShares(&b, counters))
		assert.Equal(t, want, b.String())
	}
}

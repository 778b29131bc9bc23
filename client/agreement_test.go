package client_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/client"
	"github.com/seed-81f232ab/rls/client/clienttest"
)

// agreementLimits are the limits of the comparison: the limits of the other tests, and more limits.
const agreementLimits = limits + `
  - key: sliding
    rate_limit: {unit: minute, requests_per_unit: 20, algorithm: sliding_window}
  - key: first
    max_hits: 7
    quota_mode: true
    rate_limit: {unit: second, unit_multiplier: 30, requests_per_unit: 10, algorithm: first_hit_window}
  - key: replaces
    rate_limit: {name: other, unit: hour, requests_per_unit: 30, replaces: [{name: tenant}, {name: replaced}]}
  - key: replaced
    quota_mode: true
    rate_limit: {name: replaced, unit: second, requests_per_unit: 1}
  - key: unlimited
    rate_limit: {unlimited: true, replaces: [{name: bucket}]}
  - key: disabled
    rate_limit: {unit: hour, requests_per_unit: 1, enabled: false}
  - key: enforced
    enforce: 50
    rate_limit: {unit: minute, requests_per_unit: 2}
  - key: charging
    rate_limit: {unit: second, requests_per_unit: 5, burst: 10, algorithm: token_bucket, charge_denied: true}
  - key: millis
    rate_limit: {unit: millisecond, unit_multiplier: 100, requests_per_unit: 3}
  - key: prefixed
    prefix: a
    rate_limit: {unit: minute, requests_per_unit: 4}
  - key: slot-shadow
    shadow_mode: true
    rate_limit: {algorithm: concurrency, requests_per_unit: 1, hold: 10s}
`

// agreementKeys are the keys of agreementLimits, and a key without a rule.
var agreementKeys = []string{
	"tenant", "bucket", "log", "shadow", "bounded", "bounded-shadow", "bounded-quota", "quota", "quota-zero",
	"quota-unlimited", "quota-disabled", "quota-without-a-limit", "pair", "five", "four", "final", "slot", "job",
	"yearly", "nothing", "sliding", "first", "replaces", "replaced", "unlimited", "disabled", "enforced",
	"charging", "millis", "prefixed", "slot-shadow", "no-rule",
}

func pick[T any](random *rand.Rand, values ...T) T { return values[random.IntN(len(values))] }

// randomRequest returns a request for 0 permits or more.
func randomRequest(random *rand.Rand) client.Request {
	r := client.Request{Domain: pick(random, "shop", "shop", "shop", "shop", "shop", "shop", "other"), N: pick(random, 0, 1, 1, 1, 2, 5, 6, 10, 11, 101)}
	for range pick(random, 1, 1, 2, 3) {
		d := client.NewDescriptor(pick(random, agreementKeys...), pick(random, "a", "b"))
		if random.IntN(8) == 0 {
			d = d.Add("path", "/orders")
		}
		r.Descriptors = append(r.Descriptors, d)
	}
	return r
}

func TestServiceInProcessAnswersLikeRemoteService(t *testing.T) {
	clock := clienttest.NewClock(start)
	remote := newClient(t, newServiceWithLimits(t, clock, agreementLimits), client.Options{Clock: clock})
	inProcess := clienttest.New(t, agreementLimits, clock)
	random := rand.New(rand.NewPCG(1, 1))
	for i := range 4000 {
		clock.Advance(pick(random, 0, 0, 0, 50*time.Millisecond, time.Second, 7*time.Second, time.Minute))
		r, o := randomRequest(random), client.CallOptions{
			ChargesNothingIfDenied: random.IntN(2) == 0, Refunds: random.IntN(5) == 0, HoldID: pick(random, "", "", "first", "second"),
		}
		want := client.Ask(t.Context(), remote, r, o)
		require.Equal(t, want, client.Ask(t.Context(), inProcess, r, o), "request %d: %+v %+v", i, r, o)
	}
}

//go:build parity

package sidebyside

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/seed-81f232ab/rls/internal/testkit/xdstest"
	"github.com/seed-81f232ab/rls/test/parity/modcache"
)

// startXDSPair starts both programs with limits from one xDS server.
func startXDSPair(t *testing.T, name string, domains []*domain, ourEnv ...string) *pair {
	t.Helper()
	server := xdstest.Serve(t, "127.0.0.1:0")
	server.Set("1", xdsResources(domains)...)
	env := []string{
		"CONFIG_TYPE=GRPC_XDS_SOTW", "CONFIG_GRPC_XDS_NODE_ID=" + xdstest.Node, "CONFIG_GRPC_XDS_SERVER_URL=" + server.Addr,
	}
	return startPair(t, name, nil, env, ourEnv)
}

// TestRandomRequestsOverEnvoyGatewaysResources sends random requests over the resources that Envoy Gateway builds in
// its tests.
func TestRandomRequestsOverEnvoyGatewaysResources(t *testing.T) {
	pages, err := filepath.Glob(filepath.Join(modcache.EnvoyGateway(t), "internal/xds/translator/testdata/out/ratelimit-config/*.yaml"))
	require.NoError(t, err)
	var domains []*domain
	for _, page := range pages {
		domainsOfPage, ok := readDomains(t, page)
		if strings.HasSuffix(page, ".routes.yaml") {
			continue
		}
		require.True(t, ok, page)
		for _, d := range domainsOfPage {
			d.Domain = strings.TrimSuffix(filepath.Base(page), ".yaml") + "/" + d.Domain
			domains = append(domains, d)
		}
	}
	require.Greater(t, len(domains), 25)
	units := quietUnits()
	useQuietUnits(domains, units)
	pair := startXDSPair(t, "resources of Envoy Gateway", domains)
	random := &generator{Rand: rand.New(rand.NewPCG(uint64(seed), 0)), domains: domains, units: units, hasLimits: true}
	for i := range requestCount {
		if i%2 == 0 {
			pair.send(random.request())
		} else {
			pair.send(random.routeRequest(pick(random, domains...), 100))
		}
	}
	pair.compareCounters()
	pair.print()
}

// The largest requests and resources that users of Envoy Gateway report. Envoy Gateway admits 64 header matches in a
// rule, and adds the route.
const (
	headerMatches = 64
	routeRules    = 257
	messageBytes  = 158 << 10
	treeDepth     = 130
)

// ruleChain returns a rule with a chain of children, as Envoy Gateway builds it for the matches of a rule. The entries of
// distinct matches have no value.
func ruleChain(ruleIndex, matches int, isDistinct bool, l *limit) *rule {
	var firstRule *rule
	for i := matches - 1; i >= 0; i-- {
		r := &rule{Key: fmt.Sprintf("rule-%d-match-%d", ruleIndex, i)}
		if !isDistinct {
			r.Value = r.Key
		}
		if firstRule == nil {
			r.Limit = l
		} else {
			r.Rules = []*rule{firstRule}
		}
		firstRule = r
	}
	return firstRule
}

// routeRule returns the descriptor of a route, as Envoy Gateway builds it.
func routeRule(name string, rules ...*rule) *rule { return &rule{Key: name, Value: name, Rules: rules} }

// TestLargeTreesOfEnvoyGatewayHaveTheAnswersOfTheIncumbent has what Envoy Gateway can build and its tests don't.
func TestLargeTreesOfEnvoyGatewayHaveTheAnswersOfTheIncumbent(t *testing.T) {
	unit := quietUnits()[0]
	limitOfTen := &limit{Unit: unit, RequestsPerUnit: 10}
	var manyRules []*rule
	for i := range routeRules {
		manyRules = append(manyRules, ruleChain(i, 1, i%2 == 0, &limit{Unit: unit, RequestsPerUnit: uint32(i % 7)}))
	}
	sharedName := "team/policy/rule/0"
	replacingRule, shadowRule := ruleChain(2, 1, false, &limit{Unit: unit, RequestsPerUnit: 3, Name: "new", Replaces: []struct{ Name string }{{"old"}}}), ruleChain(1, 2, true, limitOfTen)
	shadowRule.ShadowMode, shadowRule.Rules[0].ShadowMode = true, true
	domains := []*domain{
		{Domain: "headers", Rules: []*rule{routeRule("httproute/default/headers", ruleChain(0, headerMatches, false, limitOfTen), ruleChain(1, headerMatches, true, limitOfTen))}},
		{Domain: "rules", Rules: []*rule{routeRule("httproute/default/rules", manyRules...)}},
		{Domain: "values", Rules: []*rule{routeRule("httproute/default/values", ruleChain(0, 1, true, limitOfTen), ruleChain(1, 2, true, limitOfTen))}},
		{Domain: "deep", Rules: []*rule{routeRule("httproute/default/deep", ruleChain(0, treeDepth-1, false, limitOfTen))}},
		{Domain: "team/policy", Rules: []*rule{routeRule(sharedName, ruleChain(0, 1, true, limitOfTen))}},
		{Domain: "mixed", Rules: []*rule{
			routeRule("httproute/default/mixed", ruleChain(0, 1, false, &limit{Unlimited: true}), shadowRule, replacingRule, ruleChain(3, 1, false, &limit{Unit: unit, RequestsPerUnit: 2, Name: "old"})),
		}},
	}
	pair := startXDSPair(t, "large trees and requests", domains)
	random := &generator{Rand: rand.New(rand.NewPCG(uint64(seed), 0)), domains: domains}
	for _, d := range domains {
		for range 40 {
			req := random.routeRequest(d, routeRules)
			pair.send(req)
			if random.IntN(4) == 0 {
				req.Descriptors[0].Entries = req.Descriptors[0].GetEntries()[:len(req.Descriptors[0].GetEntries())-1]
				pair.send(req)
			}
		}
	}
	for range 3 * 10 {
		pair.send(largeRequest(random))
	}
	pair.compareCounters()
	pair.print()
}

// largeRequest returns a request of messageBytes.
func largeRequest(g *generator) *rlsv3.RateLimitRequest {
	req := &rlsv3.RateLimitRequest{Domain: "values"}
	letter := pick(g, "a", "b", "c")
	for proto.Size(req) < messageBytes {
		descriptor := &ratelimitv3.RateLimitDescriptor{Entries: []*ratelimitv3.RateLimitDescriptor_Entry{
			{Key: "httproute/default/values", Value: "httproute/default/values"},
			{Key: "rule-0-match-0", Value: strings.Repeat(letter, min(8000, messageBytes-proto.Size(req)))},
		}}
		req.Descriptors = append(req.Descriptors, descriptor)
	}
	return req
}

// TestCostsOfAIGatewayAreCountedAsByTheIncumbent sends the requests that Envoy sends for the token costs of AI Gateway: a request with 0 hits when
// a call begins, and another with the cost when the call ends. The cost comes from dynamic metadata.
func TestCostsOfAIGatewayAreCountedAsByTheIncumbent(t *testing.T) {
	unit := quietUnits()[0]
	var rules []*rule
	for i, budget := range []uint32{1000, 10_000, 0, 5_000_000} { // of a user and a model
		user := ruleChain(i, 2, true, &limit{Unit: unit, RequestsPerUnit: budget})
		user.Rules[0].Value = user.Rules[0].Key // the model
		rules = append(rules, user)
	}
	domains := []*domain{{Domain: "ai-gateway/http", Rules: []*rule{routeRule("httproute/default/llm/rule/0", rules...)}}}
	pair := startXDSPair(t, "costs of AI Gateway", domains)
	random := &generator{Rand: rand.New(rand.NewPCG(uint64(seed), 0)), domains: domains}
	denied := 0
	for range requestCount / 4 {
		firstRequest := random.routeRequest(domains[0], len(rules))
		firstRequest.Descriptors = slices.DeleteFunc(firstRequest.GetDescriptors(), func(*ratelimitv3.RateLimitDescriptor) bool { return random.IntN(3) == 0 })
		if len(firstRequest.GetDescriptors()) == 0 {
			continue
		}
		lastRequest := proto.CloneOf(firstRequest)
		for i := range firstRequest.GetDescriptors() {
			firstRequest.Descriptors[i].HitsAddend = wrapperspb.UInt64(0)
			lastRequest.Descriptors[i].HitsAddend = wrapperspb.UInt64(uint64(random.IntN(pick(random, 10, 300, 4000))))
		}
		if pair.send(firstRequest) == rlsv3.RateLimitResponse_OVER_LIMIT {
			denied++
			continue
		}
		pair.send(lastRequest)
	}
	assert.Positive(t, denied, "budgets were spent")
	pair.compareCounters()
	pair.print()
}

//go:build parity

package sidebyside

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/seed-81f232ab/rls/internal/testkit/redistest"
	"github.com/seed-81f232ab/rls/test/parity/modcache"
)

// The requests of a test, and the seed of its random numbers.
var (
	requestCount = numberFrom("RLS_PARITY_REQUESTS", 2000)
	seed         = numberFrom("RLS_PARITY_SEED", 1)
)

// numberFrom returns the number in a variable of the environment, or the default value.
func numberFrom(name string, value int) int {
	if text := os.Getenv(name); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil {
			panic(name + ": " + err.Error())
		}
		return n
	}
	return value
}

// exchange is a request with the answers of both programs.
type exchange struct {
	request          *rlsv3.RateLimitRequest
	isJSON           bool // over /json, otherwise over gRPC
	ours, theirs     *rlsv3.RateLimitResponse
	ourErr, theirErr error
}

func (e *exchange) haveFailed() bool { return e.ourErr != nil && e.theirErr != nil }

// difference is a difference between the programs that a page in docs lists.
type difference struct {
	page, row string // the beginning of the row in the page
	explains  func(*exchange) bool
}

// listedDifferences are the differences of answers that the requests of this package meet.
var listedDifferences = []difference{
	{"lab/differences.md", "| gRPC errors have the codes INVALID_ARGUMENT,", func(e *exchange) bool { return e.haveFailed() && !e.isJSON }},
	{"lab/differences.md", "| `/json` errors have the reason", func(e *exchange) bool { return e.haveFailed() && e.isJSON }},
	{"lab/differences.md", metadataRow, differInMetadataText},
}

const metadataRow = "| In dynamic metadata, the text of a limit"

// differInMetadataText reports whether the answers differ only in quotaModeEnabled of the dynamic metadata and in the
// texts of limits that requests have.
func differInMetadataText(e *exchange) bool {
	if e.ours == nil || e.theirs == nil {
		return false
	}
	ours, theirs := proto.CloneOf(e.ours), proto.CloneOf(e.theirs)
	delete(theirs.GetDynamicMetadata().GetFields(), "quotaModeEnabled")
	for _, metadata := range []*structpb.Struct{ours.GetDynamicMetadata(), theirs.GetDynamicMetadata()} {
		for _, descriptor := range metadata.GetFields()["descriptors"].GetListValue().GetValues() {
			if limit, ok := descriptor.GetStructValue().GetFields()["limit"]; ok {
				words := slices.DeleteFunc(strings.Fields(limit.GetStringValue()), func(word string) bool { return word == "requests_per_unit:0" })
				limit.Kind = &structpb.Value_StringValue{StringValue: strings.Join(words, " ")}
			}
		}
	}
	return proto.Equal(ours, theirs)
}

// avoidedDifferences are the differences that the requests of this package do not meet, because they would change counters, or end
// the incumbent.
var avoidedDifferences = []difference{
	{page: "lab/differences.md", row: "| A `*` can stand anywhere"},                                                                         // withoutInnerStars
	{page: "lab/differences.md", row: "| Compares the entries of a descriptor one by one"},                                                  // entryValues have no underscore
	{page: "lab/differences.md", row: "| A `*` in a key matches text within the key only"},                                                  // no example has such a key
	{page: "lab/differences.md", row: "| A limit in a request never uses the common counter"},                                               // only requests without share_threshold have limits
	{page: "lab/differences.md", row: "| If a limit in a request has an unknown unit"},                                                      // all units are known
	{page: "lab/differences.md", row: "| Denies a request with more than 2^63 hits"},                                                        // no request has so many
	{page: "lab/differences.md", row: "| `is_negative_hits` refunds hits"},                                                                  // no request refunds
	{page: "lab/differences.md", row: "| A request has at most "},                                                                           // the settings raise the bounds
	{page: "lab/differences.md", row: "| In quota mode (`quota_mode` or QUOTA_MODE=true), an unlimited"},                                    // no rule is in quota mode
	{page: "lab/differences.md", row: "| A descriptor without a limit, but with `quota_mode`"},                                              // no rule is in quota mode
	{page: "lab/differences.md", row: "| If all descriptors in quota mode are over"},                                                        // the versions of the incumbent differ
	{page: "lab/differences.md", row: "| The deny cache asks Redis again about a denied key"},                                               // TestRandomRequestsOverExamples
	{page: "lab/differences.md", row: "| `ratelimit_service_rate_limit_domain_not_found{domain}` | one metric"},                             // compareMetrics maps the names
	{page: "lab/differences.md", row: "| `ratelimit_service_rate_limit_over_limit_with_local_cache{domain,key1,key2,rule}` | for"},          // compareMetrics maps the names
	{page: "lab/differences.md", row: "| the label `rule`, unless `METRICS_RULE_LABEL=false`, and `key2=\"\"` if the path has one entry |"}, // compareMetrics maps the names
}

// pair is both programs with the same limits, each with a Redis of its own.
type pair struct {
	t                          *testing.T
	name                       string
	ours, theirs               *program
	ourRedis, theirRedis       *redistest.Server
	requests, unexplainedCount int
	metrics                    int // compared counters in the metrics
	explainedByRow             map[string]int
}

// startPair starts both programs. rls gets the settings ourEnv too.
func startPair(t *testing.T, name string, limits limitsFiles, env, ourEnv []string) *pair {
	t.Helper()
	p := &pair{t: t, name: name, ourRedis: redistest.Start(t), theirRedis: redistest.Start(t), explainedByRow: map[string]int{}}
	env = append([]string{"REDIS_SOCKET_TYPE=tcp", "LIMIT_RESPONSE_HEADERS_ENABLED=true", "LOCAL_CACHE_SIZE_IN_BYTES=0"}, env...)
	p.ours = startRLS(t, limits, slices.Concat(env, []string{"REDIS_URL=" + p.ourRedis.Addr}, ourEnv)...)
	p.theirs = startIncumbent(t, limits, append(slices.Clip(env), "REDIS_URL="+p.theirRedis.Addr)...)
	return p
}

// send sends a request to both programs, compares the answers, and returns the code of the incumbent.
func (p *pair) send(req *rlsv3.RateLimitRequest) (code rlsv3.RateLimitResponse_Code) {
	p.t.Helper()
	p.requests++
	e := &exchange{request: req, isJSON: p.requests%8 == 0}
	send := (*program).call
	if e.isJSON {
		send = (*program).post
	}
	e.theirs, e.theirErr = send(p.theirs, p.t, req)
	e.ours, e.ourErr = send(p.ours, p.t, req)
	code = e.theirs.GetOverallCode()
	if e.ourErr == nil && e.theirErr == nil {
		ignoreSecond(e.ours, e.theirs)
		if proto.Equal(e.ours, e.theirs) {
			return code
		}
	}
	for _, d := range listedDifferences {
		if d.explains(e) {
			p.explainedByRow[d.row]++
			return code
		}
	}
	if p.unexplainedCount++; p.unexplainedCount <= 20 {
		assert.Fail(p.t, "unexplained difference", "request %d, JSON %t: %s\nrls:       %s %v\nincumbent: %s %v",
			p.requests, e.isJSON, oneLine(req), oneLine(e.ours), e.ourErr, oneLine(e.theirs), e.theirErr)
	}
	return code
}

func oneLine(m proto.Message) string { return prototext.MarshalOptions{}.Format(m) }

// resetHeader has whole seconds.
const resetHeader = "RateLimit-Reset"

// ignoreSecond makes times equal that differ by at most a second.
func ignoreSecond(ours, theirs *rlsv3.RateLimitResponse) {
	for i := range min(len(ours.GetStatuses()), len(theirs.GetStatuses())) {
		a, b := ours.Statuses[i].GetDurationUntilReset(), theirs.Statuses[i].GetDurationUntilReset()
		if a != nil && b != nil && (a.AsDuration()-b.AsDuration()).Abs() <= time.Second {
			ours.Statuses[i].DurationUntilReset = durationpb.New(b.AsDuration())
		}
	}
	for i := range min(len(ours.GetResponseHeadersToAdd()), len(theirs.GetResponseHeadersToAdd())) {
		a, b := ours.ResponseHeadersToAdd[i], theirs.ResponseHeadersToAdd[i]
		if a.GetKey() == resetHeader && b.GetKey() == resetHeader {
			ourReset, ourErr := strconv.Atoi(a.GetValue())
			theirReset, theirErr := strconv.Atoi(b.GetValue())
			if ourErr == nil && theirErr == nil && max(ourReset-theirReset, theirReset-ourReset) <= 1 {
				a.Value = b.GetValue()
			}
		}
	}
}

// compareCounters compares the counters of both programs, in Redis and in the metrics.
func (p *pair) compareCounters() {
	p.t.Helper()
	assert.Equal(p.t, countersOf(p.t, p.theirRedis), countersOf(p.t, p.ourRedis), "the counters in Redis, in order")
	got, want := compareMetrics(p.t, p.ours, p.theirs)
	for deadline := time.Now().Add(20 * time.Second); !maps.Equal(got, want) && time.Now().Before(deadline); got, want = compareMetrics(p.t, p.ours, p.theirs) {
		time.Sleep(100 * time.Millisecond) // the incumbent publishes its counters once a second
	}
	assert.Equal(p.t, want, got, "the counters in the metrics")
	p.metrics = len(want)
}

// print prints the result.
func (p *pair) print() {
	explainedCount := 0
	for _, n := range p.explainedByRow {
		explainedCount += n
	}
	fmt.Printf("%s: %d requests, %d metrics; differences: %d listed, %d unexplained\n", p.name, p.requests, p.metrics, explainedCount, p.unexplainedCount)
}

// countersOf returns the counts of all counters in a Redis, in order. Two kinds of counters are left out: those of 0,
// because a peek of the incumbent makes one, and the probes of rls.
func countersOf(t *testing.T, server *redistest.Server) (counts []string) {
	t.Helper()
	client := server.Client(t)
	keys, err := client.Keys(t.Context(), "*").Result()
	require.NoError(t, err)
	for _, key := range keys {
		count, err := client.Get(t.Context(), key).Result()
		require.NoError(t, err, key)
		if count != "0" && !strings.Contains(key, ":rls:") {
			counts = append(counts, count)
		}
	}
	slices.Sort(counts)
	return counts
}

// TestRandomRequestsOverExamples sends random requests over the limits files of both repositories.
func TestRandomRequestsOverExamples(t *testing.T) {
	units := quietUnits()
	metrics := t.TempDir()
	require.NoError(t, os.WriteFile(metrics+"/metrics.yaml", []byte(strings.ReplaceAll(limits, "QUOTA", "quota_mode: false")), 0o600))
	domains := exampleDomains(t, modcache.Incumbent(t), root+"/examples", metrics)
	useQuietUnits(domains, units)
	require.GreaterOrEqual(t, len(domains), 10)
	for name, env := range map[string][]string{
		"without local cache": nil,
		"with local cache":    {"LOCAL_CACHE_SIZE_IN_BYTES=1000000"},
		"global shadow mode":  {"SHADOW_MODE=true"},
		"dynamic metadata":    {"RESPONSE_DYNAMIC_METADATA=true"},
	} {
		t.Run(name, func(t *testing.T) {
			pair := startPair(t, "examples, "+name, limitsFilesOf(t, domains), env, nil)
			hasCache := name == "with local cache"
			// The cache of the incumbent denies other limits of a key too.
			random := &generator{Rand: rand.New(rand.NewPCG(uint64(seed), 0)), domains: domains, units: units, hasLimits: !hasCache}
			for range requestCount {
				pair.send(random.request())
			}
			if !hasCache { // the deny cache asks Redis again after a second, so its counters depend on the time
				pair.compareCounters()
			}
			pair.print()
			for _, d := range listedDifferences {
				isPossible := d.row != metadataRow || name == "dynamic metadata"
				assert.Equal(t, isPossible, pair.explainedByRow[d.row] > 0, "each listed difference occurs: %s", d.row)
			}
		})
	}
}

func TestListedDifferencesAreInTheDocs(t *testing.T) {
	for _, d := range slices.Concat(listedDifferences, avoidedDifferences) {
		page, err := os.ReadFile(root + "/docs/" + d.page)
		require.NoError(t, err)
		assert.Equal(t, 1, strings.Count(string(page), "\n"+d.row), "docs/%s has the row %q", d.page, d.row)
	}
}

package descriptors

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/descriptors/limitsfile"
)

const conditions = `domain: d
descriptors:
- {key: ip, value: 10.0.0.1, DAY}
- {key: ip, cidr: [10.1.0.0/16], DAY}
- {key: ip, cidr: [10.0.0.0/8, 192.168.0.0/16]}
- {key: ip, value: "192.*", DAY}
- {key: ip, not: {cidr: ["::/0"]}, DAY}
- {key: ip, DAY}
- {key: method, in: [GET, HEAD], DAY, descriptors: [{key: path, prefix: /api/, DAY}]}
- {key: method, DAY}
- {key: version, regex: "v[0-9]+", DAY}
- {key: plan, DAY, descriptors: [{key: size, cel: "entries.plan == 'free' && int(value) > 10", DAY}, {key: size, DAY}]}
`

// expandDay replaces each DAY in yaml by a limit of 1 per day.
func expandDay(yaml string) string {
	return strings.ReplaceAll(yaml, "DAY", "rate_limit: {unit: day, requests_per_unit: 1}")
}

func TestConditionsComeAfterExactValuesAndBeforePatterns(t *testing.T) {
	d := compileFiles(t, expandDay(conditions)).Domain("d")
	for _, c := range []struct {
		request []string
		want    string
	}{
		{[]string{"ip", "10.0.0.1"}, "ip=10.0.0.1"},
		{[]string{"ip", "10.1.2.3"}, "ip=cidr(10.1.0.0/16)"},
		{[]string{"ip", "10.2.2.3"}, ""}, // the condition has no limit
		{[]string{"ip", "192.168.1.1"}, ""},
		{[]string{"ip", "192.169.1.1"}, "ip=not cidr(::/0)"}, // a condition comes before a pattern
		{[]string{"ip", "text"}, "ip=not cidr(::/0)"},
		{[]string{"ip", "2001:db8::1"}, "ip"},
		{[]string{"ip", "cidr(10.1.0.0/16)"}, "ip=not cidr(::/0)"}, // the text of a condition is no value
		{[]string{"method", "GET"}, "method=in(GET HEAD)"},
		{[]string{"method", "GET", "path", "/api/x"}, "method=in(GET HEAD) > path=prefix(/api/)"},
		{[]string{"method", "GET", "path", "/x"}, ""},
		{[]string{"method", "POST"}, "method"},
		{[]string{"version", "v12"}, "version=regex(v[0-9]+)"},
		{[]string{"version", "12"}, ""},
		{[]string{"plan", "free", "size", "11"}, "plan > size=cel(entries.plan == 'free' && int(value) > 10)"},
		{[]string{"plan", "free", "size", "9"}, "plan > size"},
		{[]string{"plan", "free", "size", "large"}, "plan > size"}, // the expression fails
		{[]string{"plan", "gold", "size", "11"}, "plan > size"},
	} {
		assert.Equal(t, c.want, matchedPath(d, c.request...), c.request)
		trace := d.TraceWithBudget(new(Budget), entries(c.request...))
		assert.Equal(t, d.Match(entries(c.request...)), trace.Rule, c.request)
		for _, step := range trace.Steps {
			if step.Winner != nil {
				for _, candidate := range step.Candidates {
					assert.LessOrEqual(t, step.Winner.Kind, candidate.Kind, c.request)
				}
			}
		}
	}
}

func TestEachValueOfAConditionHasItsCounterUnlessShared(t *testing.T) {
	c := compileFiles(t, expandDay(`domain: d
descriptors:
- {key: ip, cidr: [10.0.0.0/8], DAY}
- {key: ip, not: {in: [a|b, c*]}, share_threshold: true, DAY}
`)).Domain("d")
	keyOf := func(keysAndValues ...string) string {
		return string(c.Match(entries(keysAndValues...)).AppendKey(nil, "d", entries(keysAndValues...)))
	}
	assert.Equal(t, "d|ip=10.1.1.1", keyOf("ip", "10.1.1.1"))
	assert.Equal(t, "d|ip==not%20in(a%7Cb%20c%2A)", keyOf("ip", "x"))
	assert.Equal(t, keyOf("ip", "y"), keyOf("ip", "x"))
}

func TestMetricsOfAConditionHaveItsText(t *testing.T) {
	c := compileFiles(t, expandDay(`domain: d
descriptors:
- {key: ip, cidr: [10.0.0.0/8], DAY}
- {key: user, prefix: a, value_to_metric: true, DAY}
`)).Domain("d")
	for want, request := range map[string][]string{"d.ip_cidr(10.0.0.0/8)": {"ip", "10.1.1.1"}, "d.user_ab": {"user", "ab"}} {
		r := c.Match(entries(request...))
		assert.Equal(t, want, string(r.AppendMetricKey(nil, "d", entries(request...))))
	}
	assert.Equal(t, "d > user=ab", c.Match(entries("user", "ab")).MetricPath(entries("user", "ab")))
	assert.False(t, c.Match(entries("ip", "10.1.1.1")).MetricKeyVaries())
}

func TestChangedListFileChangesTheRule(t *testing.T) {
	path := filepath.Join(t.TempDir(), "deny.txt")
	compileList := func(list string) *Config {
		require.NoError(t, os.WriteFile(path, []byte(list), 0o600))
		set, err := limitsfile.Parse([]limitsfile.File{{Name: path + ".yaml", Data: []byte(expandDay("domain: d\ndescriptors: [{key: ip, in: {file: deny.txt}, DAY}]"))}},
			limitsfile.Options{ReadList: os.ReadFile})
		require.NoError(t, err)
		return Compile(set)
	}
	oldConfig, sameConfig, changedConfig := compileList("a"), compileList("# none\na\n"), compileList("a\nb")
	assert.Equal(t, Changes{}, sameConfig.ChangesFrom(oldConfig))
	assert.Equal(t, oldConfig.Hash(), sameConfig.Hash())
	assert.Equal(t, changedPaths{changed: []string{"d > ip=in(file deny.txt)"}}, pathsOf(changedConfig.ChangesFrom(oldConfig)))
	assert.NotEqual(t, oldConfig.Hash(), changedConfig.Hash())
}

func TestFailedExpressionDoesNotMatchAndIsObserved(t *testing.T) {
	c := compileFiles(t, expandDay(`domain: d
descriptors:
- {key: size, not: {cel: int(value) > 10}, DAY}
- {key: size, DAY}
`))
	observer := &failureObserver{}
	store := &Store{Observer: observer}
	store.Set(c)
	d := store.Load().Domain("d")
	assert.Equal(t, "size=not cel(int(value) > 10)", matchedPath(d, "size", "9"))
	assert.Equal(t, "size", matchedPath(d, "size", "11"))
	assert.Empty(t, observer.texts)
	assert.Equal(t, "size", matchedPath(d, "size", "large"))
	require.Len(t, observer.texts, 1)
	assert.Contains(t, observer.texts[0], "d size=not cel(int(value) > 10): type conversion error")

	trace := d.TraceWithBudget(new(Budget), entries("size", "large"))
	require.Len(t, trace.Steps[0].Candidates, 2)
	assert.ErrorContains(t, trace.Steps[0].Candidates[0].Failure, "type conversion error")
	assert.Len(t, observer.texts, 1, "a trace is not observed")
}

// failureObserver records the conditions that failed or were not tested.
type failureObserver struct{ texts []string }

func (o *failureObserver) ExpressionFailed(domain string, d *limitsfile.Descriptor, err error) {
	o.texts = append(o.texts, domain+" "+d.Label()+": "+err.Error())
}

func (o *failureObserver) ConditionNotTested(domain string, d *limitsfile.Descriptor) {
	o.texts = append(o.texts, domain+" "+d.Label()+": not tested")
}

func TestConditionMatchDoesNotAllocate(t *testing.T) {
	d := compileFiles(t, expandDay(conditions)).Domain("d")
	for _, request := range [][]string{{"ip", "10.1.2.3"}, {"ip", "2001:db8::1"}, {"method", "GET"}, {"version", "v1"}} {
		entryList := entries(request...)
		assert.Zero(t, testing.AllocsPerRun(100, func() { d.Match(entryList) }), request)
	}
}

// BenchmarkMatchCondition measures a match of each kind of condition. "exact" measures an exact match in a
// file without conditions, and "beside" measures an exact match in a file with a condition.
func BenchmarkMatchCondition(b *testing.B) {
	var addresses, values strings.Builder
	for i := range 100_000 {
		fmt.Fprintf(&addresses, "%d.%d.%d.0/24\n", 1+i>>16, i>>8&255, i&255)
		fmt.Fprintf(&values, "user-%06d\n", i)
	}
	files := map[string]string{"addresses": addresses.String(), "values": values.String()}
	readList := func(path string) ([]byte, error) { return []byte(files[path]), nil }
	for _, bench := range []struct{ name, fields, value string }{
		{"exact", "value: 10.1.2.3", "10.1.2.3"},
		{"beside", "value: 10.1.2.3", "10.1.2.3"},
		{"cidr", "cidr: [10.0.0.0/8, 192.168.0.0/16]", "10.1.2.3"},
		{"cidr-100000", "cidr: {file: addresses}", "1.2.3.4"},
		{"in", "in: [GET, HEAD, POST]", "POST"},
		{"in-100000", "in: {file: values}", "user-054321"},
		{"prefix", "prefix: /api/v1/", "/api/v1/items"},
		{"regex", "regex: 'v[0-9]+\\.[0-9]+'", "v12.7"},
		{"cel", "cel: 'value.startsWith(\"/api/\") && size(value) < 100'", "/api/v1/items"},
		{"cel-entries", "cel: 'entries.k == \"gold\" || value.endsWith(\".png\")'", "gold"},
		{"not-cidr", "not: {cidr: [10.0.0.0/8]}", "192.0.2.1"},
	} {
		b.Run(bench.name, func(b *testing.B) {
			yaml := "domain: d\ndescriptors:\n- {key: k, " + bench.fields + ", DAY}\n"
			if bench.name != "exact" {
				yaml += "- {key: k, cidr: [172.16.0.0/12], DAY}\n"
			}
			set, err := limitsfile.Parse([]limitsfile.File{{Name: "f", Data: []byte(expandDay(yaml))}}, limitsfile.Options{ReadList: readList})
			require.NoError(b, err)
			benchmarkMatch(b, Compile(set).Domain("d"), [][]*ratelimitv3.RateLimitDescriptor_Entry{entries("k", bench.value)}, true)
		})
	}
}

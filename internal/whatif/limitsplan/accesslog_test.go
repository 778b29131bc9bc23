package limitsplan

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/internal/observe/decisionlog"
)

const testMapping = `
time: start_time
domain: shop
denied: {field: response_code, equals: "429"}
hits: request.cost
descriptors:
  - - {key: tenant, field: request.headers.x-tenant}
  - - {key: method, value: any}
    - {key: path, field: path}
`

func accessReaderOf(t testing.TB, log string) Reader {
	t.Helper()
	m, err := ParseMapping("mapping.yaml", []byte(testMapping))
	require.NoError(t, err)
	r, err := NewReader("access.log", strings.NewReader(log), m)
	require.NoError(t, err)
	return r
}

func TestLineOfAccessLogBecomesARequest(t *testing.T) {
	const start = `{"start_time":"2026-11-20T10:00:00.5Z",`
	for name, test := range map[string]struct {
		line   string
		want   []string // descriptors
		hits   uint64
		denied bool
	}{
		"all fields":                        {start + `"response_code":200,"request":{"headers":{"x-tenant":"a"}},"path":"/x"}`, []string{"tenant=a", "method=any,path=/x"}, 1, false},
		"a denied request":                  {start + `"response_code":429,"path":"/x"}`, []string{"method=any,path=/x"}, 1, true},
		"field with dots":                   {start + `"request.headers.x-tenant":"a"}`, []string{"tenant=a"}, 1, false},
		"a dash stands for a missing value": {start + `"request":{"headers":{"x-tenant":"-"}},"path":"/x"}`, []string{"method=any,path=/x"}, 1, false},
		"null stands for a missing value":   {start + `"request":{"headers":{"x-tenant":null}},"path":"/x"}`, []string{"method=any,path=/x"}, 1, false},
		"several hits":                      {start + `"request":{"cost":7},"path":"/x"}`, []string{"method=any,path=/x"}, 7, false},
		"hits with a fraction":              {start + `"request":{"cost":2.9},"path":"/x"}`, []string{"method=any,path=/x"}, 2, false},
		"time in seconds":                   {`{"start_time":1795168800.5,"path":"/x"}`, []string{"method=any,path=/x"}, 1, false},
		"time in milliseconds":              {`{"start_time":"1795168800500","path":"/x"}`, []string{"method=any,path=/x"}, 1, false},
		"number and truth value":            {start + `"request":{"headers":{"x-tenant":12}},"path":true}`, []string{"tenant=12", "method=any,path=true"}, 1, false},
	} {
		t.Run(name, func(t *testing.T) {
			r := accessReaderOf(t, test.line)
			call, err := r.Next()
			require.NoError(t, err)
			assert.Equal(t, "shop", call.Request.Domain)
			assert.Equal(t, test.denied, call.Denied)
			assert.Equal(t, 500, call.Time.Nanosecond()/1_000_000)
			var got []string
			for i, d := range call.Request.Descriptors {
				var entries []string
				for _, e := range d.Entries {
					entries = append(entries, e.Key+"="+e.Value)
				}
				got = append(got, strings.Join(entries, ","))
				assert.Equal(t, test.denied, call.isOverLimit[i])
				if test.hits != 1 {
					assert.Equal(t, test.hits, d.GetHitsAddend().GetValue())
				}
			}
			assert.Equal(t, test.want, got)
		})
	}
}

func TestAccessLogLineWithoutDescriptorIsNoted(t *testing.T) {
	r := accessReaderOf(t, `{"start_time":1}`+"\n"+`{"start_time":1,"path":"/x"}`)
	_, err := r.Next()
	require.NoError(t, err)
	assert.Contains(t, r.Notes(), "access.log: 1 of 2 lines were left out, because they lack the fields of every descriptor")
}

func TestNotesNameMappingFieldsThatNoLineHas(t *testing.T) {
	r := accessReaderOf(t, `{"start_time":1,"path":"/x","request":{"headers":{"x-tenat":"a"}},"code":"429"}`)
	_, err := r.Next()
	require.NoError(t, err)
	assert.Equal(t, []string{
		"access.log: no line has a value in the field request.headers.x-tenant of the mapping; did you mean request.headers.x-tenat?",
		"access.log: no line has a value in the field request.cost of the mapping",
		"access.log: no line has a value in the field response_code of the mapping",
	}, r.Notes())
}

func TestReplayWithoutCallsNamesTheAbsentField(t *testing.T) {
	for name, test := range map[string]struct{ log, want string }{
		"no field of a descriptor": {`{"start_time":1,"paht":"/x"}`, "no call to replay\naccess.log: no line has a value in the field request.headers.x-tenant of the mapping\n" +
			"access.log: no line has a value in the field path of the mapping; did you mean paht?\n"},
		"empty log": {"\n \n", "no call to replay\naccess.log: the log has no lines"},
		"no rule":   {`{"start_time":1,"path":"/x"}`, "no call meets a rule of the new limits; the first call is method=any,path=/x in domain shop, and the rules of this domain begin with the keys tenant, trial, free, kept"},
		"no time":   {`{"start-time":1}`, "access.log:1: the line has no field start_time with the time; did you mean start-time?"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Run(t.Context(), compile(t, newLimits), accessReaderOf(t, test.log), Options{})
			assert.ErrorContains(t, err, test.want)
		})
	}
}

func TestErrorNamesTheBadLineOfAnAccessLog(t *testing.T) {
	for name, test := range map[string]struct{ line, want string }{
		"no object":               {`[1]`, "access.log:1: got no JSON object"},
		"no time":                 {`{"path":"/x"}`, "access.log:1: the line has no field start_time with the time"},
		"decision log":            {logOf(record(1, "tenant", "a", decisionlog.OK)), "access.log:1: got a record of a decision log; leave --access-log out"},
		"two objects":             {`{"start_time":1}{}`, "access.log:1: got no JSON object; an access log has a JSON object on each line: the line has more than one object"},
		"time out of range":       {`{"start_time":"2200-01-01T00:00:00Z"}`, "access.log:1: field start_time: got 2200-01-01T00:00:00Z, want a time from 1970 to 2199"},
		"time in another form":    {`{"start_time":"20/Nov/2026"}`, `access.log:1: field start_time: got "20/Nov/2026", want a time`},
		"hits that are no number": {`{"start_time":1,"request":{"cost":"many"}}`, `access.log:1: field request.cost: got "many", want a number of hits`},
		"huge hits":               {`{"start_time":1,"request":{"cost":1e300}}`, `access.log:1: field request.cost: got "1e300", want a number of hits`},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := accessReaderOf(t, test.line).Next()
			assert.ErrorContains(t, err, test.want)
		})
	}
}

func TestMappingWithProblemsIsRejected(t *testing.T) {
	for name, test := range map[string]struct{ mapping, want string }{
		"empty file":         {"", "m.yaml: file is empty: time, domain and descriptors are missing"},
		"a tab":              {"time: t\ndomain: d\ndescriptors:\n\t- [{key: a, field: b}]", "m.yaml:4:1: not valid YAML: a tab is in the indentation"},
		"open bracket":       {"time: t\ndescriptors: [[{key: a, field: b}]\n", "m.yaml:2:"},
		"no mapping":         {"- a", "m.yaml:1:1: mapping file: got a list, want a mapping with time, domain, "},
		"unknown field":      {"tmie: x", "m.yaml:1:1: unknown key tmie in mapping file; want time, domain, denied, hits or descriptors; did you mean time?"},
		"text for list":      {"time: t\ndescriptors: x", "m.yaml:2:14: descriptors: got x, want a list"},
		"no time":            {"denied: {field: x}", "time is missing"},
		"no equals":          {"denied: {field: x}", "m.yaml:1:9: equals is missing; want the value of the field in a denial"},
		"no domain":          {"time: t", "m.yaml:1:1: domain is missing"},
		"no descriptors":     {"time: t", "m.yaml:1:1: descriptors is missing"},
		"no entry":           {"descriptors: [[]]", "m.yaml:1:15: descriptor is empty; want a list of entries"},
		"field beside value": {"descriptors: [[{key: a, field: b, value: c}]]", "m.yaml:1:16: entry: want either field or value"},
		"too large":          {strings.Repeat("#", MaxMappingBytes+1), "m.yaml: file is 65537 bytes; maximum is 65536"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := ParseMapping("m.yaml", []byte(test.mapping))
			assert.ErrorContains(t, err, test.want)
			assert.NotContains(t, err.Error(), "limitsplan.")
		})
	}
}

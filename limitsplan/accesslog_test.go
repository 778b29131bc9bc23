package limitsplan

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
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

func TestAccessLogLineBecomesARequest(t *testing.T) {
	const start = `{"start_time":"2026-11-20T10:00:00.5Z",`
	for name, c := range map[string]struct {
		line   string
		want   []string // descriptors
		hits   uint64
		denied bool
	}{
		"all fields":             {start + `"response_code":200,"request":{"headers":{"x-tenant":"a"}},"path":"/x"}`, []string{"tenant=a", "method=any,path=/x"}, 1, false},
		"denied":                 {start + `"response_code":429,"path":"/x"}`, []string{"method=any,path=/x"}, 1, true},
		"field with dots":        {start + `"request.headers.x-tenant":"a"}`, []string{"tenant=a"}, 1, false},
		"empty and dash":         {start + `"request":{"headers":{"x-tenant":"-"}},"path":"/x"}`, []string{"method=any,path=/x"}, 1, false},
		"null":                   {start + `"request":{"headers":{"x-tenant":null}},"path":"/x"}`, []string{"method=any,path=/x"}, 1, false},
		"hits":                   {start + `"request":{"cost":7},"path":"/x"}`, []string{"method=any,path=/x"}, 7, false},
		"hits below a dot":       {start + `"request":{"cost":2.9},"path":"/x"}`, []string{"method=any,path=/x"}, 2, false},
		"time in seconds":        {`{"start_time":1795168800.5,"path":"/x"}`, []string{"method=any,path=/x"}, 1, false},
		"time in milliseconds":   {`{"start_time":"1795168800500","path":"/x"}`, []string{"method=any,path=/x"}, 1, false},
		"number and truth value": {start + `"request":{"headers":{"x-tenant":12}},"path":true}`, []string{"tenant=12", "method=any,path=true"}, 1, false},
	} {
		t.Run(name, func(t *testing.T) {
			r := accessReaderOf(t, c.line)
			call, err := r.Next()
			require.NoError(t, err)
			assert.Equal(t, "shop", call.Request.Domain)
			assert.Equal(t, c.denied, call.Denied)
			assert.Equal(t, 500, call.Time.Nanosecond()/1_000_000)
			var got []string
			for i, d := range call.Request.Descriptors {
				var entries []string
				for _, e := range d.Entries {
					entries = append(entries, e.Key+"="+e.Value)
				}
				got = append(got, strings.Join(entries, ","))
				assert.Equal(t, c.denied, call.deniedDescriptors[i])
				if c.hits != 1 {
					assert.Equal(t, c.hits, d.GetHitsAddend().GetValue())
				}
			}
			assert.Equal(t, c.want, got)
		})
	}
}

func TestAccessLogLineWithoutDescriptorIsNoted(t *testing.T) {
	r := accessReaderOf(t, `{"start_time":1}`+"\n"+`{"start_time":1,"path":"/x"}`)
	_, err := r.Next()
	require.NoError(t, err)
	assert.Equal(t, []string{"access.log: 1 of 2 lines have no field of a descriptor and were left out"}, r.Notes())
}

func TestBadAccessLogLineIsNamed(t *testing.T) {
	for name, c := range map[string]struct{ line, want string }{
		"no object":  {`[1]`, "access.log:1: got no JSON object"},
		"no time":    {`{"path":"/x"}`, `access.log:1: field start_time: got "", want a time in RFC 3339, or seconds or milliseconds since 1970`},
		"other time": {`{"start_time":"20/Nov/2026"}`, `access.log:1: field start_time: got "20/Nov/2026", want a time`},
		"other hits": {`{"start_time":1,"request":{"cost":"many"}}`, `access.log:1: field request.cost: got "many", want a number of hits`},
		"huge hits":  {`{"start_time":1,"request":{"cost":1e300}}`, `access.log:1: field request.cost: got "1e300", want a number of hits`},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := accessReaderOf(t, c.line).Next()
			assert.ErrorContains(t, err, c.want)
		})
	}
}

func TestMappingWithMistakesIsRejected(t *testing.T) {
	for name, c := range map[string]struct{ mapping, want string }{
		"empty":          {"", "m.yaml: file is empty: want time, domain and descriptors"},
		"a tab":          {"time: t\ndomain: d\ndescriptors:\n\t- [{key: a, field: b}]", "m.yaml:4:1: not valid YAML: a tab is in the indentation"},
		"open bracket":   {"time: t\ndescriptors: [[{key: a, field: b}]\n", "m.yaml:2:"},
		"no mapping":     {"- a", "m.yaml: unmarshal errors"},
		"unknown field":  {"start: x", "line 1: field start not found"},
		"all missing":    {"denied: {field: x}", "time is missing"},
		"no equals":      {"denied: {field: x}", "denied: want field and equals"},
		"no domain":      {"time: t", "m.yaml: domain is missing"},
		"no descriptors": {"time: t", "m.yaml: descriptors is missing"},
		"no entry":       {"descriptors: [[]]", "m.yaml: descriptors[0]: got no entry"},
		"two sources":    {"descriptors: [[{key: a, field: b, value: c}]]", "m.yaml: descriptors[0][0]: want key, and either field or value"},
		"too large":      {strings.Repeat("#", MaxMappingBytes+1), "m.yaml: got 65537 bytes, want at most 65536"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := ParseMapping("m.yaml", []byte(c.mapping))
			assert.ErrorContains(t, err, c.want)
			assert.NotContains(t, err.Error(), "limitsplan.")
		})
	}
}

func FuzzReaders(f *testing.F) {
	f.Add(testMapping, `{"start_time":1,"path":"/x"}`)
	f.Add("", `{"time":"2026-11-20T10:00:00Z","domain":"shop","descriptor":[{"key":"tenant","value":"a"}],"code":"OK","hits":-3}`)
	f.Add("", `{"time":"2026-11-20T10:00:00Z","dropped":3,"reason":"rate"}`)
	f.Add("time: [", "\x1f\x8b\x08")
	f.Fuzz(func(t *testing.T, mapping, log string) {
		var m *Mapping
		if mapping != "" {
			var err error
			if m, err = ParseMapping("m.yaml", []byte(mapping)); err != nil {
				return
			}
		}
		r, err := NewReader("x.log", strings.NewReader(log), m)
		if err != nil {
			return
		}
		_, _ = Run(t.Context(), compile(t, newLimits), r, Options{})
	})
}

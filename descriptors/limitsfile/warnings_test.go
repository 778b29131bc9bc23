package limitsfile

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// ruleFile returns a file whose descriptors are flow mappings, one a line from line 3 on.
func ruleFile(descriptors ...string) string {
	return "domain: d\ndescriptors:\n- {" + strings.Join(descriptors, "}\n- {") + "}\n"
}

func limitList(items ...string) string {
	return "key: k, rate_limits: [{" + strings.Join(items, "}, {") + "}]"
}

func TestRulesThatMustBeWrongGiveWarnings(t *testing.T) {
	for _, test := range []struct{ name, yaml, want string }{
		{"space before a value", ruleFile("key: k, value: ' a'"), `f:3:19: d > k= a: value: got " a" with spaces around it, which are part of the value; remove them`},
		{"space after a key", ruleFile("key: 'k '"), `f:3:9: d > k : key: got "k " with spaces around it`},
		{"space in a list", ruleFile("key: k, in: [a, 'b ']"), `f:3:20: d > k=in(a "b "): entry of in: got "b "`},
		{"network as an address", ruleFile("key: remote_address, value: 10.0.0.1/8"), "f:3:32: d > remote_address=10.0.0.1/8: value: got 10.0.0.1/8, which matches this text only; want cidr: [10.0.0.0/8] for its addresses"},
		{"network of all addresses", ruleFile("key: ip, value: 0.0.0.0/0"), "want cidr: [0.0.0.0/0]"},
		{"network of another key", ruleFile("key: ip, value: '2001:db8::/32'"), "want cidr: [2001:db8::/32]"},
		{"host name as an address", ruleFile("key: remote_address, value: example.com"), "value: got example.com, but remote_address is an IP address; want an address such as 10.0.0.1, or cidr"},
		{"network in a list of addresses", ruleFile("key: remote_address, in: [10.0.0.0/8]"), "entry of in: got 10.0.0.0/8, but remote_address is an IP address"},
		{"empty text in a list of addresses", ruleFile("key: remote_address, in: ['']"), "but remote_address is an IP address"},
		{"long form of an address", ruleFile("key: remote_address, value: '2001:DB8:0::1'"), "which Envoy never sends; want 2001:db8::1"},
		{"bits behind the length", ruleFile("key: masked_remote_address, value: 10.0.0.1/8"), "f:3:39: d > masked_remote_address=10.0.0.1/8: value: got 10.0.0.1/8, which Envoy never sends; want 10.0.0.0/8"},
		{"address as a network", ruleFile("key: masked_remote_address, value: 10.0.0.1"), "masked_remote_address is a network; want a network such as 10.0.0.0/8"},
		{"address in a list of networks", ruleFile("key: masked_remote_address, in: [10.0.0.1]"), "entry of in: got 10.0.0.1, but masked_remote_address is a network"},
		{"networks of networks", ruleFile("key: masked_remote_address, cidr: [10.0.0.0/8]"), "cidr matches no value of masked_remote_address"},
		{"no networks of networks", ruleFile("key: masked_remote_address, not: {cidr: [10.0.0.0/8]}"), "cidr matches no value of masked_remote_address"},
		{"expression with anchors", ruleFile("key: path, value: '^/api/.*$'"), "f:3:22: d > path=^/api/.*$: value: got ^/api/.*$, which is no regular expression here; want regex: '^/api/.*$', or in: ['^/api/.*$'] for the text"},
		{"expression with one anchor", ruleFile("key: path, value: '^/api/'"), "want regex: '^/api/'"},
		{"expression with a class", ruleFile(`key: path, value: '/v[0-9]+'`), "want regex: '/v[0-9]+'"},
		{"expression with a choice", ruleFile(`key: path, value: '/api/(a|b)'`), "want regex: '/api/(a|b)'"},
		{"expression for all values", ruleFile(`key: path, value: '.*'`), "want regex: '.*'"},
		{"expression for all values below a path", ruleFile(`key: path, value: '/a/.*'`), "want regex: '/a/.*'"},
		{"key with a value", ruleFile("key: tenant=acme"), "f:3:9: d > tenant=acme: key: got tenant=acme, which no request with the key tenant has; want key: tenant and value: acme"},
		{"octal number", ruleFile("key: k, rate_limit: {unit: day, requests_per_unit: 010}"), "f:3:55: d > k: requests_per_unit: got 010, which YAML reads as the octal number 8; write 8 or 10"},
		{"curly quotes around a value", ruleFile("key: k, value: “a”"), `f:3:19: d > k=“a”: value: got “a” with curly quotes, which are part of the text; write "a"`},
		{"two closing quotes around a key", ruleFile("key: ”k”"), `key: got ”k” with curly quotes`},
		{"curly quotes around a domain", strings.Replace(ruleFile("key: k"), "domain: d", "domain: ‘d’", 1), `f:1:9: ‘d’: domain: got ‘d’ with curly quotes`},
		{"prefix with a wildcard", ruleFile("key: path, prefix: /api/*"), "f:3:23: d > path=prefix(/api/*): prefix: got /api/*, whose special characters stand for themselves; want the start of the values without them, or regex"},
		{"prefix with an expression", ruleFile("key: path, not: {prefix: ^/api/}"), "prefix: got ^/api/, whose special characters"},
		{"replaced name that no limit has", ruleFile("key: k, rate_limit: {unit: day, requests_per_unit: 1, name: m, replaces: [{name: n}]}"), "f:3: d: replaces: no limit of the domain has the name n"},
		{"empty bucket", ruleFile("key: k, rate_limit: {unit: day, requests_per_unit: 0, algorithm: token_bucket, burst: 5}"), "d > k: burst: got 5 with requests_per_unit 0, which never refills the bucket, so no request passes"},

		{"value behind all values", ruleFile("key: k", "key: k, value: '*'"), "f:3: d > k: no request reaches this descriptor, because k=* at f:4 matches first"},
		{"pattern behind a shorter one", ruleFile("key: k, value: 'a*'", "key: k, value: 'a*b'"), "f:4: d > k=a*b: no request reaches this descriptor, because k=a* at f:3 matches first"},
		{"key behind a pattern of keys", ruleFile("key: kay", "key: 'k*'"), "f:3: d > kay: no request reaches this descriptor, because k* at f:4"},
		{"child behind another", ruleFile("key: k, descriptors: [{key: c}, {key: c, value: '*'}]"), "f:3: d > k > c: no request"},

		{"shorter window with the same limit", ruleFile(limitList("unit: minute, requests_per_unit: 5", "unit: hour, requests_per_unit: 5")), "f:3: d > k: 5 per minute never denies, because 5 per hour is always tighter"},
		{"longer log", ruleFile(limitList("unit: minute, requests_per_unit: 1, algorithm: sliding_log", "unit: hour, requests_per_unit: 60, algorithm: sliding_log")), "60 per hour, sliding_log never denies, because 1 per minute, sliding_log is always tighter"},
		{"many short windows in a long one", ruleFile(limitList("unit: second, requests_per_unit: 1", "unit: minute, requests_per_unit: 60, charge_denied: false")), "60 per minute never denies, because 1 per second is always tighter"},
		{"larger and faster bucket", ruleFile(limitList("unit: minute, requests_per_unit: 5, algorithm: token_bucket", "unit: second, requests_per_unit: 5, algorithm: token_bucket")), "5 per second, token_bucket never denies, because 5 per minute, token_bucket is always tighter"},
		{"bucket of the same size and rate", ruleFile(limitList("unit: minute, requests_per_unit: 60, algorithm: token_bucket, burst: 5", "unit: second, requests_per_unit: 1, algorithm: token_bucket, burst: 5")), "1 per second, token_bucket, burst 5 never denies, because 60 per minute, token_bucket, burst 5 is always tighter"},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, errs, warnings := load(test.yaml, Options{})
			require.Empty(t, errs)
			assert.Contains(t, warnings, test.want)
			assert.Len(t, strings.Split(warnings, "\n"), 1)
		})
	}
}

func TestRulesThatCanMatchHaveNoWarning(t *testing.T) {
	for name, yaml := range map[string]string{
		"exact value after its pattern":    ruleFile("key: k, value: 'a*'", "key: k, value: ab"),
		"longer pattern first":             ruleFile("key: k, value: 'a*b'", "key: k, value: 'a*'", "key: k"),
		"pattern before a condition":       ruleFile("key: k, prefix: /a/b", "key: k, value: '/a/*'"),
		"larger network last":              ruleFile("key: k, cidr: [10.1.0.0/16]", "key: k, cidr: [10.0.0.0/8]", "key: k"),
		"one network outside":              ruleFile("key: k, cidr: [10.0.0.0/8]", "key: k, cidr: [10.1.0.0/16, 11.0.0.0/8]"),
		"condition of another key":         ruleFile("key: k, regex: '.*'", "key: l, in: [a]"),
		"condition before its negation":    ruleFile("key: k, in: [a]", "key: k, not: {in: [a]}"),
		"negation of a smaller list":       ruleFile("key: k, not: {in: [a]}", "key: k, in: [a]"),
		"list with a value of its own":     ruleFile("key: k, in: [a, b, c]", "key: k, value: a", "key: k, value: b", "key: l, value: c"),
		"longer key":                       ruleFile("key: 'k*', value: v", "key: kay"),
		"value as text":                    ruleFile("key: subnet, in: [10.0.0.0/8]", "key: path, in: ['^/api/.*$']"),
		"network of the masked address":    ruleFile("key: masked_remote_address, value: 10.0.0.0/8", "key: masked_remote_address, value: '2001:db8::/32'"),
		"pattern of addresses":             ruleFile("key: remote_address, value: '10.0.*'"),
		"numbers in other notations":       ruleFile("key: k, rate_limit: {unit: day, requests_per_unit: 0x1F}", "key: l, rate_limit: {unit: day, requests_per_unit: 007}", "key: m, rate_limit: {unit: day, requests_per_unit: 0}"),
		"quotes inside a text":             ruleFile("key: k, value: 'a “b” c', denial: {message: 'write “later”'}, rate_limit: {unit: day, requests_per_unit: 1}"),
		"plain prefix":                     ruleFile("key: path, prefix: /api/", "key: l, prefix: ':*:'"),
		"path with brackets":               ruleFile("key: path, value: /a(b)", "key: path, value: 'a[b]'", "key: price, value: 5$", "key: sum, value: a+b"),
		"optional end":                     ruleFile("key: k, regex: 'a($|b)'", "key: k, regex: '^(a|^b)$'"),
		"denied hits of the longer window": ruleFile(limitList("unit: second, requests_per_unit: 10", "unit: minute, requests_per_unit: 1000")),
		"limits of two speeds":             ruleFile(limitList("unit: second, requests_per_unit: 10", "unit: hour, requests_per_unit: 1000")),
		"weeks and months":                 ruleFile(limitList("unit: week, requests_per_unit: 10", "unit: month, requests_per_unit: 10, charge_denied: false, scope: instance")),
		"midnights of two zones":           ruleFile(limitList("unit: day, requests_per_unit: 5, timezone: Europe/Berlin", "unit: day, requests_per_unit: 5, scope: instance"), "key: l, rate_limits: [{unit: hour, requests_per_unit: 5}, {unit: day, requests_per_unit: 5, timezone: Europe/Berlin}]"),
		"more hits in each short window":   ruleFile(limitList("unit: second, requests_per_unit: 2", "unit: minute, requests_per_unit: 60, charge_denied: false")),
		"log with fewer hits":              ruleFile(limitList("unit: minute, requests_per_unit: 1, algorithm: sliding_log", "unit: hour, requests_per_unit: 59, algorithm: sliding_log")),
		"log that charges denied hits":     ruleFile(limitList("unit: minute, requests_per_unit: 1, algorithm: sliding_log, charge_denied: true", "unit: hour, requests_per_unit: 60, algorithm: sliding_log")),
		"slower but larger bucket":         ruleFile(limitList("unit: second, requests_per_unit: 5, algorithm: token_bucket, burst: 10", "unit: minute, requests_per_unit: 5, algorithm: token_bucket, burst: 20")),
		"bucket that charges denied hits":  ruleFile(limitList("unit: minute, requests_per_unit: 5, algorithm: token_bucket, charge_denied: true", "unit: second, requests_per_unit: 5, algorithm: token_bucket")),
		"tighter limit that is off":        ruleFile(limitList("unit: minute, requests_per_unit: 5", "unit: hour, requests_per_unit: 5, enabled: false")),
		"limit that replaces another":      ruleFile(limitList("unit: minute, requests_per_unit: 5, replaces: [{name: x}]", "unit: hour, requests_per_unit: 5"), "key: l, descriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: 1, name: x}}]"),
		"no value of a network":            ruleFile("key: masked_remote_address, value: ''"),
		"replaced by name":                 ruleFile(limitList("unit: minute, requests_per_unit: 5", "unit: hour, requests_per_unit: 5, name: n")),
	} {
		t.Run(name, func(t *testing.T) {
			_, errs, warnings := load(yaml, Options{})
			require.Empty(t, errs)
			assert.Empty(t, warnings)
		})
	}
}

var (
	// yamlBlock matches a block of YAML in a page, also in a list.
	yamlBlock = regexp.MustCompile("(?ms)^( *)```yaml\n(.*?)^ *```")
	// limitsText matches the start of a limits file, or of a list of descriptors.
	limitsText = regexp.MustCompile(`(?m)\A- key: |^domain: [^{]*\n(.+\n)*descriptors:.*\n *- (#.*\n *)?\{?key: `)
)

func TestExamplesAndLimitsInDocsLoadWithoutWarning(t *testing.T) {
	texts := map[string]string{}
	for _, pattern := range []string{"../../examples/*.yaml", "../../docs/*.md", "../../README.md"} {
		files, err := filepath.Glob(pattern)
		require.NoError(t, err)
		for _, file := range files {
			data, err := os.ReadFile(file)
			require.NoError(t, err)
			if strings.HasSuffix(file, ".yaml") {
				texts[file] = string(data)
			}
			for _, block := range yamlBlock.FindAllStringSubmatch(string(data), -1) {
				text := strings.ReplaceAll("\n"+block[2], "\n"+block[1], "\n")[1:]
				texts[file+"\n"+text] = text
			}
		}
	}
	checkedCount := 0
	for name, text := range texts {
		if !limitsText.MatchString(text) || strings.Contains(name, "xds.md") { // resources of xDS have a name
			continue
		}
		if strings.HasPrefix(text, "- key:") {
			text = "domain: d\ndescriptors:\n" + text
		}
		set, err := Parse([]File{{Name: "f", Data: []byte(text)}}, Options{ReadList: func(string) ([]byte, error) { return []byte("192.0.2.1\n"), nil }})
		if assert.NoError(t, err, name) {
			assert.Empty(t, set.Warnings, name)
		}
		checkedCount++
	}
	assert.GreaterOrEqual(t, checkedCount, 15)
}

func TestDomainGivesAWarningIfMostOfItsLimitsAreZero(t *testing.T) {
	for name, c := range map[string]struct {
		limits string
		want   string
	}{
		"most limits are 0":           {"[{key: a, rate_limit: {unit: day, requests_per_unit: 0}}, {key: b, descriptors: [{key: c, rate_limit: {unit: day, requests_per_unit: 0}}]}, {key: d, rate_limit: {unit: day, requests_per_unit: 1}}]", "2 of 3 limits are 0"},
		"both limits are 0":           {"[{key: a, rate_limit: {unit: day, requests_per_unit: 0}}, {key: b, rate_limit: {unit: day, requests_per_unit: 0}}]", "2 of 2 limits are 0"},
		"the only limit is 0":         {"[{key: a, rate_limit: {unit: day, requests_per_unit: 0}}]", ""},
		"half of the limits are 0":    {"[{key: a, rate_limit: {unit: day, requests_per_unit: 0}}, {key: b, rate_limit: {unit: day, requests_per_unit: 1}}]", ""},
		"limits in shadow mode are 0": {"[{key: a, shadow_mode: true, rate_limit: {unit: day, requests_per_unit: 0}}, {key: b, shadow_mode: true, rate_limit: {unit: day, requests_per_unit: 0}}]", ""},
	} {
		set, err := Parse([]File{{Name: "f", Data: []byte("domain: shop\ndescriptors: " + c.limits)}}, Options{})
		require.NoError(t, err, name)
		if c.want == "" {
			assert.Empty(t, set.Warnings, name)
			continue
		}
		require.Len(t, set.Warnings, 1, name)
		assert.Contains(t, set.Warnings[0].String(), "f:1: shop: "+c.want)
	}
}

func TestListInAFileOfAddressesGivesNoWarning(t *testing.T) {
	t.Parallel()
	readList := func(string) ([]byte, error) { return []byte("10.0.0.1\n"), nil }
	_, errs, warnings := load(ruleFile("key: remote_address, in: {file: list.txt}"), Options{ReadList: readList})
	assert.Empty(t, errs)
	assert.Empty(t, warnings)
}

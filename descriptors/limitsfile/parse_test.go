package limitsfile

import (
	"encoding/binary"
	"fmt"
	"strings"
	"testing"
	"unicode/utf16"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/internal/base/fields"
)

func TestErrorsHavePlacePathAndRemedy(t *testing.T) {
	for _, test := range []struct{ name, yaml, want string }{
		// Mistakes that envoyproxy/ratelimit rejects too.
		{"empty file", "", "f: file is empty: domain is missing"},
		{"file of comments", "# nothing\n", "f: file is empty: domain is missing"},
		{"null file", "~", "f:1:1: domain is missing; write domain: with the name in Envoy's filter"},
		{"root is a list", "[]", "f:1:1: limits file: got a list, want a mapping with domain and descriptors"},
		{"root is text", "abc", "f:1:1: limits file: got abc, want a mapping with domain and descriptors"},
		{"no domain", "descriptors: []", "f:1:1: domain is missing; write domain: with the name in Envoy's filter"},
		{"empty domain", "domain: ''", "f:1:9: domain is missing; write domain: with the name in Envoy's filter"},
		{"null domain", "domain: ~", "f:1:1: domain is missing; write domain: with the name in Envoy's filter"},
		{"domain is a list", "domain: [a]", "f:1:9: domain: got a list, want text"},
		{"wrong syntax", "domain: d\ndescriptors:\n\t- key: k\n", "f:3:1: not valid YAML: a tab is in the indentation; want spaces only"},
		{"invalid UTF-8", "domain: d\ndescriptors:\n- key: a\xffb\n", "f:3:9: byte 0xFF is not UTF-8"},
		{"control character", "domain: d\x01", "f:1:10: control character 0x01 is not allowed"},
		{"unknown key at the root", "domain: d\nfoo: 1", "f:2:1: d: unknown key foo; want domain, defaults, quota_order or descriptors"},
		{"unknown key", oneDescriptor("valeu: v"), "f:4:5: d > k: unknown key valeu; did you mean value?"},
		{"keys are case-sensitive", oneDescriptor("Value: v"), "f:4:5: d > k: unknown key Value; did you mean value?"},
		{"unknown key in rate_limit", oneDescriptor("rate_limit: {unit: minute, requests_per_units: 1}"), "f:4:32: d > k: unknown key requests_per_units; did you mean requests_per_unit?"},
		{"unknown key that belongs elsewhere", oneDescriptor("request_per_unit: 1"), "f:4:5: d > k: unknown key request_per_unit; did you mean requests_per_unit, which belongs in rate_limit?"},
		{"unknown key in replaces", oneDescriptor("rate_limit: {unit: day, requests_per_unit: 1, replaces: [{nam: x}]}"), "f:4:63: d > k: unknown key nam; did you mean name?\nf:4:62: d > k: an item of replaces needs the name of a limit"},
		{"key is a number", oneDescriptor("5: x"), "f:4:5: d > k: unknown key 5"},
		{"key is a list", "domain: d\n? [a]\n: b\n", "f:2:3: d: key: got a list, want a word"},
		{"list of texts", "domain: d\ndescriptors: [a]", "f:2:15: d: item of descriptors: got a, want a mapping"},
		{"list with null", "domain: d\ndescriptors: [~]", "f:2:15: d: item of descriptors: got null, want a mapping"},
		{"list of limits in rate_limit", oneDescriptor("rate_limit: [{unit: day}]"), "f:4:17: d > k: rate_limit: got a list, want a mapping such as {unit: minute, requests_per_unit: 5}; for several limits, write rate_limits"},
		{"replaces of texts", oneDescriptor("rate_limit: {unit: day, requests_per_unit: 1, replaces: [foo]}"), "f:4:62: d > k: item of replaces: got foo, want a mapping"},
		{"value is a list", oneDescriptor("value: [1]"), "f:4:12: d > k: value: got a list, want text"},
		{"value is a float", oneDescriptor("value: 1.5"), `f:4:12: d > k: value: got a number, want text; write "1.5" in quotes`},
		{"value is a whole float", oneDescriptor("value: 5.0"), `f:4:12: d > k: value: got a number, want text; write "5.0" in quotes`},
		{"value is infinite", oneDescriptor("value: .inf"), `f:4:12: d > k: value: got a number, want text; write ".inf" in quotes`},
		{"value is a broken octal number", oneDescriptor("value: 08"), `f:4:12: d > k: value: got a number, want text; write "08" in quotes`},
		{"value is over 2^63-1", oneDescriptor("value: 9223372036854775808"), `f:4:12: d > k: value: got a number, want text; write "9223372036854775808" in quotes`},
		{"value is not text", oneDescriptor("value: !!binary /w=="), `f:4:12: d > k: value: got "/w==", want text in UTF-8`},
		{"requests is a float", oneDescriptor("rate_limit: {unit: day, requests_per_unit: 5.0}"), "f:4:48: d > k: requests_per_unit: got 5.0, want a whole number from 0 to 4294967295"},
		{"requests is quoted", oneDescriptor(`rate_limit: {unit: day, requests_per_unit: "5"}`), `f:4:48: d > k: requests_per_unit: got "5", want a whole number from 0 to 4294967295 without quotes`},
		{"requests is negative", oneDescriptor("rate_limit: {unit: day, requests_per_unit: -1}"), "f:4:48: d > k: requests_per_unit: got -1, want a whole number from 0 to 4294967295"},
		{"requests is over 2^32-1", oneDescriptor("rate_limit: {unit: day, requests_per_unit: 4294967296}"), "f:4:48: d > k: requests_per_unit: got 4294967296, want a whole number from 0 to 4294967295"},
		{"requests is a boolean", oneDescriptor("rate_limit: {unit: day, requests_per_unit: yes}"), "f:4:48: d > k: requests_per_unit: got yes, want a whole number from 0 to 4294967295"},
		{"requests is a date", oneDescriptor("rate_limit: {unit: day, requests_per_unit: 2001-01-01}"), "f:4:48: d > k: requests_per_unit: got 2001-01-01, want a whole number from 0 to 4294967295"},
		{"boolean is quoted", oneDescriptor(`shadow_mode: "true"`), `f:4:18: d > k: shadow_mode: got "true", want true or false without quotes`},
		{"boolean is text", oneDescriptor("shadow_mode: ture"), "f:4:18: d > k: shadow_mode: got ture, want true or false"},
		{"enforce is zero", oneDescriptor("enforce: 0"), "f:4:14: d > k: enforce: got 0, want a number over 0 and up to 100"},
		{"enforce is a share", oneDescriptor("enforce: 5%"), "f:4:14: d > k: enforce: got 5%, want a number over 0 and up to 100"},
		{"boolean is a number", oneDescriptor("shadow_mode: 1"), "f:4:18: d > k: shadow_mode: got 1, want true or false"},
		{"descriptors is a mapping", "domain: d\ndescriptors: {}", "f:2:14: d: descriptors: got a mapping, want a list"},
		{"replaces is a mapping", oneDescriptor("rate_limit: {unit: day, requests_per_unit: 1, replaces: {name: x}}"), "f:4:61: d > k: replaces: got a mapping, want a list"},
		{"rate_limit is a list", oneDescriptor("rate_limit: []"), "f:4:17: d > k: rate_limit: got a list, want a mapping"},
		{"rate_limit is empty text", oneDescriptor("rate_limit: ''"), `f:4:17: d > k: rate_limit: got "", want a mapping`},
		{"metadata is text", oneDescriptor("metadata: x"), "f:4:15: d > k: metadata: got x, want a mapping"},
		{"no key", "domain: d\ndescriptors:\n- value: v\n- key: a\n- key: ''\n", "f:3:3: d > descriptor 1: key is missing\nf:5:8: d > descriptor 3: key is missing"},
		{"equal siblings", "domain: d\ndescriptors:\n- {key: k, value: v}\n- {key: k}\n- {key: k, value: v}\n- {key: k, value: ''}\n", "f:5:9: d > k=v: duplicate of the descriptor at f:3\nf:6:9: d > k: duplicate of the descriptor at f:4"},
		{"wrong value beside no value", "domain: d\ndescriptors: [{key: k, value: [1]}, {key: k}]", "f:2:31: d > k: value: got a list, want text"},
		{"null removes the key before it", "domain: d\ndescriptors: [{key: a, key: ~}]", "f:2:15: d > descriptor 1: key is missing"},
		{"no key twice", "domain: d\ndescriptors: [{value: v}, {value: v}]", "f:2:15: d > descriptor 1: key is missing\nf:2:27: d > descriptor 2: key is missing"},
		{"mistake in the condition in not", oneDescriptor("not: {in: a}"), "f:4:15: d > k: in: got a, want a list"},
		{"empty list in not", oneDescriptor("not: {in: []}"), "f:4:15: d > k: in: got an empty list, want at least one entry"},
		{"equal siblings further down", oneDescriptor("descriptors: [{key: a}, {key: a}]"), "f:4:35: d > k > a: duplicate of the descriptor at f:4"},
		{"unlimited with a unit", oneDescriptor("rate_limit: {unlimited: true, unit: day}"), "f:4:41: d > k: unit has no meaning beside unlimited: true"},
		{"no unit", oneDescriptor("rate_limit: {requests_per_unit: 1}"), "f:4:17: d > k: unit is missing; want millisecond, second, minute, hour, day, week, month or year"},
		{"plural unit", oneDescriptor("rate_limit: {unit: minutes, requests_per_unit: 1}"), "f:4:24: d > k: unit: got minutes, want millisecond, second, minute, hour, day, week, month or year; did you mean minute?"},
		{"unit with a space", oneDescriptor("rate_limit: {unit: ' day', requests_per_unit: 1}"), `f:4:24: d > k: unit: got " day", want millisecond, second, minute, hour, day, week, month or year; did you mean day?`},
		{"unknown unit", oneDescriptor("rate_limit: {unit: unknown, requests_per_unit: 1}"), "f:4:24: d > k: unit: got unknown, want millisecond, second"},
		{"nameless replaces", oneDescriptor("rate_limit: {unit: day, requests_per_unit: 1, replaces: [{name: ''}]}"), "f:4:69: d > k: an item of replaces needs the name of a limit"},
		{"empty replaces item", oneDescriptor("rate_limit: {unit: day, requests_per_unit: 1, replaces: [{}]}"), "f:4:62: d > k: an item of replaces needs the name of a limit"},
		{"limit that replaces itself", oneDescriptor("rate_limit: {unit: day, requests_per_unit: 1, name: a, replaces: [{name: a}]}"), "f:4:78: d > k: a limit can't replace itself (a)"},
		{"share_threshold without *", oneDescriptor("value: v\nshare_threshold: true"), "f:5:22: d > k=v: share_threshold needs a key or value with a *"},
		{"merging a number", oneDescriptor("<<: 5"), "f:4:9: d > k: merge key (<<): got 5, want a mapping or a list of mappings"},
		{"merging null", oneDescriptor("<<: ~"), "f:4:9: d > k: merge key (<<): got null, want a mapping or a list of mappings"},
		{"merging unknown keys", oneDescriptor("<<: {foo: 1}"), "f:4:10: d > k: unknown key foo; want descriptors, key"},
		{"quoted merge key", oneDescriptor(`"<<": {value: v}`), `f:4:5: d > k: unknown key "<<"`},
		{"unknown anchor", oneDescriptor("value: *v"), "f:4:12: not valid YAML: unknown anchor: got *v, want &v at a value above it"},
		{"error behind an alias used twice", "domain: d\ndescriptors:\n- {key: a, rate_limit: &l {unit: hours}}\n- {key: b, rate_limit: *l}\n", "f:3:34: d > a: unit: got hours, want millisecond, second, minute, hour, day, week, month or year; did you mean hour?"},

		// Mistakes in fields of rls.
		{"unknown algorithm", oneDescriptor("rate_limit: {unit: day, requests_per_unit: 1, algorithm: sliding_windows}"), "f:4:62: d > k: algorithm: got sliding_windows, want fixed_window, sliding_window, sliding_log, token_bucket, first_hit_window or concurrency; did you mean sliding_window?"},
		{"algorithm is a list", oneDescriptor("rate_limit: {unit: day, requests_per_unit: 1, algorithm: []}"), "f:4:62: d > k: algorithm: got a list, want fixed_window, sliding_window, sliding_log, token_bucket, first_hit_window or concurrency"},
		{"unknown scope", oneDescriptor("rate_limit: {unit: day, requests_per_unit: 1, scope: cluster}"), "f:4:58: d > k: scope: got cluster, want region, instance or global"},
		{"unknown on_backend_failure", oneDescriptor("rate_limit: {unit: day, requests_per_unit: 1, on_backend_failure: alow}"), "f:4:71: d > k: on_backend_failure: got alow, want local, allow or deny; did you mean allow?"},
		{"fallback_ratio of 0", oneDescriptor("rate_limit: {unit: day, requests_per_unit: 1, fallback_ratio: 0}"), "f:4:67: d > k: fallback_ratio: got 0, want a number over 0 and up to 1"},
		{"fallback_ratio over 1", oneDescriptor("rate_limit: {unit: day, requests_per_unit: 1, fallback_ratio: 1.1}"), "f:4:67: d > k: fallback_ratio: got 1.1, want a number over 0 and up to 1"},
		{"fallback_ratio is no number", oneDescriptor("rate_limit: {unit: day, requests_per_unit: 1, fallback_ratio: .nan}"), "f:4:67: d > k: fallback_ratio: got .nan, want a number over 0 and up to 1"},
		{"max_hits of 0", oneDescriptor("max_hits: 0"), "d > k: max_hits: got 0, want a whole number from 1 to 4294967295"},
		{"max_hits in a limit", oneDescriptor("rate_limit: {unit: day, requests_per_unit: 1, max_hits: 5}"), "max_hits"},
		{"unit_multiplier of 0", oneDescriptor("rate_limit: {unit: day, requests_per_unit: 1, unit_multiplier: 0}"), "f:4:68: d > k: unit_multiplier: got 0, want a whole number from 1 to 4294967295"},
		{"window too long", oneDescriptor("rate_limit: {unit: year, requests_per_unit: 1, unit_multiplier: 11}"), "f:4:69: d > k: unit_multiplier 11 makes the window longer than ten years; with unit year it can be at most 10"},
		{"burst without token_bucket", oneDescriptor("rate_limit: {unit: day, requests_per_unit: 1, burst: 2}"), "f:4:58: d > k: burst is only for algorithm token_bucket, not fixed_window"},
		{"burst that never fills", oneDescriptor("rate_limit: {unit: day, requests_per_unit: 1, algorithm: token_bucket, burst: 4000}"), "f:4:83: d > k: burst 4000 would take more than ten years to refill; at 1 per day it can be at most 3650"},
		{"lease with another algorithm", oneDescriptor("rate_limit: {unit: day, requests_per_unit: 1, lease: true, algorithm: sliding_log}"), "f:4:58: d > k: lease is only for algorithms fixed_window and token_bucket, not sliding_log"},
		{"lease in one replica", oneDescriptor("rate_limit: {unit: day, requests_per_unit: 1, lease: true, scope: instance}"), "f:4:58: d > k: lease is only for scope region, because a counter with scope instance needs no Redis"},
		{"lease is no flag", oneDescriptor("rate_limit: {unit: day, requests_per_unit: 1, lease: 5}"), "f:4:58: d > k: lease: got 5, want true or false"},
		{"lease_waste over a half", oneDescriptor("rate_limit: {unit: day, requests_per_unit: 1, lease: true, lease_waste: 0.6}"), "f:4:77: d > k: lease_waste: got 0.6, want a number over 0 and up to 0.5"},
		{"lease_waste without lease", oneDescriptor("rate_limit: {unit: day, requests_per_unit: 1, lease_waste: 0.1}"), "f:4:64: d > k: lease_waste has no meaning without lease: true"},
		{"misspelt lease_waste", oneDescriptor("rate_limit: {unit: day, requests_per_unit: 1, lease: true, lease_wast: 0.1}"), "did you mean lease_waste?"},
		{
			"several mistakes in one limit", oneDescriptor("rate_limit: {unit: year, requests_per_unit: 1, unit_multiplier: 11, burst: 3, fallback_ratio: 2, scope: all}"),
			"f:4:69: d > k: unit_multiplier 11 makes the window longer\nf:4:80: d > k: burst is only for algorithm token_bucket, not fixed_window\n" +
				"f:4:99: d > k: fallback_ratio: got 2, want a number over 0 and up to 1\nf:4:109: d > k: scope: got all, want region, instance or global",
		},
		{
			"several mistakes without a unit", oneDescriptor("rate_limit: {unit: fortnight, requests_per_unit: -1, unit_multiplier: 11, burst: 3}"),
			"f:4:24: d > k: unit: got fortnight, want millisecond, second\nf:4:54: d > k: requests_per_unit: got -1, want a whole number\nf:4:86: d > k: burst is only for algorithm token_bucket, not fixed_window",
		},
		{"unknown algorithm hides problems of its burst", oneDescriptor("rate_limit: {unit: day, requests_per_unit: 1, algorithm: bucket, burst: 4000}"), "f:4:62: d > k: algorithm: got bucket, want fixed_window"},
		{"unknown default algorithm hides problems of its burst", "domain: d\ndefaults: {algorithm: bucket}\ndescriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: 1, burst: 4000}}]", "f:2:23: d: algorithm: got bucket, want fixed_window"},
		{"hold without concurrency", oneDescriptor("rate_limit: {unit: day, requests_per_unit: 1, hold: 30s}"), "f:4:57: d > k: hold is only for algorithm concurrency, not fixed_window"},
		{"hold without a unit of time", oneDescriptor("rate_limit: {algorithm: concurrency, requests_per_unit: 1, hold: 30}"), "f:4:70: d > k: hold: got 30, want a time from 100ms to 24h, such as 30s"},
		{"hold too short", oneDescriptor("rate_limit: {algorithm: concurrency, requests_per_unit: 1, hold: 99ms}"), "f:4:70: d > k: hold: got 99ms, want a time from 100ms to 24h, such as 30s"},
		{"misspelt hold", oneDescriptor("rate_limit: {algorithm: concurrency, requests_per_unit: 1, holds: 30s}"), "f:4:64: d > k: unknown key holds; did you mean hold?"},
		{
			"concurrency with a window", oneDescriptor("rate_limit: {algorithm: concurrency, requests_per_unit: 1, unit: day, unit_multiplier: 2, charge_denied: true}"),
			"f:4:70: d > k: unit has no meaning with algorithm concurrency, which has no window\n" +
				"f:4:92: d > k: unit_multiplier has no meaning with algorithm concurrency, which has no window\n" +
				"f:4:110: d > k: charge_denied has no meaning with algorithm concurrency, because a denied request takes no slot",
		},
		{"concurrency without refunds", oneDescriptor("refunds: false\nrate_limit: {algorithm: concurrency, requests_per_unit: 1}"), "f:4:14: d > k: refunds: false has no meaning with algorithm concurrency, because refunds release its holds"},
		{"unlimited with an algorithm", oneDescriptor("rate_limit: {unlimited: true, algorithm: sliding_log}"), "f:4:46: d > k: algorithm has no meaning beside unlimited: true"},
		{"limit without indentation", oneDescriptor("rate_limit:\nunit: hour\nrequests_per_unit: 100"), "f:5:5: d > k: rate_limit is empty, and unit stands beside it; indent unit below rate_limit"},
		{"unit beside an empty limit", oneDescriptor("unit: hour\nrate_limit: null"), "f:4:5: d > k: rate_limit is empty, and unit stands beside it; indent unit below rate_limit"},
		{"a field of rls in a wrong object", oneDescriptor("burst: 5"), "f:4:5: d > k: burst has no meaning in the descriptor; it belongs in rate_limit or defaults"},
		{"a field of rls at the root", "domain: d\nenabled: true", "f:2:1: d: enabled has no meaning in the root of the file; it belongs in rate_limit or defaults"},
		{"rate_limit and rate_limits", oneDescriptor(tenAMinute + "\nrate_limits: []"), "f:5:18: d > k: rate_limit and rate_limits are both given; put all limits into rate_limits"},
		{"two limits of one counter", oneDescriptor("rate_limits:\n- {unit: minute, requests_per_unit: 5}\n- {unit: second, unit_multiplier: 60, requests_per_unit: 6}"), "f:6:7: d > k: duplicate of the limit in line 5 (5 per minute): with the same algorithm, window and scope they would share one counter"},
		{"too many limits", oneDescriptor("rate_limits: [" + strings.Repeat("{}, ", 100) + "{}]"), "f:4:18: d > k: rate_limits has 101 items; maximum is 100"},
		{"unlimited beside another limit", oneDescriptor("rate_limits: [{unit: minute, requests_per_unit: 5}, {unlimited: true}]"), "f:4:57: d > k: unlimited can't be one of several rate_limits"},
		{"defaults with a window", "domain: d\ndefaults: {unit_multiplier: 5}", "f:2:12: d: unit_multiplier has no meaning in defaults; it belongs in rate_limit"},
		{"defaults is a list", "domain: d\ndefaults: []", "f:2:11: d: defaults: got a list, want a mapping"},
		{"unknown default algorithm", "domain: d\ndefaults: {algorithm: gcra}", "f:2:23: d: algorithm: got gcra, want fixed_window"},
		{"default burst that never fills", "domain: d\ndefaults: {algorithm: token_bucket, burst: 4000}\ndescriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: 1}}]", "f:3:36: d > k: burst 4000 would take more than ten years to refill"},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, errs, _ := load(test.yaml, Options{})
			require.NotEmpty(t, errs)
			got, want := strings.Split(errs, "\n"), strings.Split(test.want, "\n")
			assert.Len(t, got, len(want), errs)
			for _, line := range want {
				assert.Contains(t, errs, line)
			}
		})
	}
}

func TestParseReportsAllErrorsInOrder(t *testing.T) {
	a := "domain: shop\ndescriptors:\n- key: a\n  rate_limit: {unit: minuts, requests_per_unit: x}\n  descriptors:\n  - key: b\n    valu: c\n- value: d\n"
	b := "descriptors:\n- {key: k, shadow_mode: 1}\n"
	_, err := Parse([]File{{"a.yaml", []byte(a)}, {"b.yaml", []byte(b)}}, Options{})
	var problems fields.Problems
	require.ErrorAs(t, err, &problems)
	var got []string
	for _, p := range problems {
		got = append(got, fmt.Sprintf("%s:%d:%d %s", p.File, p.Line, p.Column, p.Path))
	}
	assert.Equal(t, []string{
		"a.yaml:4:22 shop > a",
		"a.yaml:4:49 shop > a",
		"a.yaml:7:5 shop > a > b",
		"a.yaml:8:3 shop > descriptor 2",
		"b.yaml:1:1 ",
		"b.yaml:2:25 k",
	}, got)
}

func TestProbableMistakesGiveWarnings(t *testing.T) {
	for _, test := range []struct{ name, yaml, want string }{
		{"enforce beside shadow_mode", oneDescriptor("shadow_mode: true\nenforce: 5"), "f:5:14: d > k: enforce has no effect beside shadow_mode, which never denies; remove one of them"},
		{"max_hits without a limit", oneDescriptor("max_hits: 5"), "f:4:15: d > k: max_hits has no effect without a limit in the same descriptor; add rate_limit, or remove max_hits"},
		{"shadow_mode in rate_limit", oneDescriptor("rate_limit: {unit: day, requests_per_unit: 1, shadow_mode: true}"), "f:4:51: d > k: shadow_mode has no meaning in rate_limit and is ignored; it belongs in the descriptor"},
		{"unlimited on the descriptor", oneDescriptor("unlimited: true"), "f:4:5: d > k: unlimited has no meaning in the descriptor and is ignored; it belongs in rate_limit"},
		{"name on the descriptor", oneDescriptor("name: x"), "f:4:5: d > k: name has no meaning in the descriptor and is ignored; it belongs in rate_limit or an item of replaces"},
		{"unit on the descriptor without rate_limit", oneDescriptor("unit: day"), "f:4:5: d > k: unit has no meaning in the descriptor and is ignored; it belongs in rate_limit"},
		{"descriptors given twice", "domain: d\ndescriptors: []\ndescriptors: []", "f:3:1: d: descriptors is given twice; the last one counts"},
		{"unit at the root", "domain: d\nunit: day", "f:2:1: d: unit has no meaning in the root of the file and is ignored; it belongs in rate_limit"},
		{"requests_per_unit missing", oneDescriptor("rate_limit: {unit: day}"), "f:4:17: d > k: requests_per_unit is missing, so no request passes; write requests_per_unit: 0 if that is meant"},
		{"lease of a small limit", oneDescriptor("rate_limit: {unit: day, requests_per_unit: 100, lease: true}"), "f:4:60: d > k: lease has no effect, because lease_waste 0.01 of 100 hits is fewer than 2 permits"},
		{"junk unit of unlimited", oneDescriptor("rate_limit: {unlimited: true, unit: foo}"), "f:4:41: d > k: unit foo is unknown, and has no meaning beside unlimited: true"},
		{"field given twice", oneDescriptor("value: a\nvalue: b"), "f:5:5: d > k=b: value is given twice; the last one counts"},
		{"limit given twice", oneDescriptor("rate_limit: {unit: day, requests_per_unit: 1}\nrate_limit: {requests_per_unit: 2}"), "f:5:5: d > k: rate_limit is given twice; of equal fields the last one counts"},
		{"metadata given twice", oneDescriptor("metadata: {a: 1}\nmetadata: {b: 2}"), "f:5:5: d > k: metadata is given twice; the last one counts"},
		{"merge key after fields", oneDescriptor("value: a\n<<: {value: b}"), "f:5:5: d > k=b: << overrides the fields before it, as in envoyproxy/ratelimit; put it first"},
		{"second document", "domain: d\n---\nfoo: 1\n", "f:2:1: rls reads only the first YAML document of a file; the other documents have no effect"},
		{"broken second document", "domain: d\n---\n[\n", "f: rls reads only the first YAML document of a file; the other documents have no effect"},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, errs, warnings := load(test.yaml, Options{})
			require.Empty(t, errs)
			assert.Equal(t, test.want, warnings)
		})
	}
}

func TestMappingsGivenTwiceAreMerged(t *testing.T) {
	set, errs, warnings := load(`
domain: d
defaults: {algorithm: sliding_log, scope: instance}
defaults: {algorithm: sliding_window}
descriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: 1}}]
`, Options{})
	require.Empty(t, errs)
	assert.Equal(t, "f:4:1: d: defaults is given twice; of equal fields the last one counts", warnings)
	assert.Equal(t, "1 per day, sliding_window, per instance", set.Domains[0].Descriptors[0].Limits[0].String())

	_, errs, warnings = load("domain: d\ndefaults: {algorithm: sliding_log}\ndefaults:\n", Options{})
	require.Empty(t, errs)
	assert.Equal(t, "f:3:1: d: defaults is given twice; the last one counts", warnings, "null removes the fields before it")
}

func TestValidFilesHaveNoProblems(t *testing.T) {
	for name, yaml := range map[string]string{
		"domain alone":                  "domain: d",
		"empty value and a condition":   oneDescriptor("value: ''\nprefix: a"),
		"merge key before fields":       "domain: d\ndescriptors: [{<<: {value: v}, key: k}]",
		"null descriptors":              "domain: d\ndescriptors:",
		"no descriptors":                "domain: d\ndescriptors: []",
		"null rate_limit":               oneDescriptor("rate_limit:"),
		"limit of 0":                    oneDescriptor("rate_limit: {unit: day, requests_per_unit: 0}"),
		"largest limit":                 oneDescriptor("rate_limit: {unit: day, requests_per_unit: 4294967295}"),
		"unit in any case":              oneDescriptor("rate_limit: {unit: MiNuTe, requests_per_unit: 1}"),
		"null replaces":                 oneDescriptor("rate_limit: {unit: day, requests_per_unit: 1, replaces: }"),
		"overlapping wildcards":         "domain: d\ndescriptors: [{key: k, value: a*}, {key: k, value: '*b'}]",
		"a value and none":              "domain: d\ndescriptors: [{key: k, value: a}, {key: k}]",
		"keys and values apart":         "domain: d\ndescriptors: [{key: a_b}, {key: a, value: b}]",
		"equal names":                   "domain: d\ndescriptors: [{key: a, rate_limit: {unit: day, requests_per_unit: 1, name: n}}, {key: b, rate_limit: {unit: day, requests_per_unit: 1, name: n}}]",
		"JSON":                          `{"domain": "d", "descriptors": [{"key": "k", "rate_limit": {"unit": "day", "requests_per_unit": 1}}]}`,
		"byte order mark":               "\ufeffdomain: d\n",
		"carriage returns":              "domain: d\r\ndescriptors:\r\n  - key: k\r\n",
		"document start":                "---\ndomain: d\n",
		"share_threshold with a * key":  "domain: d\ndescriptors: [{key: k*, value: v, share_threshold: true}]",
		"anything in metadata":          oneDescriptor("metadata: {domain: 1.5, foo: [1, {x: y}], unit: ~}"),
		"several limits":                oneDescriptor("rate_limits: [{unit: minute, requests_per_unit: 5}, {unit: day, requests_per_unit: 50}, {unit: day, requests_per_unit: 50, algorithm: sliding_log}, {unit: day, requests_per_unit: 50, scope: instance}]"),
		"no limits":                     oneDescriptor("rate_limits: []"),
		"null limits":                   oneDescriptor("rate_limits:"),
		"unlimited and off":             oneDescriptor("rate_limit: {unlimited: true, enabled: false}"),
		"unlimited with its name":       oneDescriptor("rate_limit: {unlimited: true, name: x, replaces: [{name: y}], requests_per_unit: 5}\ndescriptors: [{key: l, rate_limit: {unlimited: true, name: y}}]"),
		"unlimited in a list, alone":    oneDescriptor("rate_limits: [{unlimited: true}]"),
		"ten years":                     oneDescriptor("rate_limit: {unit: year, unit_multiplier: 10, requests_per_unit: 1}"),
		"default burst of fixed window": "domain: d\ndefaults: {burst: 5}\ndescriptors: [{key: k, " + tenAMinute + "}]",
	} {
		t.Run(name, func(t *testing.T) {
			_, errs, warnings := load(yaml, Options{})
			assert.Empty(t, errs)
			assert.Empty(t, warnings)
		})
	}
}

func TestUTF16IsRead(t *testing.T) {
	data := []byte{0xff, 0xfe}
	for _, u := range utf16.Encode([]rune("domain: dömäin")) {
		data = binary.LittleEndian.AppendUint16(data, u)
	}
	c, err := Parse([]File{{"f", data}}, Options{})
	require.NoError(t, err)
	assert.Equal(t, "dömäin", c.Domains[0].Name)
}

// A text field keeps its spelling, also if YAML reads it as another type.
func TestTextFieldsKeepTheirSpelling(t *testing.T) {
	for _, value := range []string{"yes", "y", "True", "off", "0x1F", "010", "1_000", "0b11", "-5", "+5", "2001-01-01", "2001-01-01T00:00:00Z", "12:30", "9223372036854775807", "<<", "=", "1.2.3.4"} {
		assert.Equal(t, value, parseFirstDescriptor(t, oneDescriptor("value: "+value)).Value)
	}
	for value, text := range map[string]string{`"1.5"`: "1.5", "'~'": "~", "!!str 1.5": "1.5", "!!binary aGk=": "hi", "!foo bar": "bar", "|-\n  a\n  b": "a\nb"} {
		assert.Equal(t, text, parseFirstDescriptor(t, oneDescriptor("value: "+value)).Value, value)
	}
	for _, value := range []string{"", "~", "null", "''"} {
		assert.Empty(t, parseFirstDescriptor(t, oneDescriptor("value: "+value)).Value, "%q is no value", value)
	}
}

func TestNumbersAndBooleansOfYAML11AreRead(t *testing.T) {
	for text, want := range map[string]uint32{"0x1F": 31, "010": 8, "0o17": 15, "1_000": 1000, "0b11": 3, "+5": 5, `!!int "5"`: 5, "~": 0} {
		assert.Equal(t, want, parseFirstDescriptor(t, oneDescriptor("rate_limit: {unit: day, requests_per_unit: "+text+"}")).Limits[0].Requests, text)
	}
	for text, want := range map[string]bool{"yes": true, "Y": true, "on": true, "TRUE": true, "no": false, "n": false, "Off": false, "~": false} {
		assert.Equal(t, want, parseFirstDescriptor(t, oneDescriptor("shadow_mode: "+text)).ShadowMode, text)
	}
}

func TestLastOfEqualFieldsCounts(t *testing.T) {
	for _, test := range []struct{ name, yaml, want string }{
		{"equal keys", "domain: d\ndescriptors: [{key: a, key: b, " + tenAMinute + "}]", "d > b: 10 per minute"},
		{"equal texts", oneDescriptor("value: a\nvalue: b\n" + tenAMinute), "d > k=b: 10 per minute"},
		{"null removes the field", oneDescriptor(tenAMinute + "\nrate_limit:"), ""},
		{"equal lists", oneDescriptor("descriptors: [{key: a, " + tenAMinute + "}]\ndescriptors: [{key: b, " + tenAMinute + "}]"), "d > k > b: 10 per minute"},
		{"fields of rate_limit add up", oneDescriptor(tenAMinute + "\nrate_limit: {requests_per_unit: 7}"), "d > k: 7 per minute"},
	} {
		t.Run(test.name, func(t *testing.T) { assert.Equal(t, test.want, summarize(parse(t, test.yaml))) })
	}
}

func TestAnchorsAndMergeKeysAreRead(t *testing.T) {
	for _, test := range []struct{ name, yaml, want string }{
		{
			"alias",
			"domain: d\ndescriptors:\n- {key: a, rate_limit: &l {unit: day, requests_per_unit: 3}}\n- {key: b, rate_limit: *l}\n",
			"d > a: 3 per day\nd > b: 3 per day",
		},
		{
			"merge key first, rate_limit adding up",
			"domain: d\ndescriptors:\n- &a {key: k, value: v, " + tenAMinute + "}\n- {<<: *a, value: w, rate_limit: {requests_per_unit: 7}}\n",
			"d > k=v: 10 per minute\nd > k=w: 7 per minute",
		},
		{
			"merge key last overrides",
			"domain: d\ndescriptors:\n- {key: k, value: v, <<: {value: w, " + tenAMinute + "}}\n",
			"d > k=w: 10 per minute",
		},
		{
			"first of a list wins",
			"domain: d\ndescriptors:\n- &a {key: a, rate_limit: {unit: minute, requests_per_unit: 5}}\n- &b {key: b, rate_limit: {unit: hour}}\n- {<<: [*b, *a], key: c}\n",
			"d > a: 5 per minute\nd > b: 0 per hour\nd > c: 5 per hour",
		},
	} {
		t.Run(test.name, func(t *testing.T) { assert.Equal(t, test.want, summarize(parse(t, test.yaml))) })
	}
}

func TestDomainsKeepFileOrder(t *testing.T) {
	c, err := Parse([]File{{"b", []byte("domain: b")}, {"a", []byte("domain: a")}}, Options{})
	require.NoError(t, err)
	var names []string
	for _, d := range c.Domains {
		names = append(names, d.Name)
	}
	assert.Equal(t, []string{"b", "a"}, names, "in file order")
}

func TestDomainInTwoFilesNeedsMergeDomains(t *testing.T) {
	const a = "domain: d\ndescriptors: [{key: a, " + tenAMinute + "}]"
	const b = "domain: d\ndescriptors: [{key: b, " + tenAMinute + "}]"
	compileTwo := func(a, b string, merge bool) (string, error) {
		c, err := Parse([]File{{"a.yaml", []byte(a)}, {"b.yaml", []byte(b)}}, Options{MergeDomains: merge})
		if err != nil {
			return "", err
		}
		return summarize(c), nil
	}

	_, err := compileTwo(a, b, false)
	assert.EqualError(t, err, "b.yaml:1:9: domain d is already in a.yaml:1; to merge both, set MERGE_DOMAIN_CONFIG=true")

	got, err := compileTwo(a, b, true)
	require.NoError(t, err)
	assert.Equal(t, "d > a: 10 per minute\nd > b: 10 per minute", got)

	_, err = compileTwo(a, a, true)
	assert.EqualError(t, err, "b.yaml:2:21: d > a: duplicate of the descriptor at a.yaml:2")

	_, err = compileTwo("domain: d\ndescriptors: [{key: a, descriptors: [{key: x}]}]", "domain: d\ndescriptors: [{key: a, descriptors: [{key: y}]}]", true)
	assert.ErrorContains(t, err, "d > a: duplicate of the descriptor", "children of one parent can't be in two files")

	got, err = compileTwo(a, "defaults: {algorithm: sliding_log}\n"+b, true)
	require.NoError(t, err)
	assert.Equal(t, "d > a: 10 per minute, sliding_log\nd > b: 10 per minute, sliding_log", got,
		"defaults hold for all files of their domain")

	_, err = compileTwo("defaults: {scope: instance}\n"+a, "defaults: {scope: instance}\n"+b, true)
	assert.EqualError(t, err, "b.yaml:1:11: d: duplicate defaults: the domain has defaults in a.yaml:1")
}

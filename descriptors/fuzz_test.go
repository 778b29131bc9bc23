package descriptors

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"testing"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	"google.golang.org/protobuf/proto"

	"github.com/seed-81f232ab/rls/descriptors/limitsfile"
	"github.com/seed-81f232ab/rls/internal/base/fields"
)

// Each file compiles, or has problems that can be shown. Requests can be matched with each Config, and it can be printed.
func FuzzCompile(f *testing.F) {
	f.Add([]byte(exampleFile), true)
	f.Add([]byte(oneDescriptor("value: a*b\n"+tenAMinute)), false)
	f.Add([]byte("domain: d\ndescriptors: &a\n- {<<: {key: k}, descriptors: *a, metadata: {x: [1.5, ~]}}"), false)
	f.Fuzz(func(t *testing.T, data []byte, merge bool) {
		files := []limitsfile.File{{Name: "a", Data: data}, {Name: "b", Data: []byte("domain: d\ndescriptors: [{key: b}]")}}
		set, err := limitsfile.Parse(files, limitsfile.Options{MergeDomains: merge})
		if err != nil {
			problems := err.(fields.Problems)
			if len(problems) == 0 || set != nil {
				t.Fatalf("%v with %v", err, set)
			}
			for _, p := range problems {
				if p.Reason == "" || p.File == "" || strings.Contains(p.Reason, "%!(EXTRA") {
					t.Fatalf("%#v", p)
				}
			}
			return
		}
		c := Compile(set)
		if err := c.WriteTree(io.Discard); err != nil {
			t.Fatal(err)
		}
		if err := c.WriteLines(io.Discard); err != nil {
			t.Fatal(err)
		}
		for _, d := range c.Domains() {
			if c.Domain(d.Name) != d {
				t.Fatalf("domain %q is not found", d.Name)
			}
			checkSiblings(t, d, &d.root, path{domain: d.Name}, nil)
		}
	})
}

// checkSiblings checks that the key and value of each rule match this rule, and that responses about the rule can be sent.
func checkSiblings(t *testing.T, d *Domain, s *siblingNodes, parent path, parentEntries []*ratelimitv3.RateLimitDescriptor_Entry) {
	for i := range s.nodes {
		n := &s.nodes[i]
		nodePath := parent.child(n.Descriptor)
		entryList := append(parentEntries[:len(parentEntries):len(parentEntries)], entries(n.Key, n.Value)...)
		if got := s.find(entryList, &lookup{}); got != n && (n.Value != "" || got == nil || !got.HasWildcardKey && !got.MatchesManyValues()) && n.Condition == nil {
			t.Fatalf("%s: got %v for its own key and value", nodePath, got)
		}
		if r := n.rule; r != nil {
			r.AppendKey(nil, d.Name, entryList)
			r.AppendMetricKey(nil, d.Name, entryList)
			if path := r.MetricPath(entryList); !r.MetricKeyVaries() && path != r.Path {
				t.Fatalf("got %q, want %q", path, r.Path)
			}
			if replaced := r.ReplaceVaryingTexts(entryList, "other"); len(replaced) != len(entryList) {
				t.Fatalf("%s: got %d entries, want %d", nodePath, len(replaced), len(entryList))
			}
			for _, limit := range r.Limits {
				if _, err := proto.Marshal(limit.Response); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := proto.Marshal(r.Metadata); err != nil {
				t.Fatal(err)
			}
		}
		if n.children != nil {
			checkSiblings(t, d, n.children, nodePath, entryList)
		}
	}
}

// naiveMatch reports whether pattern matches text. It is a simple but slow form of Pattern.Match.
func naiveMatch(pattern, text string) bool {
	if pattern == "" {
		return text == ""
	}
	if pattern[0] == '*' {
		return naiveMatch(pattern[1:], text) || text != "" && naiveMatch(pattern, text[1:])
	}
	return text != "" && text[0] == pattern[0] && naiveMatch(pattern[1:], text[1:])
}

// wildcards.firstMatch finds the first wildcard that matches by naiveMatch, among few wildcards and among so many that
// pairs of bytes rule wildcards out.
func FuzzWildcard(f *testing.F) {
	f.Add("a*b", "axb", "k")
	f.Add("*\x00a*\x00*b\x00a**b\x00*ab*ab*", "aabab", "*")
	f.Add("/api/*\x00/api/v1/*\x00*v1*\x00*/v1/x\x00/api*x", "/api/v1/x", "k*")
	f.Fuzz(func(t *testing.T, patterns, text, key string) {
		if len(patterns) > 64 || len(text) > 64 || len(key) > 64 || strings.Count(patterns, "*") > 10 {
			return // naiveMatch would take too long
		}
		var w wildcards
		var want string // the first pattern that matches text
		hasMatch := false
		for i, p := range strings.Split(patterns, "\x00") {
			valuePattern, keyPattern := limitsfile.NewPattern(p), limitsfile.NewPattern(key)
			w.add(wildcard{keyPattern, valuePattern, i, &node{Descriptor: &limitsfile.Descriptor{Value: p}}})
			if matches := naiveMatch(p, text); matches != valuePattern.Match(text) {
				t.Fatalf("%q matches %q: %v", p, text, !matches)
			} else if matches && !hasMatch {
				want, hasMatch = p, true
			}
		}
		for _, k := range []string{key, strings.ReplaceAll(key, "*", ""), strings.ReplaceAll(key, "*", "xy")} {
			got := w.firstMatch(k, text, 1<<30)
			if (got != nil) != hasMatch || hasMatch && got.node.Value != want {
				t.Fatalf("first of %q for %q: got %v, want %q", patterns, text, got, want)
			}
		}
	})
}

// decodeKey returns the domain and the entries of a key.
func decodeKey(key []byte) (domain string, keysAndValues []string, err error) {
	unescape := func(b []byte) (string, error) {
		var text []byte
		for len(b) > 0 {
			c := b[0]
			switch {
			case c == '%':
				if len(b) < 3 {
					return "", fmt.Errorf("%q is cut", b)
				}
				if _, err := fmt.Sscanf(string(b[1:3]), "%02X", &c); err != nil {
					return "", err
				}
				b = b[3:]
			case c <= ' ' || c > '~':
				return "", fmt.Errorf("byte %#x is not readable", c)
			default:
				b = b[1:]
			}
			text = append(text, c)
		}
		return string(text), nil
	}
	parts := bytes.Split(key, []byte("|"))
	if domain, err = unescape(parts[0]); err != nil {
		return "", nil, err
	}
	for _, part := range parts[1:] {
		k, v, ok := bytes.Cut(part, []byte("="))
		if !ok {
			return "", nil, fmt.Errorf("%q has no =", part)
		}
		for _, s := range [][]byte{k, v} {
			text, err := unescape(s)
			if err != nil {
				return "", nil, err
			}
			keysAndValues = append(keysAndValues, text)
		}
	}
	return domain, keysAndValues, nil
}

// The domain and the entries can be read from a key, so different entries have different keys.
func FuzzAppendKey(f *testing.F) {
	f.Add("d", "k", "v", "l", "", uint8(2))
	f.Add("d|a=b", "a=b|c", "%7C", "*", "\xff\x00 ü", uint8(2))
	f.Fuzz(func(t *testing.T, domain, k1, v1, k2, v2 string, n uint8) {
		keysAndValues := []string{k1, v1, k2, v2}[:2*int(n%3)]
		key := (&Rule{}).AppendKey(nil, domain, entries(keysAndValues...))
		gotDomain, got, err := decodeKey(key)
		if err != nil || gotDomain != domain || fmt.Sprintf("%q", got) != fmt.Sprintf("%q", keysAndValues) {
			t.Fatalf("%q for %q %q reads %q %q, %v", key, domain, keysAndValues, gotDomain, got, err)
		}
		// The key of a shared pattern differs from the key of a value with the same text.
		sharedRule := &Rule{sharedValues: sharedValues([]*limitsfile.Descriptor{{Key: k1, Value: v1 + "*", ShareThreshold: true}})}
		if a, b := sharedRule.AppendKey(nil, domain, entries(k1, v1)), (&Rule{}).AppendKey(nil, domain, entries(k1, v1+"*")); bytes.Equal(a, b) {
			t.Fatalf("%q is both a pattern and a value", a)
		}
	})
}

package limitsfile

import (
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"github.com/stretchr/testify/assert"
)

func TestDenialProblemsHavePlaceAndRemedy(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ denial, want string }{
		"empty":             {"{}", "f:4:13: d > k: denial is empty; want message, body or headers in it"},
		"two bodies":        {"{message: a, body: b}", "message and body are both given; want one of them"},
		"unknown field":     {"{mesage: a}", "denial is empty; want message, body or headers in it\nf:4:14: d > k: unknown key mesage; did you mean message?"},
		"name of a header":  {"{headers: {'x y': a}}", `headers: got "x y", want the name of a header, such as x-reason`},
		"pseudo header":     {"{headers: {':status': 200}}", `headers: got ":status", want the name of a header`},
		"forbidden header":  {"{headers: {Content-Length: 1}}", "headers: Content-Length belongs to the connection; leave it out"},
		"line break":        {`{headers: {a: "b\nc"}}`, "header a: got a value of 3 bytes, want at most 1024 bytes in one line"},
		"list as a header":  {"{headers: {a: [b]}}", "header a: got a list, want text"},
		"null as a header":  {"{headers: {a: ~}}", "header a: got null, want text"},
		"same header twice": {"{headers: {a: b, A: c}}", "header A is given twice; want it once"},
		"not a mapping":     {"text", "denial: got text, want a mapping"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, errs, _ := load(oneDescriptor("denial: "+c.denial), Options{})
			assert.Contains(t, errs, c.want)
			assert.Equal(t, strings.Count(c.want, "\n"), strings.Count(errs, "\n"), "the file has no other problems: %s", errs)
		})
	}
}

func TestMessageIsPlainTextUnlessHeadersSayOtherwise(t *testing.T) {
	t.Parallel()
	assert.Equal(t, &Denial{[]byte("a"), []*corev3.HeaderValue{{Key: "x", Value: "1"}, {Key: "content-type", Value: "text/plain; charset=utf-8"}}}, parseFirstDescriptor(t, oneDescriptor("denial: {message: a, headers: {x: 1}}")).Denial)
	assert.Equal(t, &Denial{[]byte("a"), []*corev3.HeaderValue{{Key: "Content-Type", Value: "text/html"}}}, parseFirstDescriptor(t, oneDescriptor("denial: {message: a, headers: {Content-Type: text/html}}")).Denial)
	assert.Equal(t, &Denial{[]byte("a"), nil}, parseFirstDescriptor(t, oneDescriptor("denial: {body: a}")).Denial)
}

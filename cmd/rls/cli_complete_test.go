package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

const nestedLimits = `
domain: shop
descriptors:
  - key: tenant
    value: acme
    rate_limit: {unit: minute, requests_per_unit: 2}
  - key: tenant
    rate_limit: {unit: minute, requests_per_unit: 1}
    descriptors:
      - key: path
        value: /orders
        rate_limit: {unit: minute, requests_per_unit: 1}
`

func TestShellCompletesDomainsKeysAndRules(t *testing.T) {
	t.Parallel()
	limits := file(t, "limits.yaml", nestedLimits)
	r := start(t, nil, "--limits", limits)
	for _, place := range [][]string{{"--admin", r.debug}, {"--limits", limits}} {
		for _, test := range []struct {
			args []string
			want []string
		}{
			{[]string{"-d", "s"}, []string{"shop"}},
			{[]string{"-d", "other"}, nil},
			{[]string{"-d", "shop", "t"}, []string{"tenant=", "tenant=acme"}},
			{[]string{"-d", "shop", "tenant=acme,"}, []string{"tenant=acme,path=/orders"}},
			{[]string{"-d", "shop", "other=acme,"}, nil},
			{[]string{"-d", "other", "t"}, nil},
		} {
			assert.Equal(t, test.want, completed(t, append(append([]string{"explain"}, place...), test.args...)...), "%v %v", place, test.args)
		}
	}
	rules := []string{"shop > tenant", "shop > tenant > path=/orders", "shop > tenant=acme"}
	assert.Equal(t, rules, completed(t, "limits", "off", "--admin", r.debug, "sh"))
	assert.Equal(t, rules[1:2], completed(t, "tail", "--admin", r.debug, "--rule", "shop > tenant >"))
	assert.Empty(t, completed(t, "limits", "show", "--admin", "127.0.0.1:1", ""), "without a service and limits files")
}

// completed returns what rls offers to the shell for the last of args.
func completed(t *testing.T, args ...string) (texts []string) {
	t.Helper()
	out, _, code := rls(t, append([]string{"__complete"}, args...)...)
	assert.Zero(t, code)
	for line := range strings.Lines(out) {
		if !strings.HasPrefix(line, ":") {
			texts = append(texts, strings.TrimSpace(line))
		}
	}
	return texts
}

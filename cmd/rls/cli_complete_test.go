package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/seed-81f232ab/rls/internal/testkit/polltest"
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
	limits := writeFile(t, "limits.yaml", nestedLimits)
	service := start(t, nil, "--limits", limits)
	for _, origin := range [][]string{{"--admin", service.debug, "--timeout", maxWait.String()}, {"--limits", limits}} {
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
			assertCompletes(t, test.want, append(append([]string{"explain"}, origin...), test.args...)...)
		}
	}
	rules := []string{"shop > tenant", "shop > tenant > path=/orders", "shop > tenant=acme"}
	assertCompletes(t, rules, "limits", "off", "--admin", service.debug, "--timeout", maxWait.String(), "sh")
	assertCompletes(t, rules[1:2], "tail", "--admin", service.debug, "--rule", "shop > tenant >")
	assert.Empty(t, completionsOf(t, "limits", "show", "--admin", "127.0.0.1:1", ""), "without a service and limits files")
}

// assertCompletes checks what rls offers to the shell for the last of args. On a busy machine, the first answers of the
// service can come after the second for which a command without --timeout waits.
func assertCompletes(t *testing.T, want []string, args ...string) {
	t.Helper()
	polltest.Until(t, maxWait, func() bool { return slices.Equal(completionsOf(t, args...), want) }, args)
}

// completionsOf returns the texts that rls offers to the shell for the last of args.
func completionsOf(t *testing.T, args ...string) (texts []string) {
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

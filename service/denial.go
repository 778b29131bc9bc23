package service

import (
	"cmp"
	"slices"
	"strconv"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/seed-81f232ab/rls/descriptors"
)

// addDenial adds the body and the headers of a rule for its denials to resp. If the descriptor of headerStatus is denied,
// addDenial uses the rule of this descriptor. Otherwise it uses the rule of the last denied descriptor.
func (c *Call) addDenial(resp *rlsv3.RateLimitResponse, headerStatus *rlsv3.RateLimitResponse_DescriptorStatus) {
	deniedIndex := -1
	for i, st := range resp.Statuses {
		if st.Code == rlsv3.RateLimitResponse_OVER_LIMIT {
			deniedIndex = i
			if st == headerStatus {
				break
			}
		}
	}
	if deniedIndex < 0 || c.Rules[deniedIndex] == nil || c.Rules[deniedIndex].Denial == nil {
		return
	}
	denial := c.Rules[deniedIndex].Denial
	resp.RawBody = denial.Body
	resp.ResponseHeadersToAdd = append(resp.ResponseHeadersToAdd, denial.Headers...)
}

const maxPolicies = 16

// addPolicyHeaders adds the headers RateLimit-Policy and RateLimit, such as "api";q=100;w=60 and "api";r=42;t=7. Both have
// an item for each counted limit that can deny the request, but at most maxPolicies items. A denied request also gets
// Retry-After, unless the request can never pass.
func (c *Call) addPolicyHeaders(resp *rlsv3.RateLimitResponse, quotaMode bool) {
	var policies, states []byte // the values of the two headers
	var names []string
	for j := range c.hits {
		if c.hits[j].Shadow || len(names) == maxPolicies {
			continue
		}
		l, r := c.hits[j].Limit, c.results[j].Result
		name := uniqueName(names, policyName(c.limits[j]))
		if len(names) > 0 {
			policies, states = append(policies, ", "...), append(states, ", "...)
		}
		names = append(names, name)

		policies = append(policies, name...)
		policies = append(policies, ";q="...)
		policies = strconv.AppendInt(policies, l.Max(), 10)
		if !l.Algorithm.HasHolds() && l.Period()%secondMicros == 0 { // w is optional, and can't have a fraction
			policies = append(policies, ";w="...)
			policies = strconv.AppendInt(policies, l.Period()/secondMicros, 10)
		}

		states = append(states, name...)
		states = append(states, ";r="...)
		states = strconv.AppendInt(states, max(r.Remaining, 0), 10)
		states = append(states, ";t="...)
		states = strconv.AppendInt(states, wholeSeconds(l.DurationUntilReset(r)), 10)
	}
	if len(names) > 0 {
		resp.ResponseHeadersToAdd = append(resp.ResponseHeadersToAdd,
			&corev3.HeaderValue{Key: "RateLimit-Policy", Value: string(policies)},
			&corev3.HeaderValue{Key: "RateLimit", Value: string(states)})
	}
	if resp.OverallCode != rlsv3.RateLimitResponse_OVER_LIMIT {
		return
	}
	if wait := c.retryAfter(quotaMode, true); wait != endlessWait {
		resp.ResponseHeadersToAdd = append(resp.ResponseHeadersToAdd,
			&corev3.HeaderValue{Key: "Retry-After", Value: strconv.FormatInt(max(wholeSeconds(wait), 1), 10)})
	}
}

// policyName returns the name of l, or else the window in words, such as "per minute". The result is a string in the
// syntax of structured fields (RFC 9651): in quotes, with only visible ASCII characters and spaces.
func policyName(l *descriptors.RateLimit) string {
	quotedName := []byte{'"'}
	for _, c := range cmp.Or(l.Name, l.PerWindow()) {
		switch {
		case c == '"' || c == '\\':
			quotedName = append(quotedName, '\\', byte(c))
		case c < ' ' || c > '~':
			quotedName = append(quotedName, '?')
		default:
			quotedName = append(quotedName, byte(c))
		}
	}
	return string(append(quotedName, '"'))
}

// uniqueName returns name. If names already contains name, uniqueName adds a number before the closing quote.
func uniqueName(names []string, name string) string {
	newName := name
	for i := 2; slices.Contains(names, newName); i++ {
		newName = name[:len(name)-1] + " " + strconv.Itoa(i) + `"`
	}
	return newName
}

func wholeSeconds(micros int64) int64 { return (micros + secondMicros - 1) / secondMicros }

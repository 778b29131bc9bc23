//go:build parity

package sidebyside

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	confv3 "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

// domain is a limits file of the incumbent.
type domain struct {
	Name   string `yaml:"name,omitempty"` // of an xDS resource
	Domain string
	Rules  []*rule `yaml:"descriptors"`
}

// rule is a descriptor of a limits file of the incumbent.
type rule struct {
	Key            string
	Value          string    `yaml:"value,omitempty"`
	Limit          *limit    `yaml:"rate_limit,omitempty"`
	Rules          []*rule   `yaml:"descriptors,omitempty"`
	ShadowMode     bool      `yaml:"shadow_mode,omitempty"`
	QuotaMode      bool      `yaml:"quota_mode,omitempty"`
	DetailedMetric bool      `yaml:"detailed_metric,omitempty"`
	ValueToMetric  bool      `yaml:"value_to_metric,omitempty"`
	ShareThreshold bool      `yaml:"share_threshold,omitempty"`
	Metadata       yaml.Node `yaml:"metadata,omitempty"`
}

type limit struct {
	Unit            string `yaml:"unit,omitempty"`
	RequestsPerUnit uint32 `yaml:"requests_per_unit,omitempty"`
	Unlimited       bool   `yaml:"unlimited,omitempty"`
	Name            string `yaml:"name,omitempty"`
	Replaces        []struct{ Name string }
}

// readDomains returns the limits files at path. ok is false if a file has a field that the incumbent does not know,
// or if it is no limits file.
func readDomains(t *testing.T, path string) (domains []*domain, ok bool) {
	t.Helper()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	decoder.KnownFields(true)
	for {
		d := &domain{}
		switch err := decoder.Decode(d); {
		case errors.Is(err, io.EOF):
			return domains, len(domains) > 0
		case err != nil || d.Domain == "":
			return nil, false
		}
		domains = append(domains, d)
	}
}

// exampleDomains returns the limits files of the incumbent and of rls that both programs accept. Each domain gets
// the name of its file, so that both can load all of them.
func exampleDomains(t *testing.T, folders ...string) (domains []*domain) {
	t.Helper()
	for _, folder := range folders {
		require.NoError(t, filepath.WalkDir(folder, func(path string, entry os.DirEntry, err error) error {
			if err != nil || entry.IsDir() || filepath.Ext(path) != ".yaml" {
				return err
			}
			domainsOfFile, ok := readDomains(t, path)
			if !ok || isRejected(filepath.Base(path)) {
				return nil
			}
			for _, d := range domainsOfFile {
				d.Rules = withoutInnerStars(d.Rules)
				d.Domain = strings.TrimSuffix(filepath.Base(path), ".yaml") + "-" + d.Domain
				for slices.ContainsFunc(domains, func(other *domain) bool { return other.Domain == d.Domain }) {
					d.Domain += "-again"
				}
				domains = append(domains, d)
			}
			return nil
		}))
	}
	return domains
}

// isRejected reports whether a file of the incumbent's tests must be rejected.
func isRejected(name string) bool {
	for _, prefix := range []string{"bad_", "duplicate_", "empty_", "misspelled_", "non_", "replaces_", "unlimited_with_"} {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
}

// unitSeconds are the units of limits in seconds.
var unitSeconds = map[string]int64{"hour": 3600, "day": 86400, "week": 604_800, "month": 2_592_000, "year": 31_536_000}

// longestRun bounds the time of a test.
const longestRun = 10 * time.Minute

// quietUnits returns the units whose windows don't end during a test, and begin at different times. The incumbent
// has one counter for all limits of a descriptor whose windows begin at the same time.
func quietUnits() (units []string) {
	now := time.Now().Unix()
	var starts []int64
	for _, unit := range []string{"year", "month", "week", "day", "hour"} {
		seconds := unitSeconds[unit]
		start := now / seconds * seconds
		if start+seconds-now > int64(longestRun.Seconds()) && !slices.Contains(starts, start) {
			units, starts = append(units, unit), append(starts, start)
		}
	}
	return units
}

// eachRule calls f with all rules.
func eachRule(rules []*rule, f func(*rule)) {
	for _, rule := range rules {
		f(rule)
		eachRule(rule.Rules, f)
	}
}

// withoutInnerStars returns rules without those that have a * before the end of their value. See avoidedDifferences.
func withoutInnerStars(rules []*rule) []*rule {
	rules = slices.DeleteFunc(rules, func(r *rule) bool { return strings.Contains(strings.TrimSuffix(r.Value, "*"), "*") })
	for _, rule := range rules {
		rule.Rules = withoutInnerStars(rule.Rules)
	}
	return rules
}

// useQuietUnits replaces the units whose windows could end during a test.
func useQuietUnits(domains []*domain, units []string) {
	nextNumber := 0
	for _, d := range domains {
		eachRule(d.Rules, func(r *rule) {
			if r.Limit == nil || r.Limit.Unlimited {
				return
			}
			if unit := strings.ToLower(r.Limit.Unit); !slices.Contains(units, unit) {
				r.Limit.Unit = units[nextNumber%len(units)]
				nextNumber++
			}
		})
	}
}

// limitsFilesOf returns the limits files of domains.
func limitsFilesOf(t *testing.T, domains []*domain) limitsFiles {
	t.Helper()
	texts := limitsFiles{}
	for _, d := range domains {
		text, err := yaml.Marshal(d)
		require.NoError(t, err)
		texts[strings.ReplaceAll(d.Domain, "/", "-")] = string(text)
	}
	return texts
}

// xdsResources returns domains as an xDS server sends them.
func xdsResources(domains []*domain) (configs []*confv3.RateLimitConfig) {
	for _, d := range domains {
		configs = append(configs, &confv3.RateLimitConfig{Name: d.Domain, Domain: d.Domain, Descriptors: xdsDescriptors(d.Rules)})
	}
	return configs
}

func xdsDescriptors(rules []*rule) (converted []*confv3.RateLimitDescriptor) {
	for _, rule := range rules {
		descriptor := &confv3.RateLimitDescriptor{
			Key: rule.Key, Value: rule.Value, ShadowMode: rule.ShadowMode, QuotaMode: rule.QuotaMode, DetailedMetric: rule.DetailedMetric,
			Descriptors: xdsDescriptors(rule.Rules),
		}
		if l := rule.Limit; l != nil {
			descriptor.RateLimit = &confv3.RateLimitPolicy{
				Unit:            confv3.RateLimitUnit(confv3.RateLimitUnit_value[strings.ToUpper(l.Unit)]),
				RequestsPerUnit: l.RequestsPerUnit, Unlimited: l.Unlimited, Name: l.Name,
			}
			for _, replaced := range l.Replaces {
				descriptor.RateLimit.Replaces = append(descriptor.RateLimit.Replaces, &confv3.RateLimitReplace{Name: replaced.Name})
			}
		}
		converted = append(converted, descriptor)
	}
	return converted
}

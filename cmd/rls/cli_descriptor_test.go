package main

import (
	"strings"
	"testing"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/seed-81f232ab/rls/descriptors"
	"github.com/seed-81f232ab/rls/internal/base/entrytext"
)

func TestParseTargetReadsEntriesOrNamesTheMistake(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"tenant":                  "shop|tenant",
		"tenant=acme":             "shop|tenant=acme",
		"tenant=":                 "the value of tenant is empty; write tenant without = for any value",
		"a=1,tenant=":             "the value of tenant is empty",
		"tenant=acme,path=/a=b":   "shop|tenant=acme|path=/a%3Db",
		`tenant=a\,b`:             "shop|tenant=a%2Cb",
		`te\=nant\,x=y`:           "shop|te%3Dnant%2Cx=y",
		`tenant=a\\b`:             `shop|tenant=a\b`,
		"tenant=a|b c%":           "shop|tenant=a%7Cb%20c%25",
		"path=/api/*":             "shop|path=/api/*",
		"tenant=é":                "shop|tenant=%C3%A9",
		"":                        "has no key",
		"=x":                      "has no key",
		"=":                       "has no key",
		"a,,b":                    "entry 2 of the target has no key",
		`tenant=a\`:               `no character follows the last \`,
		"tenant=acme,path=\n\x00": "shop|tenant=acme|path=%0A%00",
	} {
		t.Run(text, func(t *testing.T) {
			got, err := parseTarget("shop", text)
			if err != nil {
				assert.Contains(t, err.Error(), want)
				return
			}
			assert.Equal(t, want, strings.ReplaceAll(got.String(), ",", "%2C"))
			_, err = descriptors.ParseTarget(got.String())
			assert.NoError(t, err)
		})
	}
	_, err := parseTarget("", "tenant=acme")
	assert.ErrorContains(t, err, "has no domain")
}

func TestParseRequestRequiresValues(t *testing.T) {
	t.Parallel()
	for text, entry := range map[string]string{"tenant": "1", "tenant=a,b": "2", "tenant=a,b,c": "2", "a=1,,b=2": "2", "": "1"} {
		_, err := parseRequest("shop", text)
		assert.ErrorContains(t, err, "entry "+entry+" has no =", text)
	}
	got, err := parseRequest("shop", "tenant=,path=/")
	require.NoError(t, err)
	assert.Equal(t, "shop|tenant|path=/", got.String())
}

func TestFormatDescriptorIsParsedBack(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var want ratelimitv3.RateLimitDescriptor
		for range rapid.IntRange(1, 3).Draw(t, "entries") {
			want.Entries = append(want.Entries, &ratelimitv3.RateLimitDescriptor_Entry{
				Key:   rapid.StringMatching(`[a=,\\é]{1,4}`).Draw(t, "key"),
				Value: rapid.StringMatching(`[a=,\\é]{0,4}`).Draw(t, "value"),
			})
		}
		text := entrytext.Format(want.Entries)
		got, err := parseRequest("shop", text)
		require.NoError(t, err)
		require.Len(t, got.Entries, len(want.Entries), text)
		for i, e := range got.Entries {
			assert.Equal(t, want.Entries[i].Key, e.Key, text)
			assert.Equal(t, want.Entries[i].Value, e.Value, text)
		}
	})
}

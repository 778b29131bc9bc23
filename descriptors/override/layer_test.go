package override

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/descriptors"
	"github.com/seed-81f232ab/rls/descriptors/limitsfile"
)

func TestLastGoodOverrideStaysInForce(t *testing.T) {
	const target = "shop|tenant=acme"
	noon := time.Date(2030, 1, 31, 12, 0, 0, 0, time.UTC)
	base := compile(t, shopLimits)
	withoutTenant := compile(t, "domain: shop\ndescriptors: [{key: other, rate_limit: {unit: day, requests_per_unit: 1}}]")
	tenantFixedWindow := compile(t, "domain: shop\ndescriptors: [{key: tenant, rate_limit: {unit: minute, requests_per_unit: 6}}]")
	tenantBucket := compile(t, "domain: shop\ndescriptors: [{key: tenant, rate_limit: {unit: minute, requests_per_unit: 6, algorithm: token_bucket}}]")
	var table Table
	for _, step := range []struct {
		name       string
		value      string // "" removes the override
		base       limits
		now        time.Time
		want       string // the limit of tenant=acme
		problem    string
		nextExpiry time.Time
	}{
		{"a good override", `{"requests_per_unit": 7}`, base, noon, "7 per minute", "", time.Time{}},
		{"an invalid override", `{"requests_per_unit": "many"}`, base, noon, "7 per minute", "want a whole number", time.Time{}},
		{"the limits are reloaded while the override is invalid", `{"requests_per_unit": "many"}`, compile(t, shopLimits), noon, "7 per minute", "want a whole number", time.Time{}},
		{"another good override", `{"requests_per_unit": 8}`, base, noon, "8 per minute", "", time.Time{}},
		{"an override that doesn't fit", `{"burst": 8}`, base, noon, "8 per minute", "burst is only for", time.Time{}},
		{"the rule is removed", `{"burst": 8}`, withoutTenant, noon, "nothing", "unknown descriptor tenant=acme", time.Time{}},
		{"the rule is back", `{"burst": 8}`, base, noon, "8 per minute", "burst is only for", time.Time{}},
		{"the rule is changed so that it fits", `{"burst": 8}`, tenantBucket, noon, "6 per minute, token_bucket, burst 8", "", time.Time{}},
		{"the rule is changed back", `{"burst": 8}`, tenantFixedWindow, noon, "6 per minute", "burst is only for", time.Time{}},
		{"an override that doesn't fit, with an end", `{"burst": 8, "expires_at": "2030-01-31T13:00:00Z"}`, tenantFixedWindow, noon, "6 per minute", "burst is only for", noon.Add(time.Hour)},
		{"the override is removed", ``, tenantFixedWindow, noon, "6 per minute", "", time.Time{}},
		{"an invalid override without a last good override", `nonsense`, base, noon, "100 per minute", "not JSON", time.Time{}},
		{"an override with an end", `{"factor": 2, "expires_at": "2030-01-31T13:00:00Z"}`, base, noon, "200 per minute", "", noon.Add(time.Hour)},
		{"an invalid override before the end of the last good override", `nonsense`, base, noon, "200 per minute", "not JSON", noon.Add(time.Hour)},
		{"an invalid override after the end of the last good override", `nonsense`, base, noon.Add(time.Hour), "100 per minute", "not JSON", time.Time{}},
		{"an expired override", `{"factor": 2, "expires_at": "2030-01-31T13:00:00Z"}`, base, noon.Add(time.Hour), "100 per minute", "", time.Time{}},
		{"an invalid override after an expired override", `nonsense`, base, noon, "100 per minute", "not JSON", time.Time{}},
	} {
		values := map[string]string{}
		if step.value != "" {
			values[target] = step.value
		}
		table.Set(values)
		set, nextExpiry := table.Apply(step.base.set, step.now)
		assert.Equal(t, step.want, matchedLimits(descriptors.Compile(set), "shop", "tenant", "acme"), step.name)
		assert.Equal(t, step.nextExpiry, nextExpiry, step.name)
		if step.value == "" {
			assert.Empty(t, table.States(), step.name)
			continue
		}
		state := table.States()[0]
		assert.Equal(t, target, state.Target)
		assert.Equal(t, step.value, state.Value)
		if step.problem == "" {
			assert.NoError(t, state.Problem, step.name)
		} else {
			assert.ErrorContains(t, state.Problem, step.problem, step.name)
		}
	}
}

func TestStatesReportProblemsLimitsAndEnds(t *testing.T) {
	noon := time.Date(2030, 1, 31, 12, 0, 0, 0, time.UTC)
	var table Table
	table.Set(map[string]string{"shop|tenant": `{"factor": 2}`})
	assert.Equal(t, []State{{Kind: KindOverride, Target: "shop|tenant", Value: `{"factor": 2}`, Problem: ErrNoLimits, IsWaiting: true}}, table.States())
	table.Set(map[string]string{
		"shop|tenant":      `{"factor": 2}`,
		"shop|tenant=acme": `{"factor": 2, "expires_at": "2030-01-31T12:00:00Z"}`,
		"shop|tenant=b":    `{"factor": 2, "expires_at": "2030-01-31T14:00:00+01:00"}`,
		"shop|gone":        `{"factor": 2}`,
		"nonsense":         `{"factor": 2}`,
	})
	set, nextExpiry := table.Apply(compile(t, shopLimits).set, noon)
	assert.Equal(t, noon.Add(time.Hour), nextExpiry.UTC())
	assert.Equal(t, "400 per minute", matchedLimits(descriptors.Compile(set), "shop", "tenant", "b"), "both overrides apply")
	states := table.States()
	assert.Len(t, states, 5)

	assert.Equal(t, "nonsense", states[0].Target)
	assert.ErrorContains(t, states[0].Problem, "want DOMAIN|KEY")
	assert.Equal(t, "shop|gone", states[1].Target)
	assert.ErrorContains(t, states[1].Problem, "unknown descriptor gone")
	assert.True(t, states[1].IsWaiting)
	assert.False(t, states[0].IsWaiting)
	assert.Equal(t, State{
		Kind: KindOverride, Target: "shop|tenant", Value: `{"factor": 2}`, Path: "shop > tenant",
		BaseLimits: "100 per minute, fallback_ratio 0.25", Limits: "200 per minute, fallback_ratio 0.25",
		KeepsCounters: true,
	}, states[2])
	assert.True(t, states[3].IsExpired)
	assert.Empty(t, states[3].Limits)
	assert.Equal(t, "shop > tenant=b", states[4].Path)
	assert.False(t, states[4].ExpiresAt.IsZero())
}

func TestDryRunChangesNothing(t *testing.T) {
	now := time.Now()
	base := compile(t, shopLimits)
	var table Table
	assert.Equal(t, "7 per minute, fallback_ratio 0.25", table.DryRun(base.set, "shop|tenant", `{"requests_per_unit": 7}`, now).Limits)
	assert.Empty(t, table.States())

	table.Set(map[string]string{"shop|tenant": `{"factor": 2}`})
	table.Apply(base.set, now)
	oldStates := table.States()
	assert.ErrorContains(t, table.DryRun(base.set, "shop|tenant", `{"burst": 7}`, now).Problem, "burst is only for")
	assert.Equal(t, "600 per minute, fallback_ratio 0.25", table.DryRun(base.set, "shop|tenant=x", `{"factor": 3}`, now).Limits)
	assert.Equal(t, oldStates, table.States())
	set, _ := table.Apply(base.set, now)
	assert.Equal(t, "200 per minute", matchedLimits(descriptors.Compile(set), "shop", "tenant", "x"))

	table.Set(map[string]string{"shop|bucket=b": `{"burst": 7}`, "shop|bucket=c": `nonsense`})
	table.Apply(base.set, now)
	dryRunState := table.DryRun(base.set, "shop|bucket", `{"algorithm": "sliding_log"}`, now)
	assert.NoError(t, dryRunState.Problem)
	if assert.Len(t, dryRunState.ProblemsOfOthers, 1) {
		assert.ErrorContains(t, dryRunState.ProblemsOfOthers[0], "override shop|bucket=b: shop > bucket=b: burst is only for")
	}
}

func TestAuthorIsKeptWithTheOverride(t *testing.T) {
	setAt := time.Date(2026, 11, 20, 14, 2, 0, 0, time.UTC)
	for _, value := range []string{`{"factor": 2}`, "{\n \"factor\": 2\n}", `{"rate_limits": [{"unit": "day", "requests_per_unit": 3}]}`} {
		valueWithAuthor := AddAuthor(value, `a "b"`, setAt)
		o, err := Parse("shop|tenant", []byte(valueWithAuthor))
		require.NoError(t, err)
		assert.NotNil(t, o)
		assert.Equal(t, limitsfile.Notes{Author: `a "b"`, SetAt: setAt}, NotesOf(valueWithAuthor))
		assert.Equal(t, value, RemoveAuthor(valueWithAuthor))
		assert.Equal(t, value, RemoveAuthor(value), "a value without an author stays as it is")

		valueWithNewAuthor := AddAuthor(valueWithAuthor, "c", setAt)
		assert.Equal(t, "c", NotesOf(valueWithNewAuthor).Author)
		assert.Equal(t, 1, strings.Count(valueWithNewAuthor, "set_by"))
	}
	_, err := Parse("shop|tenant", []byte(`{"set_by": "a", "set_at": "2030-01-31T12:00:00Z"}`))
	assert.ErrorContains(t, err, "changes nothing")
	_, err = Parse("shop|tenant", []byte(`{"factor": 2, "set_at": "noon"}`))
	assert.ErrorContains(t, err, `set_at: got "noon"`)
	assert.Zero(t, NotesOf("not JSON"))
}

func TestStateHasTheNotesOfItsValue(t *testing.T) {
	var table Table
	table.Set(map[string]string{
		"shop|tenant":                `{"factor": 2, "set_by": "ann", "reason": "sale", "expires_at": "2030-01-31T12:00:00Z"}`,
		"shop|wrong":                 `{"factor": "x", "set_by": "bob", "expires_at": "2030-01-31T12:00:00Z"}`,
		Field(KindRule, "shop|user"): `{"rate_limit": {"unit": "day", "requests_per_unit": 1}, "set_by": "ann", "reason": "sale", "expires_at": "2030-01-31T12:00:00Z"}`,
		Field(KindSwitch, "shop"):    `{"set_by": "ann", "reason": "sale", "expires_at": "2030-01-31T12:00:00Z"}`,
	})
	notes := map[string]limitsfile.Notes{}
	for _, s := range table.States() {
		notes[Field(s.Kind, s.Target)] = s.Notes
		if o, err := Parse(s.Field(), []byte(s.Value)); err == nil {
			assert.Equal(t, s.Notes, o.Notes)
		}
	}
	annsNotes := limitsfile.Notes{Author: "ann", Reason: "sale", ExpiresAt: time.Date(2030, 1, 31, 12, 0, 0, 0, time.UTC)}
	assert.Equal(t, map[string]limitsfile.Notes{
		"shop|tenant":                annsNotes,
		"shop|wrong":                 {Author: "bob"}, // an invalid value is not in force, so it has no end
		Field(KindRule, "shop|user"): annsNotes,
		Field(KindSwitch, "shop"):    annsNotes,
	}, notes)
}

package reload_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/descriptors"
	"github.com/seed-81f232ab/rls/descriptors/limitsfile"
	"github.com/seed-81f232ab/rls/descriptors/override"
	"github.com/seed-81f232ab/rls/internal/source"
	"github.com/seed-81f232ab/rls/internal/source/reload"
)

// rig is a Reloader and what it has reported.
type rig struct {
	*reload.Reloader
	t     *testing.T
	store descriptors.Store
	log   bytes.Buffer

	loaded, rejected, problems int
	overrides                  string // two numbers such as "2 1": the overrides in force, and the overrides rejected or waiting
	overridesWithoutEnd        int
	states, reads              []string
	limitsChanges              []reload.LimitsChange
	overrideChanges            []string // action and target
	rejectedErr                error
}

func newRig(t *testing.T) *rig {
	r := &rig{t: t}
	r.Reloader = reload.New(reload.Options{Store: &r.store, Observer: r, Log: slog.New(slog.NewTextHandler(&r.log, nil))})
	return r
}

func (r *rig) LimitsLoaded(int)         { r.loaded++ }
func (r *rig) LimitsRejected(err error) { r.rejected, r.rejectedErr = r.rejected+1, err }
func (r *rig) ConfigProblems(count int) { r.problems = count }

func (r *rig) Overrides(c reload.OverrideCounts) {
	r.overrides, r.overridesWithoutEnd = fmt.Sprint(c.InForce, " ", c.Rejected+c.Waiting), c.WithoutEnd
}

func (r *rig) LimitsChanged(c reload.LimitsChange) {
	c.Time = time.Time{}
	r.limitsChanges = append(r.limitsChanges, c)
}

func (r *rig) OverridesChanged(changes []reload.OverrideChange) {
	for _, c := range changes {
		r.overrideChanges = append(r.overrideChanges, string(c.Action)+" "+c.State.Target)
	}
}
func (r *rig) SourceRead(name string) { r.reads = append(r.reads, name) }

func (r *rig) SourceState(name string, err error) {
	r.states = append(r.states, fmt.Sprintf("%s: %v", name, err))
}

// load applies a limits file, which must be valid.
func (r *rig) load(text string) {
	r.t.Helper()
	set, err := limitsfile.Parse([]limitsfile.File{{Name: "f.yaml", Data: []byte(text)}}, limitsfile.Options{})
	require.NoError(r.t, err)
	require.NoError(r.t, r.Apply("file", source.Update{Limits: set, Attrs: []slog.Attr{slog.Int("files", 1)}}))
}

// override applies overrides. pairs are targets and values in turn.
func (r *rig) override(pairs ...string) {
	r.t.Helper()
	overrides := map[string]string{}
	for i := 0; i < len(pairs); i += 2 {
		overrides[pairs[i]] = pairs[i+1]
	}
	require.NoError(r.t, r.Apply("overrides", source.Update{Overrides: overrides}))
}

// limitsInForce returns a line for each domain and each limit in force.
func (r *rig) limitsInForce() string {
	var b strings.Builder
	if cfg := r.store.Load(); cfg != nil {
		require.NoError(r.t, cfg.WriteTree(&b))
	}
	return b.String()
}

func (r *rig) problemsPage() string {
	var b strings.Builder
	r.WriteProblems(&b)
	return b.String()
}

// lastLine returns the last line of the log, without time and level.
func (r *rig) lastLine() string {
	lines := strings.Split(strings.TrimSpace(r.log.String()), "\n")
	_, text, _ := strings.Cut(lines[len(lines)-1], "msg=")
	return text
}

// perYear is a limits file with one limit for any tenant.
func perYear(n int) string {
	return fmt.Sprintf("domain: shop\ndescriptors:\n  - key: tenant\n    rate_limit: {unit: year, requests_per_unit: %d}\n", n)
}

func TestLimitsComeIntoForceAndChangesAreLogged(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.load(perYear(5))
	assert.Equal(t, "shop\n  tenant: 5 per year\n", r.limitsInForce())
	assert.Equal(t, `"limits in force" files=1 domains=1 rules=1`, r.lastLine())
	r.load(perYear(6))
	assert.Equal(t, "shop\n  tenant: 6 per year\n", r.limitsInForce())
	assert.Contains(t, r.lastLine(), `"limits in force" files=1 domains=1 rules=1 changed="shop > tenant: 5 per year → 6 per year" counters=kept`)
	r.load(strings.ReplaceAll(perYear(6), "tenant", "user"))
	assert.Contains(t, r.lastLine(), `added="shop > user: 6 per year" removed="shop > tenant: 6 per year"`)
	assert.Equal(t, 3, r.loaded)
	assert.Equal(t, []string{"file: <nil>"}, r.states)
}

func TestRejectedLimitsKeepLastGoodLimitsInForce(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	bad := errors.New("a.yaml:1:2: wrong\nb.yaml:3:4: wrong, too")
	assert.Equal(t, bad, r.Apply("file", source.Update{Problem: bad}))
	assert.Contains(t, r.log.String(), `msg="limits rejected; no limits are in force" problem="a.yaml:1:2: wrong"`)
	assert.Nil(t, r.store.Load())

	r.load(perYear(5))
	assert.Zero(t, r.problems)
	assert.Equal(t, bad, r.Apply("file", source.Update{Problem: bad}))
	assert.Equal(t, `"limits rejected; the last good limits stay in force" problem="b.yaml:3:4: wrong, too"`, r.lastLine())
	assert.Equal(t, "shop\n  tenant: 5 per year\n", r.limitsInForce())
	assert.Equal(t, bad.Error()+"\n", r.problemsPage())
	assert.Equal(t, 2, r.problems)
	assert.Equal(t, 2, r.rejected)

	r.load(perYear(5))
	assert.Empty(t, r.problemsPage())
	assert.Zero(t, r.problems)
}

func TestChangesAreReportedWithTheirCause(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	assert.Zero(t, r.Status().InForceSince)
	r.load(perYear(5))
	r.override()
	r.override("shop|tenant=acme", `{"factor": 2}`)
	r.load(perYear(6))
	r.load(perYear(6))
	assert.Equal(t, []reload.LimitsChange{
		{Cause: "file", First: true, Domains: 1, Rules: 1},
		{
			Cause: "overrides", Domains: 1, Rules: 2, Changes: descriptors.Changes{Added: []string{"shop > tenant=acme"}},
			Values: []descriptors.ValueChange{{Path: "shop > tenant=acme", New: "10 per year"}},
		},
		{
			Cause: "file", Domains: 1, Rules: 2, Changes: descriptors.Changes{Changed: []string{"shop > tenant", "shop > tenant=acme"}},
			Values: []descriptors.ValueChange{
				{Path: "shop > tenant", Old: "5 per year", New: "6 per year"}, {Path: "shop > tenant=acme", Old: "10 per year", New: "12 per year"},
			},
		},
	}, r.limitsChanges)

	bad := errors.New("a.yaml:1:2: wrong")
	assert.Error(t, r.Apply("file", source.Update{Problem: bad}))
	assert.Equal(t, bad, r.rejectedErr)
	assert.Equal(t, []string{bad.Error()}, r.Status().Problems)
	assert.NotZero(t, r.Status().InForceSince)
	require.NoError(t, r.Apply("overrides", source.Update{Outage: bad}))
	assert.Equal(t, map[string]error{"overrides": bad}, r.Status().Outages)
}

func TestChangesOfOverridesAreReportedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.load(perYear(5))
		r.override("shop|tenant=old", `{"factor": 2}`)
		assert.Empty(t, r.overrideChanges, "the override was there before the start")

		end := time.Now().Add(time.Hour).Format(time.RFC3339)
		ending := []string{"shop|tenant=ending", `{"factor": 2, "expires_at": "` + end + `"}`}
		for _, pairs := range [][]string{
			{"shop|tenant=old", `{"factor": 3}`, "shop|tenant=new", `{"factor": 2}`},
			{"shop|tenant=new", `{"factor": 2}`},
			{"shop|tenant=new", `{"factor": "two"}`},
			{"shop|tenant=new", `{"factor": 2}`, ending[0], ending[1]},
		} {
			r.override(pairs...)
			r.override(pairs...)
		}
		time.Sleep(2 * time.Hour)
		r.override("shop|tenant=new", `{"factor": 2}`)
		assert.Equal(t, []string{
			"set shop|tenant=new", "changed shop|tenant=old", "deleted shop|tenant=old", "rejected shop|tenant=new",
			"set shop|tenant=ending", "changed shop|tenant=new", "expired shop|tenant=ending",
		}, r.overrideChanges)
	})
}

func TestOverridesThatRedisLostAreNotReportedAsDeleted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.load(perYear(5))
		r.override()
		r.override("shop|tenant=a", `{"factor": 2}`, "shop|tenant=b", `{"factor": 2}`)
		require.NoError(t, r.Apply("overrides", source.Update{Overrides: map[string]string{"shop|tenant=b": `{"factor": 3}`}, OverridesLost: true}))
		r.override()
		assert.Equal(t, []string{
			"set shop|tenant=a", "set shop|tenant=b", "lost with the data of Redis shop|tenant=a", "changed shop|tenant=b", "deleted shop|tenant=b",
		}, r.overrideChanges)
	})
}

func TestManyProblemsAreLoggedInPart(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.load(perYear(5))
	var lines []string
	for i := range 100 {
		lines = append(lines, fmt.Sprintf("f.yaml:%d:1: wrong", i))
	}
	assert.Error(t, r.Apply("file", source.Update{Problem: errors.New(strings.Join(lines, "\n"))}))
	assert.Equal(t, 20, strings.Count(r.log.String(), ":1: wrong"))
	assert.Contains(t, r.lastLine(), "and_more_problems=80 see=/rlconfig/problems")
	assert.Equal(t, 100, strings.Count(r.problemsPage(), "wrong"))
	assert.Equal(t, 100, r.problems)
}

func TestWarningsAreLoggedOnceWhileTheyLast(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	suspicious := "domain: shop\ndescriptors: [{key: tenant, rate_limit: {unit: year}}]\n"
	for range 2 {
		r.load(suspicious)
	}
	assert.Equal(t, 1, strings.Count(r.log.String(), "limits suspicious"), r.log.String())
	r.load(perYear(1))
	r.load(suspicious)
	assert.Equal(t, 2, strings.Count(r.log.String(), "limits suspicious"))
}

func TestSourceThatIsDownIsReportedOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.load(perYear(5))
	for _, reason := range []string{"port 1", "port 2"} {
		require.NoError(t, r.Apply("file", source.Update{Outage: errors.New(reason)}))
	}
	assert.Equal(t, []string{"file: <nil>", "file: port 1"}, r.states)
	assert.Equal(t, "port 2\n", r.problemsPage(), "the newest reason")
	assert.Equal(t, "shop\n  tenant: 5 per year\n", r.limitsInForce())
	assert.Zero(t, r.problems, "an outage is no problem of the limits")
	require.NoError(t, r.Apply("file", source.Update{}))
	assert.Equal(t, []string{"file: <nil>", "file: port 1", "file: <nil>"}, r.states)
	assert.Empty(t, r.problemsPage())
}

func TestOverridesApplyToReloadedLimits(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.override("shop|tenant=acme", `{"factor": 10}`)
	assert.Nil(t, r.store.Load(), "there are no limits to override")
	r.load(perYear(5))
	assert.Contains(t, r.limitsInForce(), "tenant=acme: 50 per year")
	r.load(perYear(6))
	assert.Contains(t, r.limitsInForce(), "tenant=acme: 60 per year")

	r.load(strings.ReplaceAll(perYear(7), "tenant", "user"))
	assert.Contains(t, r.log.String(), `msg="override waiting" problem="override shop|tenant=acme: shop: unknown descriptor tenant=acme; want user"`)
	assert.Contains(t, r.problemsPage(), "unknown descriptor tenant=acme")
	assert.Equal(t, "0 1", r.overrides)
	assert.Equal(t, 1, r.problems)

	r.load(perYear(8))
	assert.Contains(t, r.limitsInForce(), "tenant=acme: 80 per year")
	assert.Equal(t, "1 0", r.overrides)
	assert.Zero(t, r.problems)
	r.override()
	assert.Equal(t, "shop\n  tenant: 8 per year\n", r.limitsInForce())
}

func TestInvalidOverrideIsRejectedAlone(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.load(perYear(5))
	r.override("shop|tenant=acme", `{"requests_per_unit": 7}`)
	assert.Contains(t, r.lastLine(), `"limits in force" overrides=1 domains=1 rules=2 added="shop > tenant=acme: 7 per year"`)
	for range 2 {
		r.override("shop|tenant=acme", `{"requests_per_unit": "x"}`, "shop|tenant=other", `{"requests_per_unit": 9}`, "nonsense", "{}")
	}
	assert.Contains(t, r.limitsInForce(), "tenant=acme: 7 per year")
	assert.Contains(t, r.limitsInForce(), "tenant=other: 9 per year")
	assert.Equal(t, "2 2", r.overrides)
	assert.Contains(t, r.log.String(), `effect="the previous value stays in force: 7 per year"`)
	assert.Equal(t, 1, strings.Count(r.log.String(), `problem="override nonsense:`), "logged once")
	assert.Len(t, r.States(), 3)
}

func TestOverridesAndSwitchesWithoutEndAreCounted(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.load(perYear(5))
	r.override("shop|tenant=acme", `{"factor": 2}`, "|switch|shop", `{}`, "shop|tenant=b", `{"factor": 2, "expires_at": "2100-01-01T00:00:00Z"}`, "shop|tenant=c", `{"factor": 0}`)
	assert.Equal(t, "3 1", r.overrides)
	assert.Equal(t, 2, r.overridesWithoutEnd, "a rejected override changes no limits")
	r.override()
	assert.Zero(t, r.overridesWithoutEnd)
}

func TestOverrideExpires(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.load(perYear(5))
		end := time.Now().Add(3 * time.Minute)
		r.override("shop|tenant=acme", fmt.Sprintf(`{"factor": 10, "expires_at": %q}`, end.Format(time.RFC3339Nano)))
		time.Sleep(time.Until(end) - 1)
		synctest.Wait()
		assert.Contains(t, r.limitsInForce(), "tenant=acme: 50 per year")
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		assert.Equal(t, "shop\n  tenant: 5 per year\n", r.limitsInForce())
		assert.Contains(t, r.lastLine(), `"limits in force" reason="override expired"`)
		r.override()
	})
}

// slowRig is a rig that blocks SourceState until reportEnds.
type slowRig struct {
	*rig
	reportEnds time.Time
}

func (r *slowRig) SourceState(string, error) { time.Sleep(time.Until(r.reportEnds)) }

func TestOverrideThatEndsEarlierReplacesATimerThatFires(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := &slowRig{rig: newRig(t)}
		r.Reloader = reload.New(reload.Options{Store: &r.store, Observer: r})
		r.load(perYear(5))
		begin := time.Now()
		until := func(end time.Time) string {
			return fmt.Sprintf(`{"factor": 10, "expires_at": %q}`, end.Format(time.RFC3339Nano))
		}
		r.override("shop|tenant=acme", until(begin.Add(time.Hour)))
		r.reportEnds = begin.Add(time.Minute) // when the timer of the override compares the clock
		end := begin.Add(time.Minute + time.Second)
		require.NoError(t, r.Apply("other", source.Update{Overrides: map[string]string{"shop|tenant=acme": until(end)}}))
		time.Sleep(time.Until(end))
		synctest.Wait()
		assert.Equal(t, "shop\n  tenant: 5 per year\n", r.limitsInForce())
		r.override()
	})
}

func TestDryRunChangesNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	assert.Equal(t, override.ErrNoLimits, r.DryRun("shop|tenant=acme", `{"factor": 2}`).Problem)
	r.load(perYear(5))
	state := r.DryRun("shop|tenant=acme", `{"factor": 2}`)
	assert.NoError(t, state.Problem)
	assert.Equal(t, "10 per year", state.Limits)
	assert.Empty(t, r.States())
	assert.Equal(t, "shop\n  tenant: 5 per year\n", r.limitsInForce())
}

// updates is a source with a fixed list of updates.
type updates []source.Update

func (u updates) Run(_ context.Context, apply func(source.Update) error) error {
	for _, update := range u {
		if err := apply(update); err != nil {
			return err
		}
	}
	return nil
}

func TestFollowReportsTheFirstOutcome(t *testing.T) {
	t.Parallel()
	bad, down := errors.New("wrong"), errors.New("gone")
	for _, test := range []struct {
		updates updates
		want    error
	}{
		{updates{{Problem: bad}}, bad},
		{updates{{Outage: down}, {Problem: bad}}, down},
		{updates{{}, {Problem: bad}}, nil},
	} {
		r, started := newRig(t), make(chan error, 1)
		assert.Equal(t, bad, r.Follow(t.Context(), "file", test.updates, started), "the source learns of the rejection")
		assert.Equal(t, test.want, <-started)
		assert.Equal(t, 1, r.rejected)
	}
}

func TestGoodReadsOfSourcesAreReported(t *testing.T) {
	r := newRig(t)
	r.load("domain: d\ndescriptors: [{key: a, rate_limit: {unit: day, requests_per_unit: 5}}]")
	require.NoError(t, r.Apply("file", source.Update{}))
	require.Error(t, r.Apply("file", source.Update{Problem: errors.New("broken")}))
	require.NoError(t, r.Apply("overrides", source.Update{Outage: errors.New("refused")}))
	require.NoError(t, r.Apply("overrides", source.Update{Overrides: map[string]string{}}))
	assert.Equal(t, []string{"file", "file", "overrides"}, r.reads)
}

func TestValidPartOfTheNewestLimitsComesIntoForce(t *testing.T) {
	r := newRig(t)
	r.load(`{domain: a, descriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: 1}}]}`)
	set, err := limitsfile.Parse([]limitsfile.File{{Name: "g.yaml", Data: []byte(`domain: b`)}}, limitsfile.Options{})
	require.NoError(t, err)
	bad := errors.New("c: unit is missing")
	assert.Equal(t, bad, r.Apply("xds", source.Update{Limits: set, Problem: bad}))
	assert.NotNil(t, r.store.Load().Domain("b"), "the part without problems is in force")
	assert.Nil(t, r.store.Load().Domain("a"))
	assert.Equal(t, []string{"c: unit is missing"}, r.Status().Problems)
	assert.Equal(t, 1, r.problems)
	assert.Equal(t, 1, r.rejected)
	assert.Contains(t, r.log.String(), `msg="limits rejected in part`)
	assert.NoError(t, r.Apply("xds", source.Update{Limits: set}))
	assert.Zero(t, r.problems)
}

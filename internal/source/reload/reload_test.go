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

// fixture is a Reloader and its Observer, which keeps the reports.
type fixture struct {
	*reload.Reloader
	t     *testing.T
	store descriptors.Store
	log   bytes.Buffer

	loadCount, rejectionCount, problemCount int
	overrides                               string // two numbers such as "2 1": the overrides in force, and the overrides rejected or waiting
	overridesWithoutEnd                     int
	states, reads                           []string
	limitsChanges                           []reload.LimitsChange
	overrideChanges                         []string // action and target
	rejectedErr                             error
}

func newFixture(t *testing.T) *fixture {
	r := &fixture{t: t}
	r.Reloader = reload.New(reload.Options{Store: &r.store, Observer: r, Log: slog.New(slog.NewTextHandler(&r.log, nil))})
	return r
}

func (r *fixture) LimitsLoaded(int) { r.loadCount++ }
func (r *fixture) LimitsRejected(err error) {
	r.rejectionCount, r.rejectedErr = r.rejectionCount+1, err
}
func (r *fixture) ConfigProblems(count int) { r.problemCount = count }

func (r *fixture) Overrides(c reload.OverrideCounts) {
	r.overrides, r.overridesWithoutEnd = fmt.Sprint(c.InForceOverrides, " ", c.RejectedOverrides+c.WaitingOverrides), c.OverridesWithoutEnd
}

func (r *fixture) LimitsChanged(c reload.LimitsChange) {
	c.Time = time.Time{}
	r.limitsChanges = append(r.limitsChanges, c)
}

func (r *fixture) OverridesChanged(changes []reload.OverrideChange) {
	for _, c := range changes {
		r.overrideChanges = append(r.overrideChanges, string(c.Action)+" "+c.State.Target)
	}
}
func (r *fixture) SourceRead(name string) { r.reads = append(r.reads, name) }

func (r *fixture) SourceState(name string, err error) {
	r.states = append(r.states, fmt.Sprintf("%s: %v", name, err))
}

// load applies a limits file, which must be valid.
func (r *fixture) load(text string) {
	r.t.Helper()
	set, err := limitsfile.Parse([]limitsfile.File{{Name: "f.yaml", Data: []byte(text)}}, limitsfile.Options{})
	require.NoError(r.t, err)
	require.NoError(r.t, r.Apply("file", source.Update{Limits: set, Attrs: []slog.Attr{slog.Int("files", 1)}}))
}

// override applies overrides. pairs are targets and values in turn.
func (r *fixture) override(pairs ...string) {
	r.t.Helper()
	overrides := map[string]string{}
	for i := 0; i < len(pairs); i += 2 {
		overrides[pairs[i]] = pairs[i+1]
	}
	require.NoError(r.t, r.Apply("overrides", source.Update{Overrides: overrides}))
}

// limitsInForce returns a line for each domain and each limit in force.
func (r *fixture) limitsInForce() string {
	var b strings.Builder
	if cfg := r.store.Load(); cfg != nil {
		require.NoError(r.t, cfg.WriteTree(&b))
	}
	return b.String()
}

func (r *fixture) problemsPage() string {
	var b strings.Builder
	r.WriteProblems(&b)
	return b.String()
}

// lastLine returns the last line of the log, without time and level.
func (r *fixture) lastLine() string {
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
	fixture := newFixture(t)
	fixture.load(perYear(5))
	assert.Equal(t, "shop\n  tenant: 5 per year\n", fixture.limitsInForce())
	assert.Equal(t, `"limits in force" files=1 domains=1 rules=1`, fixture.lastLine())
	fixture.load(perYear(6))
	assert.Equal(t, "shop\n  tenant: 6 per year\n", fixture.limitsInForce())
	assert.Contains(t, fixture.lastLine(), `"limits in force" files=1 domains=1 rules=1 changed="shop > tenant: 5 per year → 6 per year" counters=kept`)
	fixture.load(strings.ReplaceAll(perYear(6), "tenant", "user"))
	assert.Contains(t, fixture.lastLine(), `added="shop > user: 6 per year" removed="shop > tenant: 6 per year"`)
	assert.Equal(t, 3, fixture.loadCount)
	assert.Equal(t, []string{"file: <nil>"}, fixture.states)
	assert.NotContains(t, fixture.log.String(), "level=WARN")
	fixture.load(strings.ReplaceAll(perYear(6), "shop", "shopp"))
	assert.Contains(t, fixture.lastLine(), " removed_domains=shop ")
	assert.Contains(t, fixture.log.String(), `level=WARN msg="limits in force"`)
}

func TestRejectedLimitsKeepLastGoodLimitsInForce(t *testing.T) {
	t.Parallel()
	fixture := newFixture(t)
	problem := errors.New("a.yaml:1:2: wrong\nb.yaml:3:4: wrong, too")
	assert.Equal(t, problem, fixture.Apply("file", source.Update{Problem: problem}))
	assert.Contains(t, fixture.log.String(), `msg="limits rejected; no limits are in force" problem="a.yaml:1:2: wrong"`)
	assert.Nil(t, fixture.store.Load())

	fixture.load(perYear(5))
	assert.Zero(t, fixture.problemCount)
	assert.Equal(t, problem, fixture.Apply("file", source.Update{Problem: problem}))
	assert.Equal(t, `"limits rejected; the last good limits stay in force" problem="b.yaml:3:4: wrong, too"`, fixture.lastLine())
	assert.Equal(t, "shop\n  tenant: 5 per year\n", fixture.limitsInForce())
	assert.Equal(t, problem.Error()+"\n", fixture.problemsPage())
	assert.Equal(t, 2, fixture.problemCount)
	assert.Equal(t, 2, fixture.rejectionCount)

	fixture.load(perYear(5))
	assert.Empty(t, fixture.problemsPage())
	assert.Zero(t, fixture.problemCount)
}

func TestChangesAreReportedWithTheirCause(t *testing.T) {
	t.Parallel()
	fixture := newFixture(t)
	assert.Zero(t, fixture.Status().InForceSince)
	fixture.load(perYear(5))
	fixture.override()
	fixture.override("shop|tenant=acme", `{"factor": 2}`)
	fixture.load(perYear(6))
	fixture.load(perYear(6))
	assert.Equal(t, []reload.LimitsChange{
		{Cause: "file", First: true, Domains: 1, Rules: 1},
		{
			Cause: "overrides", Domains: 1, Rules: 2,
			Changes: descriptors.Changes{Added: descriptors.RuleChanges{{Path: "shop > tenant=acme", New: "10 per year"}}},
		},
		{
			Cause: "file", Domains: 1, Rules: 2, Changes: descriptors.Changes{Changed: descriptors.RuleChanges{
				{Path: "shop > tenant", Old: "5 per year", New: "6 per year"}, {Path: "shop > tenant=acme", Old: "10 per year", New: "12 per year"},
			}},
		},
	}, fixture.limitsChanges)

	problem := errors.New("a.yaml:1:2: wrong")
	assert.Error(t, fixture.Apply("file", source.Update{Problem: problem}))
	assert.Equal(t, problem, fixture.rejectedErr)
	assert.Equal(t, []string{problem.Error()}, fixture.Status().Problems)
	assert.NotZero(t, fixture.Status().InForceSince)
	require.NoError(t, fixture.Apply("overrides", source.Update{Outage: problem}))
	assert.Equal(t, map[string]error{"overrides": problem}, fixture.Status().Outages)
}

func TestChangesOfOverridesAreReportedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fixture := newFixture(t)
		fixture.load(perYear(5))
		fixture.override("shop|tenant=old", `{"factor": 2}`)
		assert.Empty(t, fixture.overrideChanges, "the override was there before the start")

		end := time.Now().Add(time.Hour).Format(time.RFC3339)
		endingOverride := []string{"shop|tenant=ending", `{"factor": 2, "expires_at": "` + end + `"}`}
		for _, pairs := range [][]string{
			{"shop|tenant=old", `{"factor": 3}`, "shop|tenant=new", `{"factor": 2}`},
			{"shop|tenant=new", `{"factor": 2}`},
			{"shop|tenant=new", `{"factor": "two"}`},
			{"shop|tenant=new", `{"factor": 2}`, endingOverride[0], endingOverride[1]},
		} {
			fixture.override(pairs...)
			fixture.override(pairs...)
		}
		time.Sleep(2 * time.Hour)
		fixture.override("shop|tenant=new", `{"factor": 2}`)
		assert.Equal(t, []string{
			"set shop|tenant=new", "changed shop|tenant=old", "deleted shop|tenant=old", "rejected shop|tenant=new",
			"set shop|tenant=ending", "changed shop|tenant=new", "expired shop|tenant=ending",
		}, fixture.overrideChanges)
	})
}

func TestOverridesThatRedisLostAreNotReportedAsDeleted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fixture := newFixture(t)
		fixture.load(perYear(5))
		fixture.override()
		fixture.override("shop|tenant=a", `{"factor": 2}`, "shop|tenant=b", `{"factor": 2}`)
		require.NoError(t, fixture.Apply("overrides", source.Update{Overrides: map[string]string{"shop|tenant=b": `{"factor": 3}`}, OverridesLost: true}))
		fixture.override()
		assert.Equal(t, []string{
			"set shop|tenant=a", "set shop|tenant=b", "lost with the data of Redis shop|tenant=a", "changed shop|tenant=b", "deleted shop|tenant=b",
		}, fixture.overrideChanges)
	})
}

func TestManyProblemsAreLoggedInPart(t *testing.T) {
	t.Parallel()
	fixture := newFixture(t)
	fixture.load(perYear(5))
	var lines []string
	for i := range 100 {
		lines = append(lines, fmt.Sprintf("f.yaml:%d:1: wrong", i))
	}
	assert.Error(t, fixture.Apply("file", source.Update{Problem: errors.New(strings.Join(lines, "\n"))}))
	assert.Equal(t, 20, strings.Count(fixture.log.String(), ":1: wrong"))
	assert.Contains(t, fixture.lastLine(), "and_more_problems=80 see=/rlconfig/problems")
	assert.Equal(t, 100, strings.Count(fixture.problemsPage(), "wrong"))
	assert.Equal(t, 100, fixture.problemCount)
}

func TestWarningsAreLoggedOnceWhileTheyLast(t *testing.T) {
	t.Parallel()
	fixture := newFixture(t)
	suspiciousLimits := "domain: shop\ndescriptors: [{key: tenant, rate_limit: {unit: year}}]\n"
	for range 2 {
		fixture.load(suspiciousLimits)
	}
	assert.Equal(t, 1, strings.Count(fixture.log.String(), "limits suspicious"), fixture.log.String())
	fixture.load(perYear(1))
	fixture.load(suspiciousLimits)
	assert.Equal(t, 2, strings.Count(fixture.log.String(), "limits suspicious"))
}

func TestSourceThatIsDownIsReportedOnce(t *testing.T) {
	t.Parallel()
	fixture := newFixture(t)
	fixture.load(perYear(5))
	for _, reason := range []string{"port 1", "port 2"} {
		require.NoError(t, fixture.Apply("file", source.Update{Outage: errors.New(reason)}))
	}
	assert.Equal(t, []string{"file: <nil>", "file: port 1"}, fixture.states)
	assert.Equal(t, "port 2\n", fixture.problemsPage(), "the newest reason")
	assert.Equal(t, "shop\n  tenant: 5 per year\n", fixture.limitsInForce())
	assert.Zero(t, fixture.problemCount, "an outage is no problem of the limits")
	require.NoError(t, fixture.Apply("file", source.Update{}))
	assert.Equal(t, []string{"file: <nil>", "file: port 1", "file: <nil>"}, fixture.states)
	assert.Empty(t, fixture.problemsPage())
}

func TestOverridesApplyToReloadedLimits(t *testing.T) {
	t.Parallel()
	fixture := newFixture(t)
	fixture.override("shop|tenant=acme", `{"factor": 10}`)
	assert.Nil(t, fixture.store.Load(), "there are no limits to override")
	fixture.load(perYear(5))
	assert.Contains(t, fixture.limitsInForce(), "tenant=acme: 50 per year")
	fixture.load(perYear(6))
	assert.Contains(t, fixture.limitsInForce(), "tenant=acme: 60 per year")

	fixture.load(strings.ReplaceAll(perYear(7), "tenant", "user"))
	assert.Contains(t, fixture.log.String(), `msg="override waiting" problem="override shop|tenant=acme: shop: unknown descriptor tenant=acme; want user"`)
	assert.Contains(t, fixture.problemsPage(), "unknown descriptor tenant=acme")
	assert.Equal(t, "0 1", fixture.overrides)
	assert.Equal(t, 1, fixture.problemCount)

	fixture.load(perYear(8))
	assert.Contains(t, fixture.limitsInForce(), "tenant=acme: 80 per year")
	assert.Equal(t, "1 0", fixture.overrides)
	assert.Zero(t, fixture.problemCount)
	fixture.override()
	assert.Equal(t, "shop\n  tenant: 8 per year\n", fixture.limitsInForce())
}

func TestInvalidOverrideIsRejectedAlone(t *testing.T) {
	t.Parallel()
	fixture := newFixture(t)
	fixture.load(perYear(5))
	fixture.override("shop|tenant=acme", `{"requests_per_unit": 7}`)
	assert.Contains(t, fixture.lastLine(), `"limits in force" overrides=1 domains=1 rules=2 added="shop > tenant=acme: 7 per year"`)
	for range 2 {
		fixture.override("shop|tenant=acme", `{"requests_per_unit": "x"}`, "shop|tenant=other", `{"requests_per_unit": 9}`, "nonsense", "{}")
	}
	assert.Contains(t, fixture.limitsInForce(), "tenant=acme: 7 per year")
	assert.Contains(t, fixture.limitsInForce(), "tenant=other: 9 per year")
	assert.Equal(t, "2 2", fixture.overrides)
	assert.Contains(t, fixture.log.String(), `effect="the previous value stays in force: 7 per year"`)
	assert.Equal(t, 1, strings.Count(fixture.log.String(), `problem="override nonsense:`), "logged once")
	assert.Len(t, fixture.States(), 3)
}

func TestOverridesAndSwitchesWithoutEndAreCounted(t *testing.T) {
	t.Parallel()
	fixture := newFixture(t)
	fixture.load(perYear(5))
	fixture.override("shop|tenant=acme", `{"factor": 2}`, "|switch|shop", `{}`, "shop|tenant=b", `{"factor": 2, "expires_at": "2100-01-01T00:00:00Z"}`, "shop|tenant=c", `{"factor": 0}`)
	assert.Equal(t, "3 1", fixture.overrides)
	assert.Equal(t, 2, fixture.overridesWithoutEnd, "a rejected override changes no limits")
	fixture.override()
	assert.Zero(t, fixture.overridesWithoutEnd)
}

func TestOverrideExpires(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		fixture := newFixture(t)
		fixture.load(perYear(5))
		end := time.Now().Add(3 * time.Minute)
		fixture.override("shop|tenant=acme", fmt.Sprintf(`{"factor": 10, "expires_at": %q}`, end.Format(time.RFC3339Nano)))
		time.Sleep(time.Until(end) - 1)
		synctest.Wait()
		assert.Contains(t, fixture.limitsInForce(), "tenant=acme: 50 per year")
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		assert.Equal(t, "shop\n  tenant: 5 per year\n", fixture.limitsInForce())
		assert.Contains(t, fixture.lastLine(), `"limits in force" reason="override expired"`)
		fixture.override()
	})
}

// slowFixture is a fixture that blocks SourceState until reportEnds.
type slowFixture struct {
	*fixture
	reportEnds time.Time
}

func (r *slowFixture) SourceState(string, error) { time.Sleep(time.Until(r.reportEnds)) }

func TestOverrideThatEndsEarlierReplacesATimerThatFires(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		fixture := &slowFixture{fixture: newFixture(t)}
		fixture.Reloader = reload.New(reload.Options{Store: &fixture.store, Observer: fixture})
		fixture.load(perYear(5))
		begin := time.Now()
		overrideUntil := func(end time.Time) string {
			return fmt.Sprintf(`{"factor": 10, "expires_at": %q}`, end.Format(time.RFC3339Nano))
		}
		fixture.override("shop|tenant=acme", overrideUntil(begin.Add(time.Hour)))
		fixture.reportEnds = begin.Add(time.Minute) // when the timer of the override compares the clock
		end := begin.Add(time.Minute + time.Second)
		require.NoError(t, fixture.Apply("other", source.Update{Overrides: map[string]string{"shop|tenant=acme": overrideUntil(end)}}))
		time.Sleep(time.Until(end))
		synctest.Wait()
		assert.Equal(t, "shop\n  tenant: 5 per year\n", fixture.limitsInForce())
		fixture.override()
	})
}

func TestDryRunChangesNothing(t *testing.T) {
	t.Parallel()
	fixture := newFixture(t)
	assert.Equal(t, override.ErrNoLimits, fixture.DryRun("shop|tenant=acme", `{"factor": 2}`).Problem)
	fixture.load(perYear(5))
	state := fixture.DryRun("shop|tenant=acme", `{"factor": 2}`)
	assert.NoError(t, state.Problem)
	assert.Equal(t, "10 per year", state.Limits)
	assert.Empty(t, fixture.States())
	assert.Equal(t, "shop\n  tenant: 5 per year\n", fixture.limitsInForce())
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
	problem, outage := errors.New("wrong"), errors.New("gone")
	for _, test := range []struct {
		updates updates
		want    error
	}{
		{updates{{Problem: problem}}, problem},
		{updates{{Outage: outage}, {Problem: problem}}, outage},
		{updates{{}, {Problem: problem}}, nil},
	} {
		r, startResult := newFixture(t), make(chan error, 1)
		assert.Equal(t, problem, r.Follow(t.Context(), "file", test.updates, startResult), "the source learns of the rejection")
		assert.Equal(t, test.want, <-startResult)
		assert.Equal(t, 1, r.rejectionCount)
	}
}

func TestGoodReadsOfSourcesAreReported(t *testing.T) {
	fixture := newFixture(t)
	fixture.load("domain: d\ndescriptors: [{key: a, rate_limit: {unit: day, requests_per_unit: 5}}]")
	require.NoError(t, fixture.Apply("file", source.Update{}))
	require.Error(t, fixture.Apply("file", source.Update{Problem: errors.New("broken")}))
	require.NoError(t, fixture.Apply("overrides", source.Update{Outage: errors.New("refused")}))
	require.NoError(t, fixture.Apply("overrides", source.Update{Overrides: map[string]string{}}))
	assert.Equal(t, []string{"file", "file", "overrides"}, fixture.reads)
}

func TestValidPartOfTheNewestLimitsComesIntoForce(t *testing.T) {
	fixture := newFixture(t)
	fixture.load(`{domain: a, descriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: 1}}]}`)
	set, err := limitsfile.Parse([]limitsfile.File{{Name: "g.yaml", Data: []byte(`domain: b`)}}, limitsfile.Options{})
	require.NoError(t, err)
	problem := errors.New("c: unit is missing")
	assert.Equal(t, problem, fixture.Apply("xds", source.Update{Limits: set, Problem: problem}))
	assert.NotNil(t, fixture.store.Load().Domain("b"), "the part without problems is in force")
	assert.Nil(t, fixture.store.Load().Domain("a"))
	assert.Equal(t, []string{"c: unit is missing"}, fixture.Status().Problems)
	assert.Equal(t, 1, fixture.problemCount)
	assert.Equal(t, 1, fixture.rejectionCount)
	assert.Contains(t, fixture.log.String(), `msg="limits rejected in part`)
	assert.NoError(t, fixture.Apply("xds", source.Update{Limits: set}))
	assert.Zero(t, fixture.problemCount)
}

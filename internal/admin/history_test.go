package admin_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/descriptors/override"
	"github.com/seed-81f232ab/rls/internal/admin"
	"github.com/seed-81f232ab/rls/internal/source/changes"
)

func (r *testAPI) history(query string) (h admin.History) {
	r.Helper()
	require.Equal(r, http.StatusOK, r.callURL("GET", "/admin/history?"+query, "", &h))
	return h
}

func (r *testAPI) rollBack(query string) (code int, a admin.Rollback) {
	r.Helper()
	code = r.callURL("POST", "/admin/rollback?"+query, "", &a)
	return code, a
}

func TestHistoryHasAuthorReasonAndValues(t *testing.T) {
	api := newTestAPI(t)
	require.Equal(t, http.StatusOK, api.call("PUT", "overrides", acme, `{"factor": 2, "reason": "sale"}`, nil))
	require.Equal(t, http.StatusOK, api.call("PUT", "switches", "shop", `{"reason": "incident"}`, nil))
	require.Equal(t, http.StatusOK, api.call("DELETE", "overrides", acme, "", nil))
	history := api.history("")
	require.Len(t, history.Changes, 3)
	assert.WithinRange(t, history.Changes[2].ChangedAt, time.Now().Add(-time.Minute), time.Now().Add(time.Second))
	history.Changes[2].ChangedAt = time.Time{}
	assert.Equal(t, admin.Change{
		Version: 1, Origin: changes.Origin{Author: "ops", Address: "192.0.2.1:1234", Action: changes.Put, Reason: "sale"},
		Fields: []admin.FieldChange{{Kind: override.KindOverride, Target: acme, NewValue: history.Changes[2].Fields[0].NewValue}},
	}, history.Changes[2])
	assert.JSONEq(t, `{"factor": 2, "reason": "sale"}`, string(history.Changes[2].Fields[0].NewValue))
	assert.Equal(t, override.KindSwitch, history.Changes[1].Fields[0].Kind)
	assert.Equal(t, changes.Delete, history.Changes[0].Action)

	t.Run("history of one target", func(t *testing.T) {
		history := api.history(url.Values{"target": {acme}, "count": {"1"}}.Encode())
		require.Len(t, history.Changes, 1)
		assert.EqualValues(t, 3, history.Changes[0].Version)
		assert.Equal(t, 1, history.OlderChanges)
	})
	for _, count := range []string{"0", "501", "x", "-1"} {
		assert.Equal(t, http.StatusBadRequest, api.callURL("GET", "/admin/history?count="+count, "", nil), count)
	}
}

func TestRollbackUndoesTheLastChanges(t *testing.T) {
	api := newTestAPI(t)
	limitOf := func(target string) string {
		for _, s := range api.overrides.States() {
			if s.Target == target {
				return s.Limits
			}
		}
		return "no override"
	}
	code, _ := api.rollBack("")
	assert.Equal(t, http.StatusConflict, code, "there is nothing to roll back")
	require.Equal(t, http.StatusOK, api.call("PUT", "overrides", acme, `{"requests_per_unit": 10}`, nil))
	require.Equal(t, http.StatusOK, api.call("PUT", "overrides", acme, `{"requests_per_unit": 20}`, nil))
	require.Equal(t, http.StatusOK, api.callURL("PUT", "/admin/switches?target=", `{}`, nil))

	code, dryRun := api.rollBack("dry_run=true")
	require.Equal(t, http.StatusOK, code)
	assert.EqualValues(t, 2, dryRun.RestoredVersion)
	require.Len(t, dryRun.Fields, 1)
	assert.Equal(t, admin.Deleted, dryRun.Fields[0].State)
	assert.NotNil(t, api.overrides.Limits.Load().Domain("shop").Source.OffSwitch, "a dry run changes nothing")

	code, answer := api.rollBack("reason=wrong+switch")
	require.Equal(t, http.StatusOK, code)
	assert.EqualValues(t, 4, answer.Version)
	assert.Nil(t, api.overrides.Limits.Load().Domain("shop").Source.OffSwitch)
	assert.Equal(t, "20 per minute", limitOf(acme))

	_, answer = api.rollBack("")
	assert.EqualValues(t, 1, answer.RestoredVersion)
	assert.Equal(t, "10 per minute", limitOf(acme))
	_, answer = api.rollBack("")
	assert.EqualValues(t, 0, answer.RestoredVersion)
	assert.Equal(t, "no override", limitOf(acme))
	code, _ = api.rollBack("")
	assert.Equal(t, http.StatusConflict, code)

	code, _ = api.rollBack("version=2")
	assert.Equal(t, http.StatusOK, code, "a rollback can be undone")
	assert.Equal(t, "20 per minute", limitOf(acme))
	assert.Equal(t, "wrong switch", api.history("").Changes[3].Reason)
	code, _ = api.rollBack("version=2")
	assert.Equal(t, http.StatusConflict, code, "the limits are already those of the version")
	code, _ = api.rollBack("version=99")
	assert.Equal(t, http.StatusConflict, code, "an unknown version")
}

func TestRollbackToWrongVersionIsBadRequest(t *testing.T) {
	api := newTestAPI(t)
	for _, version := range []string{"abc", "-1", "1.5", ""} {
		var p admin.Problems
		assert.Equal(t, http.StatusBadRequest, api.callURL("POST", "/admin/rollback?version="+version, "", &p), version)
		assert.Equal(t, []string{fmt.Sprintf("version: got %q, want a number that rls limits history shows, such as 3", version)}, p.Problems)
	}
}

func TestRollbackKeepsChangesThatTheHistoryDoesNotHave(t *testing.T) {
	api := newTestAPI(t)
	require.Equal(t, http.StatusOK, api.call("PUT", "overrides", acme, `{"requests_per_unit": 10}`, nil))
	require.Equal(t, http.StatusOK, api.call("PUT", "overrides", acme, `{"requests_per_unit": 20}`, nil))
	api.overrides.SetField(acme, "30") // as redis-cli does
	var conflict admin.Conflict
	assert.Equal(t, http.StatusPreconditionFailed, api.callURL("POST", "/admin/rollback", "", &conflict))
	assert.Contains(t, conflict.Problems[0], "the value has an unknown author; limits now: 30 per minute")
	code, _ := api.rollBack("force=true")
	assert.Equal(t, http.StatusOK, code)
	assert.Equal(t, "10 per minute", api.overrides.States()[0].Limits)
}

func TestRollbackSkipsChangesWithoutEffect(t *testing.T) {
	api := newTestAPI(t)
	expiredOverride := `{"factor": 2, "expires_at": "2020-01-01T00:00:00Z"}`
	_, err := api.overrides.MakeChange(t.Context(), changes.Change{Origin: changes.Origin{Action: changes.Put}, Writes: []changes.Write{{Field: acme, Value: new("10")}}})
	require.NoError(t, err)
	_, err = api.overrides.MakeChange(t.Context(), changes.Change{Origin: changes.Origin{Action: changes.Put}, Writes: []changes.Write{{Field: "shop|ip", Value: &expiredOverride}}})
	require.NoError(t, err)
	code, answer := api.rollBack("")
	require.Equal(t, http.StatusOK, code)
	assert.EqualValues(t, 0, answer.RestoredVersion, "the expired override needs no rollback")
	assert.Len(t, answer.Fields, 1)
}

func TestHistoryAndRollbackFailIfTheStoreFails(t *testing.T) {
	api := newTestAPI(t)
	api.overrides.Fail(errors.New("connection refused"))
	assert.Equal(t, http.StatusServiceUnavailable, api.callURL("GET", "/admin/history", "", nil))
	assert.Equal(t, http.StatusServiceUnavailable, api.callURL("POST", "/admin/rollback", "", nil))
}

func TestRollbackSaysThatANewerLimitsFileStays(t *testing.T) {
	var versions []changes.LimitsVersion
	api := newTestAPI(t, func(o *admin.Options) {
		o.LimitsVersions = func(context.Context) ([]changes.LimitsVersion, error) { return versions, nil }
	})
	var answer struct {
		Problems []string
		Note     string
		Undone   []admin.Change
	}
	require.Equal(t, http.StatusConflict, api.callURL("POST", "/admin/rollback", "", &answer))
	assert.Contains(t, answer.Problems[0], "to undo a change of a limits file, restore the file")

	require.Equal(t, http.StatusOK, api.call("PUT", "overrides", acme, `{"factor": 2}`, nil))
	versions = []changes.LimitsVersion{
		{LoadedAt: time.Now().Add(time.Minute), Source: "file", Limits: map[string]string{"shop > tenant": "0 per minute"}},
		{LoadedAt: time.Now().Add(-time.Hour), Source: "file", Limits: map[string]string{"shop > tenant": "100 per minute"}},
	}
	require.Equal(t, http.StatusConflict, api.callURL("POST", "/admin/rollback", "", &answer))
	assert.Contains(t, answer.Problems[0], "the newest change came from a limits file at ")
	assert.Contains(t, answer.Problems[0], "give --to 0; --dry-run shows it")
	require.Equal(t, http.StatusOK, api.callURL("POST", "/admin/rollback?dry_run=true", "", &answer))
	assert.Contains(t, answer.Note, "a rollback leaves it in force")
	assert.Len(t, answer.Undone, 1)
	assert.Len(t, api.overrides.States(), 1, "nothing was undone")
	code, _ := api.rollBack("version=0")
	assert.Equal(t, http.StatusOK, code)
	assert.Empty(t, api.overrides.States())
}

func TestHistoryHasChangesOfLimitsFiles(t *testing.T) {
	start := time.Now()
	version := func(minute int, limits map[string]string) changes.LimitsVersion {
		return changes.LimitsVersion{LoadedAt: start.Add(time.Duration(minute) * time.Minute), Source: "file", Limits: limits}
	}
	var versions []changes.LimitsVersion
	api := newTestAPI(t, func(o *admin.Options) {
		o.LimitsVersions = func(context.Context) ([]changes.LimitsVersion, error) { return versions, nil }
	})
	require.Equal(t, http.StatusOK, api.call("PUT", "switches", "shop", `{"reason": "incident"}`, nil))
	versions = []changes.LimitsVersion{
		version(9, nil), // too large
		version(5, map[string]string{"shop > tenant": "0 per minute", "shop > new": "1 per day"}),
		version(-5, map[string]string{"shop > tenant": "100 per minute", "shop > same": "1 per day", "shop > gone": "1 per day"}),
	}
	versions[1].Limits["shop > same"] = "1 per day"
	history := api.history("")
	require.Len(t, history.Changes, 3)
	assert.Equal(t, "too many limits to compare", history.Changes[0].Reason)
	assert.Equal(t, "file", history.Changes[1].Author)
	assert.Equal(t, []admin.FieldChange{
		{Kind: admin.KindLimits, Target: "shop > gone", OldValue: json.RawMessage(`"1 per day"`)},
		{Kind: admin.KindLimits, Target: "shop > new", NewValue: json.RawMessage(`"1 per day"`)},
		{Kind: admin.KindLimits, Target: "shop > tenant", OldValue: json.RawMessage(`"100 per minute"`), NewValue: json.RawMessage(`"0 per minute"`)},
	}, history.Changes[1].Fields)
	assert.Equal(t, override.KindSwitch, history.Changes[2].Fields[0].Kind)
	for _, target := range []string{"shop > tenant", "shop|tenant"} {
		history := api.history(url.Values{"target": {target}}.Encode())
		require.Len(t, history.Changes, 1, target)
		assert.Equal(t, "shop > tenant", history.Changes[0].Fields[0].Target)
	}
}

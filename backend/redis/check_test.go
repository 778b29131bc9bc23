package redis_test

import (
	"context"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/backend/redis"
	"github.com/seed-81f232ab/rls/internal/source"
	"github.com/seed-81f232ab/rls/internal/source/changes"
	"github.com/seed-81f232ab/rls/internal/source/overrides"
	"github.com/seed-81f232ab/rls/internal/testkit/polltest"
	"github.com/seed-81f232ab/rls/internal/testkit/redistest"
)

// baseRules are the first ACL rules of a user. They allow the keys with the prefix myprefix: and no command.
const baseRules = "resetkeys ~myprefix:* resetchannels -@all"

// rulesFor returns the ACL rules for the rights that these uses need, such as " +get +set".
func rulesFor(uses ...redis.RightUse) string {
	var rules strings.Builder
	for _, r := range redis.Rights() {
		if slices.Contains(uses, r.Use) {
			rules.WriteString(" +" + r.Command)
		}
	}
	return rules.String()
}

// rights are the rules that docs/redis.md gives to the user of rls. clusterRights are the
// additional rules for a Cluster.
var (
	rights = baseRules + rulesFor(redis.RightOfAll, redis.RightOfDatabase, redis.RightOfReplicas, redis.RightOfChecks, redis.RightOfHolds, redis.RightOfIncrements,
		redis.RightOfWindows, redis.RightOfScripts)
	clusterRights = rulesFor(redis.RightOfCluster)
)

func TestDocumentedRightsAreTheRightsInUse(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/redis.md")
	require.NoError(t, err)
	section := textBetween(t, string(page), "\n## Rights\n", "\n## ")
	commandsIn := func(text string) (commands []string) {
		for word := range strings.FieldsSeq(text) {
			if name, ok := strings.CutPrefix(strings.Trim(word, "`."), "+"); ok {
				commands = append(commands, "+"+name)
			}
		}
		return commands
	}
	assert.ElementsMatch(t, strings.Fields(strings.TrimPrefix(rights, baseRules)),
		commandsIn(textBetween(t, section, "ACL SETUSER rls", "\n\n")))
	assert.ElementsMatch(t, strings.Fields(clusterRights), commandsIn(textBetween(t, section, "A Cluster also needs", ".")))
	assert.ElementsMatch(t, strings.Fields(rulesFor(redis.RightOfOverrides)), commandsIn(textBetween(t, section, "also need:", "")))

	// The user of docs/production.md has all rights except those of a Cluster.
	page, err = os.ReadFile("../../docs/production.md")
	require.NoError(t, err)
	var wantCommands []string
	for _, r := range redis.Rights() {
		if r.Use != redis.RightOfCluster {
			wantCommands = append(wantCommands, "+"+r.Command)
		}
	}
	assert.ElementsMatch(t, wantCommands, commandsIn(textBetween(t, string(page), "\nuser rls on ", "\n")))
}

// textBetween returns the text after start, until the next end.
func textBetween(t *testing.T, text, start, end string) string {
	t.Helper()
	_, text, ok := strings.Cut(text, start)
	require.True(t, ok, start)
	if end != "" {
		text, _, ok = strings.Cut(text, end)
		require.True(t, ok, end)
	}
	return text
}

// problems returns the findings of Check that are more serious than a note.
func problems(t *testing.T, l *redis.Limiter) (findings []redis.Finding) {
	for _, f := range l.Check(t.Context()) {
		if f.Level != redis.LevelNote {
			findings = append(findings, f)
		}
	}
	return findings
}

func TestCheckNamesEachMissingRight(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	s.StartReplica(t)
	s.AwaitReplica(t)
	c := s.Client(t)
	setUser(t, c, rights)
	o := redis.Options{Main: redis.Server{URL: "redis://" + s.Addr + "/1", Auth: "rls:secret-1"}, KeyPrefix: "myprefix:", WaitReplicas: 1, Timeout: testTimeout}
	require.Empty(t, problems(t, open(t, o)))
	assert.NotContains(t, c.Info(t.Context(), "keyspace").Val(), "db1", "the check leaves no key")

	for command := range strings.FieldsSeq(strings.TrimPrefix(rights, baseRules)) {
		if command == "+hello" || command == "+incr" { // Redis 7 allows HELLO to everyone, and rls can do without INCR
			continue
		}
		setUser(t, c, rights+" -"+command[1:])
		require.NoError(t, c.Do(t.Context(), "CLIENT", "KILL", "USER", "rls").Err())
		findings := problems(t, open(t, o))
		if assert.Len(t, findings, 1, command) {
			assert.Equal(t, redis.CheckRights, findings[0].Check)
			assert.Contains(t, findings[0].Text, "may not run "+command[1:])
			assert.Equal(t, "run ACL SETUSER rls "+command, findings[0].Advice)
			isOptional := command == "+info" || strings.Contains(rulesFor(redis.RightOfHolds)+" ", " "+command+" ")
			assert.Equal(t, isOptional, findings[0].Level == redis.LevelWarning, command)
		}
	}

	for _, keyCase := range []struct{ allowed, missing string }{{"~myprefix:v2:*", "~myprefix:v1:*"}, {"~myprefix:v1:*", "~myprefix:v2:*"}} {
		setUser(t, c, strings.Replace(rights, "~myprefix:*", keyCase.allowed, 1))
		findings := problems(t, open(t, o))
		if assert.Len(t, findings, 1) {
			assert.Equal(t, "run ACL SETUSER rls "+keyCase.missing, findings[0].Advice)
			assert.Equal(t, "the user rls may not use "+keyCase.missing, findings[0].Text)
		}
	}

	o.Overrides = true
	commandRules, overrideKeyRule, channelRule := rulesFor(redis.RightOfOverrides), " ~myprefix:rls:*", " &myprefix:rls:*"
	rightsOfCounters := strings.Replace(rights, "~myprefix:*", "~myprefix:v1:* ~myprefix:v2:*", 1)
	setUser(t, c, rightsOfCounters+commandRules+overrideKeyRule+channelRule)
	require.Empty(t, problems(t, open(t, o)))
	assert.NotContains(t, c.Info(t.Context(), "keyspace").Val(), "db1", "the check leaves no override")
	for rule := range strings.FieldsSeq(commandRules) {
		setUser(t, c, rightsOfCounters+commandRules+overrideKeyRule+channelRule+" -"+rule[1:])
		findings := problems(t, open(t, o))
		if assert.Len(t, findings, 1, rule) {
			assert.Equal(t, "run ACL SETUSER rls "+rule, findings[0].Advice)
		}
	}
	for rules, missing := range map[string]string{
		rightsOfCounters + commandRules + channelRule:     overrideKeyRule,
		rightsOfCounters + commandRules + overrideKeyRule: channelRule,
	} {
		setUser(t, c, rules)
		findings := problems(t, open(t, o))
		if assert.Len(t, findings, 1, missing) {
			assert.Equal(t, "run ACL SETUSER rls"+missing, findings[0].Advice)
		}
	}
	o.Overrides = false

	o.Main.Auth = "rls:secret-2"
	findings := problems(t, open(t, o))
	if assert.Len(t, findings, 1) {
		assert.Equal(t, redis.CheckConnection, findings[0].Check)
		assert.Contains(t, findings[0].Advice, "REDIS_AUTH")
		assert.NotContains(t, findings[0].Text, "secret")
	}
}

func TestDocumentedRightsSufficeForOverridesAndResets(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	setUser(t, s.Client(t), rights+" ~myprefix:rls:* &myprefix:rls:*"+rulesFor(redis.RightOfOverrides))
	client, _, err := redis.Connect(redis.Server{URL: s.Addr, Auth: "rls:secret-1"}, testTimeout)
	require.NoError(t, err)
	defer client.Close()
	resetCounters := make(chan string, 1)
	updates := make(chan source.Update, 100)
	store := overrides.New(overrides.Options{
		Client: client, Prefix: "myprefix:", Resync: time.Minute, Log: slog.New(slog.DiscardHandler), OnMissedResets: func() {},
		IsExpired: func(value string, _ time.Time) bool { return value == "expired" },
		OnReset: func(counter string) {
			select {
			case resetCounters <- counter:
			default:
			}
		},
	})
	ctx, stop := context.WithCancel(t.Context())
	var storeGroup sync.WaitGroup
	storeGroup.Go(func() { _ = store.Run(ctx, func(u source.Update) error { updates <- u; return nil }) })
	defer storeGroup.Wait()
	defer stop()
	for _, w := range []changes.Write{{Field: "target", Value: new("value")}, {Field: "old", Value: new("expired")}, {Field: "target"}} {
		_, err = store.MakeChange(ctx, changes.Change{Origin: changes.Origin{Action: changes.Put}, Writes: []changes.Write{w}})
		require.NoError(t, err)
	}
	_, err = store.History(ctx)
	require.NoError(t, err)
	polltest.Until(t, testTimeout, func() bool {
		require.NoError(t, store.PublishReset(ctx, "counter"))
		return len(resetCounters) > 0
	})
	for len(updates) > 0 {
		require.NoError(t, (<-updates).Outage)
	}
}

func TestCheckNamesMissingRightsInACluster(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, 3, false)
	for _, s := range cluster.Masters {
		setUser(t, s.Client(t), rights+clusterRights)
	}
	o := redis.Options{Main: redis.Server{Kind: redis.Cluster, URL: cluster.URL(), Auth: "rls:secret-1"}, KeyPrefix: "myprefix:", Timeout: testTimeout}
	l := open(t, o)
	require.Empty(t, problems(t, l))

	brokenMaster := cluster.Masters[1]
	setUser(t, brokenMaster.Client(t), rights+clusterRights+" -asking -mget")
	findings := problems(t, l)
	require.Len(t, findings, 1)
	assert.Equal(t, brokenMaster.Addr, findings[0].Address)
	assert.Contains(t, findings[0].Text, "may not run mget, asking")

	setUser(t, brokenMaster.Client(t), strings.Replace(rights, "~myprefix:*", "~other:*", 1)+clusterRights)
	findings = problems(t, l)
	require.Len(t, findings, 1)
	assert.Equal(t, "run ACL SETUSER rls ~myprefix:{*", findings[0].Advice)

	setUser(t, brokenMaster.Client(t), rights+clusterRights)
	require.NoError(t, cluster.Masters[0].Client(t).Do(t.Context(), "CLUSTER", "DELSLOTS", "0", "1").Err())
	polltest.Until(t, testTimeout, func() bool {
		return slices.ContainsFunc(problems(t, l), func(f redis.Finding) bool {
			return f.Check == redis.CheckCluster && strings.Contains(f.Text, "2 of 16384 slots have no master")
		})
	})
}

func TestCheckNamesTheMasterAndSentinelsThatDisagree(t *testing.T) {
	t.Parallel()
	sentinels, otherMaster := redistest.StartSentinels(t), redistest.Start(t)
	otherHost, otherPort, _ := strings.Cut(otherMaster.Addr, ":")
	l := open(t, redis.Options{Main: redis.Server{Kind: redis.Sentinel, URL: sentinels.URL()}, Timeout: testTimeout})
	require.NoError(t, l.Ping(t.Context()))
	findings := l.Check(t.Context())
	require.Empty(t, problems(t, l), "the Sentinels agree")
	assert.Equal(t, "the master in use is "+sentinels.Master.Addr, findings[0].Text)

	client := sentinels.Sentinels[2].Client(t)
	require.NoError(t, client.Do(t.Context(), "SENTINEL", "REMOVE", sentinels.Name).Err())
	findings = problems(t, l)
	require.Len(t, findings, 1)
	assert.Contains(t, findings[0].Text, "the Sentinel "+sentinels.Sentinels[2].Addr+" does not name a master")

	require.NoError(t, client.Do(t.Context(), "SENTINEL", "MONITOR", sentinels.Name, otherHost, otherPort, "2").Err())
	findings = problems(t, l)
	require.Len(t, findings, 1)
	assert.Equal(t, redis.LevelProblem, findings[0].Level)
	assert.Contains(t, findings[0].Text, sentinels.Sentinels[0].Addr+" names "+sentinels.Master.Addr)
	assert.Contains(t, findings[0].Text, sentinels.Sentinels[2].Addr+" names "+otherMaster.Addr)
}

func TestCheckReportsServersThatCannotCountSafely(t *testing.T) {
	t.Parallel()
	defaultServer, fullServer := redistest.Start(t), redistest.Start(t, "--maxmemory", "1kb")
	evictingServer := redistest.Start(t, "--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru")
	durableServer := redistest.Start(t, "--appendonly", "yes")
	replica := defaultServer.StartReplica(t)
	serverThatNeedsReplica := redistest.Start(t, "--min-replicas-to-write", "1")
	serverWithoutDisk := redistest.Start(t, "--dir", t.TempDir())
	failSave(t, serverWithoutDisk)
	clusterNode := redistest.Start(t, "--cluster-enabled", "yes")
	deadServer := redistest.Start(t)
	deadServer.Kill()
	defaultServer.AwaitReplica(t)
	for _, c := range []struct {
		name    string
		options redis.Options
		want    []string // level, check and start of the text of each finding
	}{
		{"Redis without a problem", redis.Options{Main: redis.Server{URL: durableServer.Addr}}, nil},
		{"Redis that evicts counters and writes no files", redis.Options{Main: redis.Server{URL: evictingServer.Addr}}, []string{
			"warning memory a full Redis deletes counters (maxmemory-policy allkeys-lru)", "note persistence Redis has no append-only file",
		}},
		{"full Redis", redis.Options{Main: redis.Server{URL: fullServer.Addr}}, []string{"problem memory Redis has no memory left", "note persistence "}},
		{"replica", redis.Options{Main: redis.Server{URL: replica.Addr}}, []string{"problem role this server is a replica", "note persistence "}},
		{"Redis that can't save", redis.Options{Main: redis.Server{URL: serverWithoutDisk.Addr}}, []string{
			"problem persistence Redis rejects writes because it can't save", "warning persistence the last write of the snapshot failed", "note persistence ",
		}},
		{"too few replicas for min-replicas-to-write", redis.Options{Main: redis.Server{URL: serverThatNeedsReplica.Addr}}, []string{"problem replicas Redis rejects writes", "note persistence "}},
		{"too few replicas for WaitReplicas", redis.Options{Main: redis.Server{URL: defaultServer.Addr}, WaitReplicas: 2}, []string{"warning replicas got 1 replicas, want 2"}},
		{"node of a Cluster", redis.Options{Main: redis.Server{URL: clusterNode.Addr}}, []string{
			"problem cluster Redis rejects writes: CLUSTERDOWN", "problem cluster this server is a node of a Cluster", "note persistence ",
		}},
		{"dead server", redis.Options{Main: redis.Server{URL: deadServer.Addr}}, []string{"problem connection Redis can't be used"}},
		{"dead server for limits per second", redis.Options{Main: redis.Server{URL: durableServer.Addr}, PerSecond: &redis.Server{URL: deadServer.Addr}}, []string{"problem connection "}},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.options.Timeout = testTimeout
			findings := open(t, c.options).Check(t.Context())
			require.Len(t, findings, len(c.want), "%+v", findings)
			for i, f := range findings {
				assert.Contains(t, string(f.Level)+" "+f.Check+" "+f.Text, c.want[i])
				assert.NotEmpty(t, f.Advice)
				assert.NotEmpty(t, f.Address)
			}
		})
	}
}

// If a user has only the rights of an older version, the check reports a note.
func TestMissingRightForIncrIsANote(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	setUser(t, s.Client(t), rights+" -incr")
	l := open(t, redis.Options{Main: redis.Server{URL: s.Addr, Auth: "rls:secret-1"}, KeyPrefix: "myprefix:", Timeout: testTimeout})
	lim := newPlainLimit(t, 5)
	for _, want := range []int64{4, 3} {
		got := take(l, hit("key", lim, 1))[0]
		require.NoError(t, got.Err)
		assert.Equal(t, want, got.Remaining)
	}
	calls := commandCalls(t, s)
	assert.Equal(t, 2, calls["incrby"])
	require.Empty(t, problems(t, l))
	i := slices.IndexFunc(l.Check(t.Context()), func(f redis.Finding) bool { return f.Check == redis.CheckRights })
	require.GreaterOrEqual(t, i, 0)
	assert.Equal(t, "the user rls may not run incr, so charges cost Redis more", l.Check(t.Context())[i].Text)
}

func TestRedisThatStandsStillIsAWarning(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	c, l := s.Client(t), open(t, redis.Options{Main: redis.Server{URL: s.Addr}, Timeout: testTimeout})
	require.NoError(t, l.Ping(t.Context()))
	ctx, stop := context.WithCancel(t.Context())
	var pauses sync.WaitGroup
	pauses.Go(func() {
		for ctx.Err() == nil {
			_ = c.ClientPause(ctx, 200*time.Millisecond).Err()
			time.Sleep(400 * time.Millisecond)
		}
	})
	defer pauses.Wait()
	defer stop()
	polltest.Until(t, testTimeout, func() bool { // a starved process finds no stall
		findings := l.FindStalls(t.Context())
		return len(findings) == 1 && findings[0].Level == redis.LevelWarning && strings.Contains(findings[0].Text, "Redis stands still")
	})
}

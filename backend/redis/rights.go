package redis

import (
	"cmp"
	"context"
	"regexp"
	"slices"
	"strings"

	goredis "github.com/redis/go-redis/v9"
)

// RightUse is the feature that needs a right.
type RightUse uint8

// The features that need a right.
const (
	RightOfAll        RightUse = iota // each deployment needs the right
	RightOfDatabase                   // a database other than 0 needs the right
	RightOfReplicas                   // Options.WaitReplicas needs the right
	RightOfChecks                     // only Limiter.Check needs the right
	RightOfCluster                    // a Cluster needs the right
	RightOfOverrides                  // overrides need the right, for their own keys and channels
	RightOfPrefixes                   // only Limiter.ResetPrefix needs the right
	RightOfHolds                      // only limits with holds need the right
	RightOfIncrements                 // the right makes charges cheaper for Redis
	RightOfWindows                    // plain charges use the right; without it, rls sends INCRBY and EXPIRE
	RightOfScripts                    // the script needs the right
)

// Right is the right to run a command.
type Right struct {
	Command string // the command in lower case; a subcommand follows a bar
	Use     RightUse

	args string // the arguments of a test run, such as "KEY 0"; see argument
}

// argument replaces a word in the arguments of a test run. KEY stands for the key of the check, DB for the number of
// the database, HASH for the key of the overrides, and CHANNEL for a channel without subscribers.
type argument struct {
	value   string
	aclRule string // the ACL rule for the value and for similar names, such as "~rls:*", or ""
}

// rightTest is a run of a command that changes nothing, to find out whether the user has the right.
type rightTest struct {
	Right
	cmd     *goredis.Cmd
	aclRule string // the ACL rule for the key or the channel
}

// rights lists all commands that rls sends. Among the test runs, SET gives the key of the check a time to live, and
// DEL deletes the key at the end.
var rights = []Right{
	{Command: "ping"},
	{Command: "hello"},
	{Command: "select", Use: RightOfDatabase, args: "DB"},
	{Command: "eval", Use: RightOfScripts, args: "return 0"}, // the script is the word return
	{Command: "evalsha", Use: RightOfScripts, args: "0000000000000000000000000000000000000000 0"},
	{Command: "time", Use: RightOfWindows},
	{Command: "set", Use: RightOfWindows, args: "KEY 0 PX 60000"},
	{Command: "incr", Use: RightOfIncrements, args: "KEY"},
	{Command: "incrby", args: "KEY 0"},
	{Command: "get", Use: RightOfWindows, args: "KEY"},
	{Command: "mget", Use: RightOfScripts, args: "KEY"},
	{Command: "setrange", Use: RightOfScripts, args: "KEY 0 0"},
	{Command: "llen", Use: RightOfScripts, args: "KEY"},
	{Command: "lrange", Use: RightOfScripts, args: "KEY 0 0"},
	{Command: "ltrim", Use: RightOfScripts, args: "KEY 0 0"},
	{Command: "rpush", Use: RightOfScripts, args: "KEY 0"},
	{Command: "zadd", Use: RightOfHolds, args: "KEY 0 0"},
	{Command: "zrem", Use: RightOfHolds, args: "KEY 0"},
	{Command: "zcard", Use: RightOfHolds, args: "KEY"},
	{Command: "zscore", Use: RightOfHolds, args: "KEY 0"},
	{Command: "zrangebyscore", Use: RightOfHolds, args: "KEY 0 0"},
	{Command: "zrevrangebyscore", Use: RightOfHolds, args: "KEY 0 0"},
	{Command: "pttl", Use: RightOfHolds, args: "KEY"},
	{Command: "lpush", Use: RightOfOverrides, args: "KEY 0"},
	{Command: "lindex", Use: RightOfOverrides, args: "KEY 0"},
	{Command: "pexpire", Use: RightOfWindows, args: "KEY 60000"},
	{Command: "del", Use: RightOfScripts, args: "KEY"},
	{Command: "wait", Use: RightOfReplicas, args: "0 1"},
	{Command: "info", Use: RightOfChecks},
	{Command: "scan", Use: RightOfPrefixes},
	{Command: "cluster|slots", Use: RightOfCluster},
	{Command: "asking", Use: RightOfCluster},
	{Command: "hgetall", Use: RightOfOverrides, args: "HASH"},
	{Command: "hget", Use: RightOfOverrides, args: "HASH rls:check"},
	{Command: "hset", Use: RightOfOverrides, args: "HASH rls:check 0 rls:check"}, // the second field has no value, so Redis sets nothing
	{Command: "hdel", Use: RightOfOverrides, args: "HASH rls:check"},
	{Command: "publish", Use: RightOfOverrides, args: "CHANNEL 0"},
	{Command: "subscribe", Use: RightOfOverrides}, // needs its own connection; see serverCheck.subscribe
}

// Rights returns all rights that rls can need.
func Rights() []Right { return slices.Clone(rights) }

// newTest returns the test run of r. The key of argumentOf is the word that the argument replaces.
func (r Right) newTest(argumentOf map[string]argument) rightTest {
	test := rightTest{Right: r}
	var args []any
	for word := range strings.SplitSeq(r.Command, "|") {
		args = append(args, word)
	}
	for word := range strings.FieldsSeq(r.args) {
		if argument, ok := argumentOf[word]; ok {
			word, test.aclRule = argument.value, argument.aclRule
		}
		args = append(args, word)
	}
	test.cmd = goredis.NewCmd(context.Background(), args...) // execute gets the real context
	return test
}

func (r Right) isNeeded(o *Options, a address) bool {
	switch r.Use {
	case RightOfDatabase:
		return a.db != 0
	case RightOfReplicas:
		return o.WaitReplicas > 0
	case RightOfCluster:
		return a.kind == Cluster
	case RightOfOverrides:
		return o.Overrides
	case RightOfPrefixes:
		return false // without the right, the error of ResetPrefix has a remedy
	}
	return true
}

type missingRights struct {
	commands []string
	patterns []string // ACL rules for keys and channels

	hasExpire bool // the user may run EXPIRE, so rls can count without the rights of RightOfWindows
}

// deniedCommand matches the name of the command in a refusal of Redis.
var deniedCommand = regexp.MustCompile(`'([a-z|]+)' command`)

// add adds the missing right if err is about a missing right. pattern is the ACL rule for the key or the channel of the
// command.
func (m *missingRights) add(err error, command, pattern string) {
	if !isNoPerm(err) {
		return
	}
	if isAboutKey(err) {
		if !slices.Contains(m.patterns, pattern) {
			m.patterns = append(m.patterns, pattern)
		}
		return
	}
	if match := deniedCommand.FindStringSubmatch(err.Error()); match != nil {
		command = match[1]
	}
	if !slices.Contains(m.commands, command) {
		m.commands = append(m.commands, command)
	}
}

// finding returns the Finding about the missing rights. Its Advice has the ACL rules. ok is false if no right is missing.
func (m *missingRights) finding(user string) (f Finding, ok bool) {
	var rules, texts []string
	if len(m.commands) > 0 {
		texts = append(texts, "may not run "+strings.Join(m.commands, ", "))
	}
	if len(m.patterns) > 0 {
		texts = append(texts, "may not use "+strings.Join(m.patterns, ", "))
		rules = append(rules, m.patterns...)
	}
	for _, c := range m.commands {
		rules = append(rules, "+"+c)
	}
	user = cmp.Or(user, "default")
	f = Finding{
		Check: CheckRights, Level: LevelProblem,
		Text:   "the user " + user + " " + strings.Join(texts, ", and "),
		Advice: "run ACL SETUSER " + user + " " + strings.Join(rules, " "),
	}
	if len(m.patterns) > 0 {
		return f, true
	}
	worstLevel, effects := LevelNote, ""
	for _, use := range m.uses() {
		effect, canCount := missingEffects[use]
		if !canCount || use == RightOfWindows && !m.hasExpire {
			return f, true
		}
		effects += ", so " + effect.text
		if worstLevel == LevelNote || effect.level == LevelProblem {
			worstLevel = effect.level
		}
	}
	f.Level, f.Text = worstLevel, f.Text+effects
	return f, len(rules) > 0
}

// missingEffects says what rls does without the rights for a use. If a right for a use outside of this map is missing,
// rls can't count.
var missingEffects = map[RightUse]struct {
	level Level
	text  string
}{
	RightOfChecks:     {LevelWarning, "eviction, persistence and replicas are not checked"},
	RightOfHolds:      {LevelWarning, "the fallback decides all limits with algorithm concurrency"},
	RightOfIncrements: {LevelNote, "charges cost Redis more"},
	RightOfScripts: {
		LevelProblem,
		"Redis counts only limits with fixed_window and charge_denied, and the fallback decides other limits, refunds and all-or-none calls",
	},
	RightOfWindows: {LevelWarning, "windows may follow the clock of this machine, and EXPIRE sets the time to live of their keys"},
}

func (m *missingRights) uses() (uses []RightUse) {
	for _, r := range rights {
		if slices.Contains(m.commands, r.Command) && !slices.Contains(uses, r.Use) {
			uses = append(uses, r.Use)
		}
	}
	return uses
}

package redis

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	goredis "github.com/redis/go-redis/v9"
)

// The checks of Limiter.Check.
const (
	CheckConnection  = "connection"
	CheckRights      = "rights"
	CheckVersion     = "version"
	CheckRole        = "role"
	CheckMemory      = "memory"
	CheckPersistence = "persistence"
	CheckReplicas    = "replicas"
	CheckClock       = "clock"
	CheckTimeout     = "timeout"
	CheckCluster     = "cluster"
	CheckRegions     = "regions" // only for a Redis with RoleGlobal; Check does not make it
)

// Checks lists the checks of Check.
var Checks = [...]string{
	CheckConnection, CheckRights, CheckVersion, CheckRole, CheckMemory, CheckPersistence, CheckReplicas, CheckClock, CheckTimeout, CheckCluster,
}

// Level says how serious a Finding is.
type Level string

// The levels of a Finding.
const (
	LevelProblem Level = "problem" // rls can't count, or can't count all of the time
	LevelWarning Level = "warning" // rls counts, but may lose counters or decide late
	LevelNote    Level = "note"    // a choice that operators should know
)

// Finding is something about a Redis that operators should know.
type Finding struct {
	Role    Role
	Address string // the address of the server, without secrets
	Check   string // the check with this Finding; one of Checks
	Level   Level
	Text    string // a sentence in lower case without a full stop
	Advice  string // how to repair the cause, or ""
}

const (
	oldestVersion      = 5           // the oldest major version of Redis that rls supports
	maxClockDifference = time.Second // the largest difference between the clocks of Redis and of this machine without a Finding
)

// checkKey is the end of the keys that Limiter.Check writes.
const checkKey = "rls:check"

// Check examines each server of each Redis: the rights of the user, the settings and the state. It writes two keys, and
// deletes them.
func (l *Limiter) Check(ctx context.Context) []Finding {
	var findings []Finding
	l.MeasureRoundTrip(ctx)
	for _, instance := range l.instances {
		servers, err := l.serversOf(ctx, instance)
		if err != nil {
			findings = append(findings, instance.setServer(instance.name, connectionFinding(err))...)
		}
		for _, s := range servers {
			c := serverCheck{options: &l.options, timeout: l.Timeout(), instance: instance, partitionServer: s}
			findings = append(findings, instance.setServer(instance.addressOf(c.server), c.run(ctx)...)...)
		}
	}
	return findings
}

type partitionServer struct {
	*server
	keyspace keyspace
}

// serversOf returns each server of instance. It returns an error if a partition has no server.
func (l *Limiter) serversOf(ctx context.Context, instance *redisInstance) (servers []partitionServer, err error) {
	for _, q := range l.queues[instance.firstShard : instance.firstShard+instance.partitions] {
		s, masterErr := instance.client.masterOf(ctx, string(q.keyspace)+layoutState)
		if masterErr != nil {
			err = masterErr
		} else if !slices.ContainsFunc(servers, func(other partitionServer) bool { return instance.addressOf(other.server) == instance.addressOf(s) }) {
			servers = append(servers, partitionServer{s, q.keyspace})
		}
	}
	return servers, err
}

func (r *redisInstance) addressOf(s *server) string {
	if r.address.kind != Cluster {
		return r.name
	}
	host, port, err := net.SplitHostPort(s.node.Options().Addr)
	if err == nil && host == "" { // the node does not know its address
		host, _, _ = net.SplitHostPort(r.address.nodes[0])
	}
	return net.JoinHostPort(host, port)
}

func (r *redisInstance) setServer(address string, findings ...Finding) []Finding {
	for i := range findings {
		findings[i].Role, findings[i].Address = r.role, address
	}
	return findings
}

func connectionFinding(err error) Finding {
	f := Finding{Check: CheckConnection, Level: LevelProblem, Text: "Redis can't be used: " + err.Error(), Advice: AdviceFor(err)}
	if KindOf(err) == KindTimeout {
		f.Advice = adviceForSilence // a check waits for a second, so a distant Redis is not the cause
	}
	return f
}

var adviceByKind = map[ErrorKind]string{
	KindAuth:       "check REDIS_AUTH or REDIS_AUTH_FILE, and the user in Redis (ACL GETUSER)",
	KindNoPerm:     "run rls doctor, which names the missing rights",
	KindTLS:        "check REDIS_TLS and the certificates of both sides",
	KindTimeout:    "check that Redis runs and is near; raise REDIS_TIMEOUT if it is far away",
	KindCluster:    "run redis-cli --cluster check on a node",
	KindLoading:    "wait until Redis has read its data",
	KindReadOnly:   "set REDIS_URL to the master, or use REDIS_TYPE=sentinel",
	KindOOM:        "raise maxmemory (docs/operations.md#redis-is-full)",
	KindMaxClients: "raise maxclients of Redis, or close connections of others (CLIENT LIST)",
	KindMisconf:    "free the disk of Redis, and run BGSAVE; or set stop-writes-on-bgsave-error no",
	KindNoReplicas: "start Redis replicas, or lower min-replicas-to-write",
}

// AdviceFor returns how to repair the cause of an error of Redis.
func AdviceFor(err error) string {
	advice := "check that Redis runs, and that REDIS_URL has its address"
	if errorCode(err) != "" {
		advice = "Redis runs, but refuses a command: see the error, and the log of Redis"
		if strings.Contains(err.Error(), "cluster support disabled") {
			advice = "this Redis is no Cluster; set REDIS_TYPE=single"
		}
	}
	return cmp.Or(adviceByKind[KindOf(err)], advice)
}

type serverCheck struct {
	options  *Options
	timeout  time.Duration
	instance *redisInstance
	partitionServer
	findings []Finding
}

func (c *serverCheck) add(check string, level Level, text, advice string) {
	c.findings = append(c.findings, Finding{Check: check, Level: level, Text: text, Advice: advice})
}

func (c *serverCheck) run(ctx context.Context) []Finding {
	var tests []rightTest
	var commands []goredis.Cmder
	for _, layout := range []string{layoutState, layoutCount} {
		argumentOf := c.arguments(layout)
		for _, r := range rights {
			isForMainOnly := r.Use == RightOfOverrides && c.instance.role != RoleMain
			isTested := layout == layoutCount && !strings.Contains(r.args, "KEY") // the loop has tested the command with the first layout
			if !r.isNeeded(c.options, c.instance.address) || isTested || isForMainOnly || r.Command == "subscribe" {
				continue
			}
			test := r.newTest(argumentOf)
			tests, commands = append(tests, test), append(commands, test.cmd)
		}
	}
	c.server.execute(ctx, commands)
	replies := map[string]*goredis.Cmd{} // the last reply to each command; the key is Right.Command
	var missing missingRights
	for _, test := range tests {
		err := test.cmd.Err()
		if hasReply := err == nil || errorCode(err) != "" || errors.Is(err, goredis.Nil); !hasReply {
			return []Finding{connectionFinding(err)}
		}
		missing.add(err, test.Command, test.aclRule)
		replies[test.Command] = test.cmd
	}
	if c.options.Overrides && c.instance.role == RoleMain {
		channel := c.arguments("")["CHANNEL"]
		missing.add(c.subscribe(ctx, channel.value), "subscribe", channel.aclRule)
	}
	if isNoPerm(replies["set"].Err()) {
		missing.hasExpire = c.expireKeys(ctx)
	}
	if f, ok := missing.finding(c.loginUser(ctx)); ok {
		c.findings = append(c.findings, f)
	}
	if err := replies["ping"].Err(); err != nil && KindOf(err) != KindNoPerm && KindOf(err) != KindMisconf {
		return append(c.findings, connectionFinding(err)) // Redis answers commands with an error, such as NOAUTH or LOADING
	}
	c.checkWrite(replies["set"].Err())
	c.checkClock()
	c.checkTimeout()
	c.checkCoverage(ctx)
	c.checkSentinels(ctx)
	c.checkInfo(infoOf(replies["hello"], replies["info"]))
	return c.findings
}

func (c *serverCheck) loginUser(ctx context.Context) string {
	o := c.server.node.Options()
	if o.CredentialsProviderContext == nil {
		return o.Username
	}
	user, _, _ := o.CredentialsProviderContext(ctx) // an error is a Finding about the connection
	return user
}

// expireKeys sets the time to live of the keys of the check. It reports whether the user has the right to run EXPIRE.
func (c *serverCheck) expireKeys(ctx context.Context) bool {
	var commands []goredis.Cmder
	for _, layout := range []string{layoutState, layoutCount} {
		commands = append(commands, goredis.NewBoolCmd(ctx, "EXPIRE", c.arguments(layout)["KEY"].value, 60))
	}
	c.server.execute(ctx, commands)
	return commands[0].Err() == nil
}

// arguments returns the argument for each word that Right.args can have. The key of the check has this layout.
func (c *serverCheck) arguments(layout string) map[string]argument {
	keyStart, prefix := string(c.keyspace)+layout, c.options.KeyPrefix
	pattern := keyStart + "*"
	if c.instance.address.kind == Cluster {
		pattern = prefix + "{*" // all hash tags
	}
	return map[string]argument{
		"KEY":     {keyStart + checkKey, "~" + pattern},
		"DB":      {value: strconv.Itoa(c.instance.address.db)},
		"HASH":    {prefix + "rls:overrides", "~" + prefix + "rls:*"},
		"CHANNEL": {prefix + "rls:check", "&" + prefix + "rls:*"},
	}
}

// subscribe subscribes to the channel on a connection of its own, and returns the error of Redis.
func (c *serverCheck) subscribe(ctx context.Context, channel string) error {
	subscription := c.server.node.Subscribe(ctx)
	defer func() { _ = subscription.Close() }()
	if err := subscription.Subscribe(ctx, channel); err != nil {
		return err
	}
	_, err := subscription.ReceiveTimeout(ctx, max(c.timeout, minPingTime))
	return err
}

func (c *serverCheck) checkWrite(err error) {
	switch KindOf(err) {
	case KindOOM:
		c.add(CheckMemory, LevelProblem, "Redis has no memory left for new counters", AdviceFor(err))
	case KindMisconf:
		c.add(CheckPersistence, LevelProblem, "Redis rejects writes because it can't save its data", AdviceFor(err))
	case KindNoReplicas:
		c.add(CheckReplicas, LevelProblem, "Redis rejects writes because it has too few replicas", AdviceFor(err))
	case KindCluster:
		c.add(CheckCluster, LevelProblem, "Redis rejects writes: "+err.Error(), AdviceFor(err))
	}
}

func (c *serverCheck) checkClock() {
	lead := time.Until(time.UnixMicro(c.server.clock.now()))
	if !c.server.clock.isUsable() || lead.Abs()-c.server.clock.roundTrip()/2 <= maxClockDifference {
		return
	}
	direction := "ahead of"
	if lead < 0 {
		direction = "behind"
	}
	c.add(CheckClock, LevelWarning, fmt.Sprintf("the clock of Redis is %v %s the clock of this machine", lead.Abs().Round(time.Second), direction),
		"set both clocks with NTP; windows begin and end by the clock of Redis")
}

func (c *serverCheck) checkTimeout() {
	if roundTrip := c.server.clock.roundTrip(); isTooShort(c.timeout, roundTrip) {
		c.add(CheckTimeout, LevelWarning,
			fmt.Sprintf("round trip %v, budget %v: too small, so calls are decided without Redis", roundTrip.Round(100*time.Microsecond), c.timeout),
			fmt.Sprintf("set REDIS_TIMEOUT to %v or more, or to auto; or use a Redis that is nearer", neededTimeout(roundTrip)))
	}
}

func (c *serverCheck) checkCoverage(ctx context.Context) {
	if c.instance.address.kind != Cluster {
		return
	}
	ranges, err := c.server.node.ClusterSlots(ctx).Result() //nolint:staticcheck // ClusterShards needs Redis 7
	slotCount := 0
	for _, r := range ranges {
		slotCount += r.End - r.Start + 1
	}
	if err == nil && slotCount < hashSlotCount {
		c.add(CheckCluster, LevelProblem, fmt.Sprintf("%d of %d slots have no master", hashSlotCount-slotCount, hashSlotCount),
			"run redis-cli --cluster fix on a node; until then, a Cluster with cluster-require-full-coverage yes rejects all keys, and else only those of these slots")
	}
}

func (c *serverCheck) checkSentinels(ctx context.Context) {
	a := c.instance.address
	if a.kind != Sentinel {
		return
	}
	if master := c.instance.masterInUse.Load(); master != nil {
		c.add(CheckRole, LevelNote, "the master in use is "+*master, "")
	}
	var answers, masters []string
	for _, node := range a.nodes {
		o := a.limiterOptions(*c.options).Simple()
		o.Addr, o.DB, o.Username, o.Password, o.CredentialsProviderContext = node, 0, a.sentinelLogin.user, a.sentinelLogin.password, nil
		sentinel := goredis.NewSentinelClient(o)
		reply, err := sentinel.GetMasterAddrByName(ctx, a.master).Result()
		_ = sentinel.Close()
		if err != nil {
			c.add(CheckRole, LevelWarning, fmt.Sprintf("the Sentinel %s does not name a master: %v", node, err), "check this Sentinel")
			continue
		}
		master := strings.Join(reply, ":")
		answers = append(answers, node+" names "+master)
		if !slices.Contains(masters, master) {
			masters = append(masters, master)
		}
	}
	if len(masters) > 1 {
		c.add(CheckRole, LevelProblem, "the Sentinels name different masters: "+strings.Join(answers, ", "),
			"see docs/operations.md#redis-has-two-masters; until then, replicas of rls can count on different servers")
	}
}

// infoOf returns the fields of INFO. If the user has no right to run INFO, infoOf takes some of the fields from HELLO.
func infoOf(hello, info *goredis.Cmd) map[string]string {
	fields := map[string]string{}
	if pairs, err := hello.Slice(); err == nil {
		for i := 0; i+1 < len(pairs); i += 2 {
			fields[fmt.Sprint("hello_", pairs[i])] = fmt.Sprint(pairs[i+1])
		}
		fields["redis_version"], fields["role"] = fields["hello_version"], fields["hello_role"]
		if fields["role"] == "replica" {
			fields["role"] = "slave"
		}
		if fields["hello_mode"] == "cluster" {
			fields["cluster_enabled"] = "1"
		}
	}
	text, _ := info.Text()
	for line := range strings.SplitSeq(text, "\n") {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			fields[name] = value
		}
	}
	return fields
}

func (c *serverCheck) checkInfo(info map[string]string) {
	if version := info["redis_version"]; version != "" {
		major, _, _ := strings.Cut(version, ".")
		if n, err := strconv.Atoi(major); err == nil && n < oldestVersion {
			c.add(CheckVersion, LevelProblem, "Redis has version "+version, fmt.Sprintf("use Redis %d or later", oldestVersion))
		}
	}
	if info["role"] == "slave" {
		c.add(CheckRole, LevelProblem, "this server is a replica, which rejects writes", "set REDIS_URL to the master, or use REDIS_TYPE=sentinel")
	}
	if info["hello_server"] == "envoy-redis-proxy" { // the INFO of this proxy always claims a Cluster
		c.add(CheckCluster, LevelNote, "Envoy's redis_proxy is before Redis; it sends each script to the server of the first key",
			"give the proxy one server only, or let rls connect to the Cluster itself")
	} else if info["cluster_enabled"] == "1" && c.instance.address.kind != Cluster {
		c.add(CheckCluster, LevelProblem, "this server is a node of a Cluster, but REDIS_TYPE is "+string(c.instance.address.kind), "set REDIS_TYPE=cluster")
	}
	if policy := info["maxmemory_policy"]; policy != "" && policy != "noeviction" && info["maxmemory"] != "0" {
		c.add(CheckMemory, LevelWarning, "a full Redis deletes counters (maxmemory-policy "+policy+"); a deleted counter starts again at 0",
			"set maxmemory-policy noeviction, or give Redis enough memory")
	}
	for field, name := range map[string]string{"rdb_last_bgsave_status": "snapshot", "aof_last_write_status": "append-only file"} {
		if status := info[field]; status != "" && status != "ok" {
			c.add(CheckPersistence, LevelWarning, "the last write of the "+name+" failed", "see the log of Redis; free its disk")
		}
	}
	replicas, err := strconv.Atoi(info["connected_slaves"])
	if err != nil {
		return
	}
	if replicas < c.options.WaitReplicas {
		c.add(CheckReplicas, LevelWarning, fmt.Sprintf("got %d replicas, want %d (REDIS_WAIT_REPLICAS)", replicas, c.options.WaitReplicas),
			"start replicas, or lower REDIS_WAIT_REPLICAS; until then a failover can lose charges")
	}
	if info["aof_enabled"] == "0" && replicas == 0 {
		c.add(CheckPersistence, LevelNote, "Redis has no append-only file and no replicas; a restart can lose counters", "set appendonly yes to keep them")
	}
}

// IsUnreachable reports whether f says that a server did not answer.
func (f Finding) IsUnreachable() bool { return f.Check == CheckConnection }

package simulate

import (
	"bufio"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/backend/redis"
	"github.com/seed-81f232ab/rls/limit/quota"
	"github.com/seed-81f232ab/rls/test/simulate/redismodel"
	"github.com/seed-81f232ab/rls/test/simulate/resp"
)

// quotaWorld has Envoys that share a limit, and replicas whose states are in the simulated Redis. The replicas use the real
// scripts over a real connection. The clock of the world stands still during an update.
type quotaWorld struct {
	sync.Mutex     // held by the goroutine that works; an update frees it while it waits for Redis
	testing        *testing.T
	limit, applied quota.Limit // applied differs in a mutant
	now            int64       // microseconds
	random         *rand.Rand
	envoys         []*quotaEnvoy
	replicas       []*quotaReplica
	messages       []quotaMessage

	server                                     *redismodel.Server
	stored                                     string               // the last state that Redis has stored
	steps                                      map[string]quotaStep // by the new state
	updatingReplica                            *quotaReplica
	isNested                                   bool // an update runs between the two scripts of another one
	acceptedCount, conflicts, failures, losses int
	problems                                   []string
}

type quotaEnvoy struct {
	holder                              quota.HolderID // of the open stream
	replica                             *quotaReplica
	nextReport, reportArrival, grantWay int64
	rate, expiry                        int64 // what the Envoy enforces
}

type quotaReplica struct {
	store        *redis.Quotas
	envoys       map[quota.HolderID]*quotaEnvoy
	reports      map[quota.HolderID]quota.Report
	knownHolders []quota.Holder
}

// quotaMessage is lost if the stream has another holder at its arrival.
type quotaMessage struct {
	arrival int64
	envoy   *quotaEnvoy
	holder  quota.HolderID
	deliver func()
}

func newQuotaWorld(t *testing.T, seed uint64) *quotaWorld {
	l := quota.Limit{Rate: 6000, Interval: 60e6, Burst: 400, MinShare: 0.01, Headroom: 0.01, TTL: 15e6, Delay: 1e6}
	w := &quotaWorld{testing: t, limit: l, applied: l, now: 1000e6, random: rand.New(rand.NewPCG(seed, 7)), server: redismodel.New(), steps: map[string]quotaStep{}}
	t.Cleanup(w.server.Close)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go w.serve(conn)
		}
	}()
	for range 3 {
		store, err := redis.NewQuotas(redis.Server{URL: listener.Addr().String()}, "", 10*time.Second)
		require.NoError(t, err)
		t.Cleanup(func() { _ = store.Close() })
		w.replicas = append(w.replicas, &quotaReplica{store: store, envoys: map[quota.HolderID]*quotaEnvoy{}, reports: map[quota.HolderID]quota.Report{}})
	}
	for range 5 {
		e := &quotaEnvoy{replica: w.replicas[0]}
		w.envoys = append(w.envoys, e)
		w.connect(e)
	}
	return w
}

// serve executes the commands of a connection.
func (w *quotaWorld) serve(conn net.Conn) {
	defer func() { _ = conn.Close() }()
	for r := bufio.NewReader(conn); ; {
		args, err := resp.ReadCommand(r)
		if err != nil {
			return
		}
		reply := w.execute(args)
		if _, err := conn.Write(reply); err != nil || reply == nil {
			return
		}
	}
}

// execute returns nil to break some connections before or after a state is stored. It lets another replica or a loss of all
// data come in between the scripts of an update.
func (w *quotaWorld) execute(args []string) []byte {
	w.Lock()
	defer w.Unlock()
	event, isStore := 100, args[0] == "EVAL" && len(args) == 11
	if isStore && !w.isNested {
		event = w.random.IntN(100)
	}
	switch otherReplica := w.replicas[w.random.IntN(3)]; {
	case event < 3:
		return nil
	case event < 8 && otherReplica != w.updatingReplica:
		w.isNested = true
		w.update(otherReplica)
		w.isNested = false
	case event == 8:
		w.loseData()
	}
	reply := w.server.Do(time.UnixMicro(w.now), args)
	if isStore && reply == int64(1) {
		w.accept(args[5], args[7])
	} else if isStore {
		w.conflicts++
	}
	if event >= 97 && event < 100 {
		return nil
	}
	return resp.AppendReply(nil, reply)
}

func (w *quotaWorld) loseData() {
	w.server.Do(time.UnixMicro(w.now), []string{"MODEL", "RESTART", "EMPTY"})
	w.stored = ""
	w.losses++
}

// connect opens a stream to any replica. The messages of the old stream are lost.
func (w *quotaWorld) connect(e *quotaEnvoy) {
	delete(e.replica.envoys, e.holder)
	delete(e.replica.reports, e.holder)
	*e = quotaEnvoy{quota.HolderID(w.random.Uint64()), w.replicas[w.random.IntN(3)], w.now, 0, 0, e.rate, e.expiry}
	e.replica.envoys[e.holder] = e
}

// send delivers a message after at most 0.3 s, and after the last message in the same direction. A replica counts a report up to
// 0.25 s after its arrival, so Delay covers both ways.
func (w *quotaWorld) send(e *quotaEnvoy, last *int64, deliver func()) {
	*last = max(*last, w.now+w.random.Int64N(300_000))
	w.messages = append(w.messages, quotaMessage{*last, e, e.holder, deliver})
}

func (w *quotaWorld) run() {
	w.Lock()
	defer w.Unlock()
	for range 4000 {
		w.step()
	}
}

// step lets 50 ms pass. Envoys ask for different rates, which change.
func (w *quotaWorld) step() {
	w.now += 50_000
	messages, enforcedRate := w.messages, int64(0)
	w.messages = nil
	for _, m := range messages {
		if m.arrival > w.now {
			w.messages = append(w.messages, m)
		} else if m.holder == m.envoy.holder {
			m.deliver()
		}
	}
	for i, e := range w.envoys {
		if w.now >= e.expiry {
			e.rate = 0
		}
		enforcedRate += e.rate
		if w.random.IntN(800) == 0 {
			w.connect(e)
		}
		if w.now >= e.nextReport {
			report := quota.Report{Holder: e.holder, Requests: w.random.Int64N(200 * int64(i+1)), IsReturning: e.nextReport == w.now}
			w.send(e, &e.reportArrival, func() { e.replica.reports[e.holder] = report })
			e.nextReport = w.now + 5e6
		}
	}
	if enforcedRate > w.limit.Rate {
		w.problem("the Envoys enforce %d of %d", enforcedRate, w.limit.Rate)
	}
	if w.random.IntN(1500) == 0 { // a replica starts again
		r := w.replicas[w.random.IntN(3)]
		for _, id := range slices.Sorted(maps.Keys(r.envoys)) {
			w.connect(r.envoys[id])
		}
		r.knownHolders = nil
	}
	if w.random.IntN(1500) == 0 {
		w.loseData()
	}
	if i := int(w.now / 50_000 % 5); i < 3 && (len(w.replicas[i].reports) > 0 || w.random.IntN(20) == 0) {
		w.update(w.replicas[i])
	}
}

func (w *quotaWorld) problem(format string, args ...any) {
	w.problems = append(w.problems, fmt.Sprintf("%.2f s: ", float64(w.now)/1e6)+fmt.Sprintf(format, args...))
}

// update updates the state as service/quota does.
func (w *quotaWorld) update(r *quotaReplica) {
	if !w.isNested {
		w.updatingReplica = r
	}
	isGone := func(h quota.Holder) bool { return r.envoys[h.ID] == nil }
	update := quota.Update{OwnHolders: slices.DeleteFunc(slices.Clone(r.knownHolders), isGone)}
	for _, id := range slices.Sorted(maps.Keys(r.reports)) {
		update.Reports = append(update.Reports, r.reports[id])
	}
	var grants []quota.Grant
	var stateAfter *quota.State
	change := &backend.QuotaChange{Key: []byte("shop|tenant=acme")}
	change.Apply = func(old []byte, created, now int64) ([]byte, time.Duration) {
		w.Lock()
		defer w.Unlock()
		stateBefore, err := quota.Decode(old)
		stateAfter, _ = quota.Decode(old)
		update.IsFrozen = err != nil || now < created+w.limit.TTL+w.limit.Delay
		grants = stateAfter.Apply(&w.applied, now, update)
		newState := stateAfter.Append(nil)
		w.steps[string(newState)] = quotaStep{now, stateBefore.Holders(), stateAfter.Holders(), update}
		return newState, time.Minute
	}
	w.Unlock()
	r.store.Update(w.testing.Context(), []*backend.QuotaChange{change})
	w.Lock()
	if change.Err != nil {
		w.failures++
		return // the next update has the reports
	}
	clear(r.reports)
	r.knownHolders = slices.DeleteFunc(stateAfter.Holders(), isGone)
	for _, g := range grants {
		if e := r.envoys[g.Holder]; e != nil {
			w.send(e, &e.grantWay, func() { e.rate, e.expiry = g.Rate, w.now+w.limit.TTL })
		}
	}
}

// quotaStep is one change of the state.
type quotaStep struct {
	now           int64
	before, after []quota.Holder
	update        quota.Update
}

// accept checks that a stored state replaces the last stored state, and that an action of docs/model/quota.tla allows the
// step. For the holders of the replica, the step starts from what the replica remembers.
func (w *quotaWorld) accept(old, next string) {
	if old != w.stored {
		w.problem("a state replaces another state than the last one")
	}
	w.stored = next
	w.acceptedCount++
	step := w.steps[next]
	expiry := func(h *quota.Holder) int64 { return max(h.SentAt, h.ReportedAt) + w.limit.TTL + w.limit.Delay }
	holdersBefore, ownHolders := map[quota.HolderID]quota.Holder{}, map[quota.HolderID]bool{}
	for _, h := range step.before {
		holdersBefore[h.ID] = h
	}
	for _, own := range step.update.OwnHolders {
		h, isFound := holdersBefore[own.ID]
		if isFound && h.Rate == own.Rate && h.Burst == own.Burst && h.ReducedAt == own.ReducedAt {
			own.MaxRate = min(own.MaxRate, h.MaxRate)
		}
		holdersBefore[own.ID], ownHolders[own.ID] = own, true
	}
	for _, r := range step.update.Reports {
		ownHolders[r.Holder] = true
	}
	var sum, raisedRate int64
	for _, h := range step.after {
		oldHolder := holdersBefore[h.ID]
		delete(holdersBefore, h.ID)
		confirmedRate := oldHolder.MaxRate
		if h.ReportedAt == step.now && step.now >= oldHolder.ReducedAt+w.limit.Delay {
			confirmedRate = oldHolder.Rate
		}
		sum, raisedRate = sum+h.MaxRate, raisedRate+max(h.Rate-confirmedRate, 0)
		switch isGrant := h.Rate != oldHolder.Rate; {
		case h.MaxRate != max(confirmedRate, h.Rate):
			w.problem("Apply: %d counts, want %d or the new grant %d", h.MaxRate, confirmedRate, h.Rate)
		case isGrant && !ownHolders[h.ID]:
			w.problem("Apply: the grant of another replica changes from %d to %d", oldHolder.Rate, h.Rate)
		case isGrant && h.SentAt != step.now || h.Rate < oldHolder.Rate && h.ReducedAt != step.now:
			w.problem("Apply: a grant changes from %d to %d without its time", oldHolder.Rate, h.Rate)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(holdersBefore)) {
		if h := holdersBefore[id]; expiry(&h) > step.now {
			w.problem("Expire: a holder with the rate %d is forgotten %d us too early", h.MaxRate, expiry(&h)-step.now)
		}
	}
	reserve := int64(float64(w.limit.Rate) * w.limit.Headroom / 2)
	if raisedRate > 0 && sum > w.limit.Rate || step.update.IsFrozen && raisedRate > reserve {
		w.problem("Apply: rates are raised by %d to %d of %d, frozen: %v", raisedRate, sum, w.limit.Rate, step.update.IsFrozen)
	}
}

func TestModelOfQuotasAcceptsEachStepOverRedis(t *testing.T) {
	for seed := range uint64(20) {
		w := newQuotaWorld(t, seed)
		w.run()
		assert.Empty(t, firstOf(w.problems, 5), "seed %d", seed)
		assert.Positive(t, min(w.conflicts, w.failures, w.losses))
		t.Logf("seed %d: %d steps accepted, %d conflicts, %d lost writes or answers, %d losses of all data", seed, w.acceptedCount, w.conflicts, w.failures, w.losses)
	}
}

func TestModelOfQuotasRefusesMistakes(t *testing.T) {
	for name, change := range map[string]func(*quota.Limit){
		"Apply":  func(l *quota.Limit) { l.Delay = 0 },      // any report confirms a decrease
		"Expire": func(l *quota.Limit) { l.TTL -= l.Delay }, // the TTL counts from sending
	} {
		w := newQuotaWorld(t, 1)
		change(&w.applied)
		w.run()
		assert.Contains(t, fmt.Sprint(w.problems), name)
	}
}

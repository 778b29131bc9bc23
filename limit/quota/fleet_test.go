package quota

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
)

const millisecond = second / 1000

// fleet simulates Envoys, the streams to the replicas of rls, and the store. All of them share a clock.
type fleet struct {
	limit            Limit
	now              int64
	random           *rand.Rand
	store            []byte
	expiry           int64
	storeCreated     int64 // the time when the store was created or lost its data
	replicas         []*fleetReplica
	envoys           []*envoy
	messagesInFlight []message // sorted by arrival
	messages         int       // grants and reports since the start
	nextID           HolderID

	// level has the tokens of a single bucket with the rate and burst of the limit. The Envoys may not admit more than
	// this bucket.
	level, lowestLevel float64
	admitted           float64
	largestSum         float64 // the largest sum of enforced rates, as a part of the limit
}

type fleetReplica struct {
	knownHolders []Holder
	openStreams  map[HolderID]*envoy
	reports      map[HolderID]*Report
}

// message is a report if grant is nil.
type message struct {
	arrival int64
	envoy   *envoy
	stream  HolderID
	report  Report
	grant   *Grant
}

// envoy follows the rules of the filter: a bucket starts full, keeps its fill ratio if the grant changes, and ends TTL
// after the receipt of the last grant. Without a grant it denies.
type envoy struct {
	demand      float64 // requests a second
	asksForAll  bool    // more requests than any limit admits
	requestPart float64 // a part of a request that has not come yet
	stream      HolderID
	replica     int // -1 without a stream
	nextReport  int64
	isNew       bool // no report was sent in this process
	unreported  Report
	admitted    float64

	hasBucket        bool
	grant            Grant
	tokens           float64
	filledAt, expiry int64
	lastArrival      int64 // messages of a stream stay in order
	lastGrantArrival int64
	drift            float64
}

func newFleet(l Limit, envoys, replicas int, seed uint64) *fleet {
	f := &fleet{limit: l, now: 1000 * second, random: rand.New(rand.NewPCG(seed, 1)), level: float64(l.Burst), nextID: 1}
	f.lowestLevel = f.level
	for range replicas {
		f.replicas = append(f.replicas, &fleetReplica{openStreams: map[HolderID]*envoy{}, reports: map[HolderID]*Report{}})
	}
	for range envoys {
		f.envoys = append(f.envoys, f.newEnvoy())
	}
	return f
}

func (f *fleet) newEnvoy() *envoy {
	e := &envoy{isNew: true, replica: -1, drift: 1 + (f.random.Float64()-0.5)/1000}
	return e
}

// connect opens a stream, whose first report is sent at once.
func (f *fleet) connect(e *envoy, replica int) {
	e.replica, e.stream = replica, f.nextID*0x9e3779b97f4a7c15
	f.nextID++
	e.lastArrival, e.lastGrantArrival = 0, 0
	f.replicas[replica].openStreams[e.stream] = e
	f.report(e, !e.isNew)
	e.isNew = false
}

func (f *fleet) disconnect(e *envoy) {
	if e.replica >= 0 {
		delete(f.replicas[e.replica].openStreams, e.stream)
		delete(f.replicas[e.replica].reports, e.stream)
	}
	e.replica, e.stream = -1, 0
}

func (f *fleet) report(e *envoy, isReturning bool) {
	e.nextReport = f.now + 5*second
	e.lastArrival = max(e.lastArrival, f.now+f.latency())
	r := e.unreported
	r.Holder, r.IsReturning = e.stream, isReturning
	f.send(message{arrival: e.lastArrival, envoy: e, stream: e.stream, report: r})
	e.unreported = Report{}
}

// latency returns a time of at most a third of Delay, so that a tick and two messages fit in it.
func (f *fleet) latency() int64 { return f.random.Int64N(f.limit.Delay/3 + 1) }

func (f *fleet) send(m message) {
	f.messages++
	i, _ := slices.BinarySearchFunc(f.messagesInFlight, m, func(a, b message) int { return cmp.Or(cmp.Compare(a.arrival, b.arrival), -1) })
	f.messagesInFlight = slices.Insert(f.messagesInFlight, i, m)
}

// deliver hands over the messages that have arrived. Messages of an ended stream are lost.
func (f *fleet) deliver() {
	for len(f.messagesInFlight) > 0 && f.messagesInFlight[0].arrival <= f.now {
		m := f.messagesInFlight[0]
		f.messagesInFlight = f.messagesInFlight[1:]
		if m.envoy.stream != m.stream {
			continue
		}
		if m.grant != nil {
			m.envoy.receive(*m.grant, f)
			continue
		}
		r := f.replicas[m.envoy.replica]
		if oldReport := r.reports[m.stream]; oldReport != nil {
			oldReport.Requests += m.report.Requests
			oldReport.Denied += m.report.Denied
		} else {
			r.reports[m.stream] = &m.report
		}
	}
}

func (e *envoy) receive(g Grant, f *fleet) {
	e.fill(f)
	switch {
	case g.Rate == 0:
		e.tokens, e.hasBucket = 0, false
	case !e.hasBucket:
		e.tokens, e.hasBucket = float64(g.Burst), true
	default:
		e.tokens *= float64(g.Burst) / float64(e.grant.Burst)
	}
	e.grant = g
	e.expiry = f.now + int64(float64(f.limit.TTL)*e.drift)
}

// fill adds the tokens of the rate until now, or until the grant expired.
func (e *envoy) fill(f *fleet) {
	if !e.hasBucket {
		return
	}
	until := min(f.now, e.expiry)
	if until > e.filledAt {
		filledTokens := e.tokens + float64(e.grant.Rate)*float64(until-e.filledAt)/float64(f.limit.Interval)
		e.tokens = min(filledTokens, float64(e.grant.Burst))
	}
	e.filledAt = f.now
	if f.now >= e.expiry {
		e.hasBucket, e.tokens = false, 0
	}
}

// request asks the bucket for n requests, and counts the requests that the bucket admits.
func (e *envoy) request(n float64, f *fleet) {
	e.fill(f)
	if !e.hasBucket {
		e.filledAt = f.now
	}
	admittedRequests := 0.0
	if e.hasBucket {
		admittedRequests = math.Floor(min(e.tokens+1e-9, n))
	}
	e.tokens -= admittedRequests
	e.unreported.Requests += int64(n)
	e.unreported.Denied += int64(n - admittedRequests)
	e.admitted += admittedRequests
	f.admitted += admittedRequests
	f.level -= admittedRequests
	f.lowestLevel = min(f.lowestLevel, f.level)
}

// step lets the time pass: requests come, messages arrive, and reports are sent.
func (f *fleet) step(elapsed int64) {
	f.now += elapsed
	f.level = min(f.level+float64(f.limit.Rate)*float64(elapsed)/float64(f.limit.Interval), float64(f.limit.Burst))
	f.deliver()
	sum := 0.0
	for _, e := range f.envoys {
		if e.replica >= 0 && f.now >= e.nextReport {
			f.report(e, false)
		}
		e.requestPart += e.demand * float64(elapsed) / second * 2 * f.random.Float64()
		if e.asksForAll {
			e.request(1e6, f)
		} else if n := math.Floor(e.requestPart); n > 0 {
			e.requestPart -= n
			e.request(n, f)
		} else {
			e.fill(f)
		}
		if e.hasBucket {
			sum += float64(e.grant.Rate)
		}
	}
	f.largestSum = max(f.largestSum, sum/float64(f.limit.Rate))
}

// outcome says what happened to the write of an update.
type outcome int

const (
	writeAnswered outcome = iota
	writeFailed           // the store could not be reached
	answerLost            // the store wrote the state, but the answer was lost
)

// update applies the reports of a replica. A replica without reports also applies, because targets may have changed.
func (f *fleet) update(replica int, o outcome) {
	r := f.replicas[replica]
	u := Update{IsFrozen: f.now < f.storeCreated+f.limit.TTL+f.limit.Delay}
	for _, id := range sortedIDs(r.reports) {
		u.Reports = append(u.Reports, *r.reports[id])
	}
	for _, h := range r.knownHolders {
		if r.openStreams[h.ID] != nil {
			u.OwnHolders = append(u.OwnHolders, h)
		}
	}
	if o == writeFailed {
		return
	}
	s, err := Decode(f.store)
	if err != nil {
		panic(err)
	}
	grants := s.Apply(&f.limit, f.now, u)
	f.store, f.expiry = s.Append(nil), s.Expiry(&f.limit)
	if o == answerLost {
		return
	}
	r.knownHolders = r.knownHolders[:0]
	for _, h := range s.holders {
		if r.openStreams[h.ID] != nil {
			r.knownHolders = append(r.knownHolders, h)
		}
	}
	clear(r.reports)
	for _, g := range grants {
		if e := r.openStreams[g.Holder]; e != nil {
			e.lastGrantArrival = max(e.lastGrantArrival, f.now+f.latency())
			f.send(message{arrival: e.lastGrantArrival, envoy: e, stream: g.Holder, grant: &g})
		}
	}
}

func sortedIDs(reports map[HolderID]*Report) []HolderID {
	ids := make([]HolderID, 0, len(reports))
	for id := range reports {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

// run lets time pass for the fleet. Replicas with reports update every 250 ms.
func (f *fleet) run(duration, step int64) {
	for end := f.now + duration; f.now < end; {
		timeBefore := f.now
		f.step(step)
		for i, r := range f.replicas {
			if (len(r.reports) > 0 || f.expiry > 0 && f.now >= f.expiry) && timeBefore/(250*millisecond) != f.now/(250*millisecond) {
				f.update(i, writeAnswered)
			}
		}
	}
}

// measureUse calls run, and returns the part of the limit that was admitted in this time.
func (f *fleet) measureUse(duration, step int64) float64 {
	admittedBefore := f.admitted
	f.run(duration, step)
	return (f.admitted - admittedBefore) / (float64(f.limit.Rate) * float64(duration) / float64(f.limit.Interval))
}

// jainIndex returns Jain's index of what the Envoys have admitted: 1 if all are equal.
func jainIndex(values []float64) float64 {
	sum, squares := 0.0, 0.0
	for _, v := range values {
		sum += v
		squares += v * v
	}
	return sum * sum / (float64(len(values)) * squares)
}

package main

// replica is a process of rls: its cores, its queues and its leases.
type replica struct {
	s      *simulation
	coreAt [cores]int64 // times at which the cores are free
	cpu    int64        // CPU time of a call
	queues []queue      // by partition
	leases map[int]*lease
	// denied has the keys whose denial the deny cache remembers. The window ends after the run.
	denied map[int]bool
	local  map[int]int // hits that the fallback has admitted, by key
}

// call is a hit on the way through a replica.
type call struct {
	key  int
	at   int64 // of its arrival
	take int   // permits that a refill asks for; 0 for a call of a client
}

// queue has the calls that wait for the next trip to a partition. One trip is under way at most
// (REDIS_MAX_INFLIGHT_BATCHES).
type queue struct {
	calls  []call
	isBusy bool
}

// lease is the permits of a key that a replica holds.
type lease struct {
	held, low int
	isBusy    bool
}

func newReplica(s *simulation) *replica {
	r := &replica{s: s, queues: make([]queue, s.partitions()), leases: map[int]*lease{}, denied: map[int]bool{}, local: map[int]int{}}
	r.cpu = int64(s.serverMicros() * micro)
	s.after(int64(s.random.Float64()*float64(s.distance())), r.arrive)
	return r
}

// arrive lets a call arrive, and plans the next one.
func (r *replica) arrive() {
	s := r.s
	s.after(s.distance(), r.arrive)
	c := call{key: s.random.IntN(s.Keys), at: s.now}
	core := 0
	for i, at := range r.coreAt {
		if at < r.coreAt[core] {
			core = i
		}
	}
	start := max(r.coreAt[core], s.now)
	r.coreAt[core] = start + r.cpu
	s.after(start-s.now, func() { r.decide(c) })
}

// decide decides a call here, or puts it into the queue of its partition.
func (r *replica) decide(c call) {
	switch {
	case r.denied[c.key]:
		r.answer(c)
	case r.s.Lease && r.usePermit(c.key):
		r.answer(c)
	default:
		r.push(c)
	}
}

func (r *replica) push(c call) {
	q := &r.queues[c.key%len(r.queues)]
	if len(q.calls) >= maxQueue {
		r.fallBack(c)
		return
	}
	q.calls = append(q.calls, c)
	if !q.isBusy {
		r.send(c.key % len(r.queues))
	}
}

// send sends the first calls of a queue to the node of the partition. Calls that waited too long
// go to the fallback.
func (r *replica) send(partition int) {
	s, q := r.s, &r.queues[partition]
	var batch []call
	taken := 0
	for _, c := range q.calls {
		if len(batch) == maxBatch {
			break
		}
		taken++
		if s.now-c.at > maxWait && c.take == 0 {
			r.fallBack(c)
			continue
		}
		batch = append(batch, c)
	}
	q.calls = append(q.calls[:0], q.calls[taken:]...)
	q.isBusy = len(batch) > 0
	if !q.isBusy {
		return
	}
	way := int64(s.Network * micro / 2)
	s.after(way, func() {
		answered := s.serve(&s.nodes[partition%len(s.nodes)], s.now, r.commands(batch))
		answers := r.charge(batch)
		s.after(answered-s.now+way, func() {
			for i, c := range batch {
				r.finish(c, answers[i])
			}
			r.send(partition)
		})
	})
}

// commands returns the number of commands of a batch: one for each key, and one more for a key
// that is new in this replica.
func (r *replica) commands(batch []call) (n int) {
	keys := make(map[int]struct{}, len(batch))
	for _, c := range batch {
		if _, seen := keys[c.key]; !seen {
			keys[c.key] = struct{}{}
			n++
			if r.s.random.Float64() < r.s.newKeys {
				n++
			}
		}
	}
	r.s.hits += len(batch)
	return n
}

// charge charges the counters. It returns the number of admitted hits or taken permits of each
// call.
func (r *replica) charge(batch []call) []int {
	answers := make([]int, len(batch))
	for i, c := range batch {
		counter := &r.s.counters[c.key]
		want := max(c.take, 1)
		if r.s.Limit > 0 && counter.charged+want > r.s.Limit {
			continue
		}
		counter.charged += want
		answers[i] = want
		if c.take > 0 {
			counter.held += want
		} else {
			counter.admitted++
		}
	}
	return answers
}

// finish handles the answer of Redis to a call or a refill.
func (r *replica) finish(c call, answer int) {
	s := r.s
	if c.take > 0 {
		l := r.leases[c.key]
		l.isBusy, l.held = false, l.held+answer
		l.low = l.held / 2
		return
	}
	if s.now-c.at > budget {
		r.fallBack(c)
		return
	}
	if answer == 0 {
		r.denied[c.key] = true
	}
	r.answer(c)
}

// fallBack decides a call in the replica, at a part of the limit.
func (r *replica) fallBack(c call) {
	s := r.s
	s.fallback++
	if float64(r.local[c.key]) < fallbackPart*float64(s.Limit) {
		r.local[c.key]++
		s.counters[c.key].admitted++
	}
	r.answer(c)
}

// answer counts the answer to a call. A call returns at the end of its budget at the latest.
func (r *replica) answer(c call) {
	s := r.s
	s.calls++
	s.latencies = append(s.latencies, min(float64(s.now-c.at), budget)/micro+s.Call)
}

// usePermit uses a permit of a lease, and starts a refill when permits run low. It returns false
// if there is no permit.
func (r *replica) usePermit(key int) bool {
	s := r.s
	l := r.leases[key]
	if l == nil {
		l = &lease{}
		r.leases[key] = l
	}
	ok := l.held > 0
	if ok {
		l.held--
		s.counters[key].held--
		s.counters[key].admitted++
	}
	if take := r.wanted(key) - l.held; !l.isBusy && l.held <= l.low && take > 1 {
		l.isBusy = true
		r.push(call{key: key, at: s.now, take: take})
	}
	return ok
}

// wanted returns the permits that a lease should have: the demand of the horizon, at most the
// share of the replica in the waste, and less near the limit.
func (r *replica) wanted(key int) int {
	s := r.s
	demand := s.Rate / float64(s.Replicas*s.Keys) * leaseHorizon
	if s.Limit == 0 {
		return int(demand)
	}
	share := s.Waste * float64(s.Limit) / float64(s.Replicas)
	remaining := float64(s.Limit-s.counters[key].charged) / nearPart
	return int(min(demand, share, remaining))
}

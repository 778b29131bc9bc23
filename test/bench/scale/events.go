package main

// event is a moment at which a part of the simulation acts.
type event struct {
	at  int64  // nanoseconds since the start
	seq uint64 // orders events of the same moment, so that each run is the same
	act func()
}

func (e event) before(other event) bool {
	return e.at < other.at || e.at == other.at && e.seq < other.seq
}

// clock runs events in the order of their times. Its events are a binary heap.
type clock struct {
	now    int64
	seq    uint64
	events []event
}

// after lets act run in some nanoseconds.
func (c *clock) after(delay int64, act func()) {
	c.seq++
	c.events = append(c.events, event{c.now + max(delay, 0), c.seq, act})
	for i := len(c.events) - 1; i > 0; {
		parent := (i - 1) / 2
		if !c.events[i].before(c.events[parent]) {
			break
		}
		c.events[i], c.events[parent] = c.events[parent], c.events[i]
		i = parent
	}
}

// run runs all events up to a time.
func (c *clock) run(until int64) {
	for len(c.events) > 0 && c.events[0].at <= until {
		next := c.pop()
		c.now = next.at
		next.act()
	}
	c.now = until
}

// pop removes the first event.
func (c *clock) pop() event {
	first, last := c.events[0], len(c.events)-1
	c.events[0] = c.events[last]
	c.events[last] = event{}
	c.events = c.events[:last]
	for i := 0; ; {
		child := 2*i + 1
		if child >= last {
			break
		}
		if right := child + 1; right < last && c.events[right].before(c.events[child]) {
			child = right
		}
		if !c.events[child].before(c.events[i]) {
			break
		}
		c.events[i], c.events[child] = c.events[child], c.events[i]
		i = child
	}
	return first
}

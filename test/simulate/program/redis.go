package main

import (
	"bufio"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"github.com/seed-81f232ab/rls/test/simulate/netmodel"
	"github.com/seed-81f232ab/rls/test/simulate/resp"
)

// redisServer is the simulated Redis: the model of its commands, which runs outside of the
// program, behind a network. Only one goroutine of the program runs at a time, so nothing here
// needs a lock.
type redisServer struct {
	number        uint32 // of its model in the host
	clockStep     time.Duration
	clockDrift    float64       // seconds in a second
	epoch         int           // number of restarts
	stallEnd      chan struct{} // closed at the end of the stall; nil if the server runs
	lastStallEnd  time.Time     // end of the last stall
	lastCommandAt time.Time
	lastLink      string // of the last command
	history       history

	// recordCommand records a command in place of history, if it is not nil.
	recordCommand func(at time.Duration, args []string, reply []byte)
}

// execute executes a command in the model. It returns the reply as Redis would send it.
func (r *redisServer) execute(args ...string) []byte { return r.executeAt(time.Now(), args) }

// executeAt is execute at a time, which is not before the last command. It records the changed counters.
func (r *redisServer) executeAt(at time.Time, args []string) []byte {
	r.lastCommandAt = at
	reply := r.run(at, args)
	if r.recordCommand != nil {
		r.recordCommand(at.Sub(startTime), args, reply)
		return reply
	}
	r.history.record(at.Sub(startTime), countersIn(args), func(name string) string { return r.valueOf(at, name) })
	return reply
}

// countersIn returns the arguments that are names of counters of calls.
func countersIn(args []string) (names []string) {
	for _, arg := range args {
		if _, isOwn := callOfCounter(arg); isOwn || isTightCounter(arg) {
			names = append(names, arg)
		}
	}
	return names
}

// valueOf returns the value of a key as text. A list has spaces between its elements.
func (r *redisServer) valueOf(at time.Time, name string) string {
	_, value, _ := strings.Cut(string(r.run(at, []string{"MODEL", "VALUE", name})), "\r\n")
	return strings.TrimSuffix(value, "\r\n")
}

// run executes a command in the model.
func (r *redisServer) run(at time.Time, args []string) []byte {
	command := resp.AppendCommand(nil, args)
	size := hostExecute(r.number, r.timeAt(at).UnixMicro(), unsafe.Pointer(&command[0]), uint32(len(command)))
	reply := make([]byte, size)
	hostReply(unsafe.Pointer(&reply[0]))
	return reply
}

// timeAt returns what the clock of the server shows at a time.
func (r *redisServer) timeAt(at time.Time) time.Time {
	return at.Add(r.clockStep + time.Duration(r.clockDrift*float64(at.Sub(startTime))))
}

// serve executes the commands of a connection, at the times at which they arrive.
func (r *redisServer) serve(conn *netmodel.Conn) {
	defer func() { _ = conn.Close() }()
	reader, epoch := bufio.NewReader(conn), r.epoch
	var replies []byte
	send := func(at time.Time) error {
		_, err := conn.WriteAt(replies, at)
		replies = replies[:0]
		return err
	}
	for {
		args, err := resp.ReadCommand(reader)
		if err != nil {
			return
		}
		var waitEnd time.Time
		if args[0] == "WAIT" {
			if len(replies) > 0 && send(r.lastCommandAt) != nil {
				return
			}
			waitEnd = awaitReplicas(conn.ArrivalTime(), args)
		}
		if r.stallEnd != nil {
			<-r.stallEnd
		}
		if epoch != r.epoch {
			return // the server has crashed with what it had received
		}
		at := slices.MaxFunc([]time.Time{conn.ArrivalTime(), waitEnd, r.lastStallEnd, r.lastCommandAt}, time.Time.Compare)
		r.lastLink = conn.LocalAddr().String()
		reply := r.executeAt(at, args)
		replies = append(replies, reply...)
		logf("redis %s: %.60q", commandText(args), reply)
		if reader.Buffered() == 0 {
			if err := send(at); err != nil {
				return
			}
		}
	}
}

// timerPause is the pause between two timers of a Redis with its default hz.
const timerPause = 100 * time.Millisecond

// awaitReplicas waits as the WAIT command in args, which has arrived at a time. It returns the end of the
// wait. The simulated Redis has no replicas, so no replica ends the wait early. An idle Redis notices the
// end at its next timer.
func awaitReplicas(arrival time.Time, args []string) (end time.Time) {
	millis, err := strconv.Atoi(args[len(args)-1])
	if err != nil || millis == 0 {
		panic("WAIT: got no time limit, want one in milliseconds")
	}
	end = arrival.Add(time.Duration(millis) * time.Millisecond).Truncate(timerPause).Add(timerPause)
	time.Sleep(time.Until(end))
	return end
}

// commandText returns a command for the trace, without the text of scripts.
func commandText(args []string) string {
	var b strings.Builder
	for i, arg := range args {
		if len(arg) > 64 {
			arg = arg[:61] + "…"
		}
		if i > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(strconv.Quote(arg))
	}
	return b.String()
}

func (r *redisServer) stall() {
	if r.stallEnd == nil {
		r.stallEnd = make(chan struct{})
	}
}

func (r *redisServer) resume() {
	if r.stallEnd != nil {
		close(r.stallEnd)
		r.stallEnd, r.lastStallEnd = nil, time.Now()
	}
}

// restart ends the process with all it has received, and starts it with the kept copy of the
// counters, or empty.
func (r *redisServer) restart(isEmpty bool) {
	r.epoch++
	r.resume()
	if isEmpty {
		r.execute("MODEL", "RESTART", "EMPTY")
	} else {
		r.execute("MODEL", "RESTART", "COPY")
	}
	if r.recordCommand != nil {
		return
	}
	names := slices.Collect(maps.Keys(r.history.states))
	now := time.Now()
	r.history.record(now.Sub(startTime), names, func(name string) string { return r.valueOf(now, name) })
}

// keepCopy keeps a copy of the counters for the next restart.
func (r *redisServer) keepCopy() { r.execute("MODEL", "COPY") }

// setMode changes what the server lets clients do.
func (r *redisServer) setMode(m resp.Mode) { r.execute("MODEL", "MODE", strconv.Itoa(int(m))) }

// deleteTightCounter deletes the counters of the tight limit, but not those of its lease.
func (r *redisServer) deleteTightCounter() {
	var names []string
	r.eachCounter(func(name, _ string, _ bool) {
		if isTightCounter(name) && !isLeaseCounter(name) {
			names = append(names, name)
		}
	})
	if len(names) > 0 {
		r.execute(append([]string{"DEL"}, names...)...)
	}
}

// eachCounter calls f with each key that has not expired. The text of a sorted set is empty.
func (r *redisServer) eachCounter(f func(name, text string, hasExpiry bool)) {
	_, list, _ := strings.Cut(string(r.execute("MODEL", "LIST")), "\r\n")
	for line := range strings.Lines(strings.TrimSuffix(list, "\r\n")) {
		var name, text string
		var hasExpiry bool
		if _, err := fmt.Sscanf(line, "%q %q %t\n", &name, &text, &hasExpiry); err != nil {
			panic(err) // the model writes such lines
		}
		f(name, text, hasExpiry)
	}
}

package events

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/backend/fallback"
	"github.com/seed-81f232ab/rls/backend/redis"
	"github.com/seed-81f232ab/rls/internal/base/wait"
	"github.com/seed-81f232ab/rls/internal/observe/metrics"
	"github.com/seed-81f232ab/rls/internal/observe/timeline"
	"github.com/seed-81f232ab/rls/limit"
)

// StoreOptions describe a store. A store is the server that keeps the counters, such as Redis.
type StoreOptions struct {
	Name    string             // the name in texts, such as Redis
	Address string             // host:port, without secrets
	Advice  func(error) string // returns advice to an operator about an error
	Shards  []metrics.Shard

	Mode  limit.FailureMode // the way in which this process decides hits while the store is down
	Ratio float64           // the share of each limit that this process admits in mode local

	NeedsStore  bool   // the process is unhealthy while the store is down
	OutageEnded func() // is called after each outage; may be nil
}

// Store reports outages of a store. It implements fallback.Observer.
type Store struct {
	fallback.Observer // reports to the metrics
	*Events
	StoreOptions

	mu             sync.Mutex
	loggedOpenings map[int]loggedOpening // the key is the shard
	outageLog      outageLog
}

// outageLog bounds the log lines about outages and blips. After a line, it counts further outages and blips for
// outageLogPause, and then logs one line about all of them. But blips never delay the line about the start of an outage.
// Each outage whose start has a line has a line about its end.
type outageLog struct {
	pauseEnd        time.Time // until then, new blips are only counted
	outagePauseEnd  time.Time // until then, new outages are only counted
	isStartLogged   bool      // the log has a line about the start of the last outage
	isDown          bool
	outages, blips  int // the counted outages and blips
	calls           int64
	maxExcessHits   int64
	lastOutageError error
}

// loggedOpening describes the last log line about the opening of a breaker.
type loggedOpening struct {
	openedAt time.Time
	isOpen   bool // the log has no line about the end of this opening yet
}

const (
	progressPause   = time.Minute      // the time between two log lines about the current outage
	outageLogPause  = 10 * time.Second // see outageLog
	breakerLogPause = 10 * time.Second // the shortest time between two log lines about openings of the same breaker
)

// NewStore returns the observer of a store that has not answered yet.
func (e *Events) NewStore(o StoreOptions) *Store {
	s := &Store{Observer: e.Metrics.Fallback(), Events: e, StoreOptions: o, loggedOpenings: map[int]loggedOpening{}}
	s.setHealth(false, "no connection to "+s.Name+" yet")
	return s
}

// Connected reports the first answer of the store.
func (s *Store) Connected() { s.setHealth(true, "") }

func (s *Store) setHealth(isUp bool, detail string) {
	if s.NeedsStore {
		s.Health.Set(strings.ToLower(s.Name), isUp, detail)
	}
}

// StateChanged implements fallback.Observer.
func (s *Store) StateChanged(c fallback.StateChange) {
	s.Observer.StateChanged(c)
	o := &c.Outage
	s.setHealth(!c.Down, "no connection to "+s.Name)
	if c.Down {
		s.Health.Note(strings.ToLower(s.Name), fmt.Sprintf("down since %s; deciding without %s (mode %s, ratio %v)",
			time.Now().UTC().Format(time.RFC3339), s.Name, s.Mode, s.Ratio))
		s.recordOutage(slog.LevelError, c, s.Name+" outage started",
			"kind", redis.KindOf(o.Err).String(), "error", o.Err, "address", s.Address, "hits", s.decidedHits(), "advice", s.Advice(o.Err))
		return
	}
	s.Health.Note(strings.ToLower(s.Name), "")
	if s.OutageEnded != nil {
		s.OutageEnded()
	}
	s.recordOutage(slog.LevelInfo, c, s.Name+" outage ended",
		append(priceAttrs(o), "hits_replayed", o.Replayed, "counters_kept", o.CountersKept)...)
}

// decidedHits says how the service decides hits without the store, such as "admitted".
func (s *Store) decidedHits() string {
	switch s.Mode {
	case limit.FailAllow:
		return "admitted"
	case limit.FailDeny:
		return "denied"
	}
	return fmt.Sprintf("counted here, up to %v of each limit", s.Ratio)
}

// LogProgress logs the price of an outage in progress each minute until ctx is done.
func (s *Store) LogProgress(ctx context.Context, status func() fallback.Status) {
	for wait.Sleep(ctx, progressPause) {
		if currentStatus := status(); currentStatus.Down {
			s.Log.Warn(s.Name+" outage not over", priceAttrs(&currentStatus.Outage)...)
		}
	}
}

// BlipEnded implements fallback.Observer.
func (s *Store) BlipEnded(blip fallback.Outage) {
	s.Observer.BlipEnded(blip)
	s.recordOutage(slog.LevelWarn, fallback.StateChange{Outage: blip}, "hits decided without "+s.Name+" for a short time", priceAttrs(&blip)...)
}

// recordOutage adds an event about an outage or a blip, and logs or counts it. An Outage without Err is a blip.
func (s *Store) recordOutage(level slog.Level, c fallback.StateChange, text string, attrs ...any) {
	e := timeline.Event{Kind: timeline.Breaker, Repeats: true, Failed: c.Down, Text: text, Attrs: details(attrs...)}
	if c.Down {
		e.Time = c.Outage.Start
	}
	s.Add(e)
	s.mu.Lock()
	defer s.mu.Unlock()
	l := &s.outageLog
	isBlip, isAwaitedEnd, hasCounted := c.Outage.Err == nil, false, l.outages+l.blips > 0
	if !isBlip {
		isAwaitedEnd = !c.Down && l.isStartLogged
		l.isDown, l.isStartLogged = c.Down, false
	}
	now := time.Now()
	if isAwaitedEnd || !hasCounted && now.After(l.pauseEnd) || c.Down && now.After(l.outagePauseEnd) {
		s.Log.Log(context.Background(), level, text, attrs...)
		l.isStartLogged = c.Down
		if !hasCounted {
			l.pauseEnd = now.Add(outageLogPause)
		}
		if !isBlip {
			l.outagePauseEnd = now.Add(outageLogPause)
		}
		return
	}
	if !hasCounted {
		time.AfterFunc(time.Until(l.pauseEnd), s.logRepeatedOutages)
	}
	switch {
	case isBlip:
		l.blips++
	case c.Down:
		l.outages, l.lastOutageError = l.outages+1, c.Outage.Err
	}
	l.calls, l.maxExcessHits = l.calls+c.Outage.Calls, l.maxExcessHits+c.Outage.MaxExcessHits
}

func (s *Store) logRepeatedOutages() {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := &s.outageLog
	attrs := []any{"address", s.Address, "outages", l.outages, "blips", l.blips, "is_down", l.isDown, "calls", l.calls, "most_beyond_limits", l.maxExcessHits}
	if l.lastOutageError != nil {
		attrs = append(attrs, "error", l.lastOutageError, "advice", s.Advice(l.lastOutageError))
	}
	text := s.Name + " outages repeated"
	if l.outages == 0 && l.blips > 0 {
		text = "hits decided without " + s.Name + " for short times"
	}
	s.Log.Warn(text, attrs...)
	pauseEnd := time.Now().Add(outageLogPause)
	*l = outageLog{pauseEnd: pauseEnd, outagePauseEnd: pauseEnd, isDown: l.isDown, isStartLogged: l.isDown}
}

// BreakerChanged implements fallback.Observer. With a single breaker, it logs nothing, because each opening is an outage
// and has its own lines.
func (s *Store) BreakerChanged(c fallback.BreakerChange) {
	s.Observer.BreakerChanged(c)
	if len(s.Shards) == 1 {
		return
	}
	shard := s.Shards[c.Shard]
	s.mu.Lock()
	defer s.mu.Unlock()
	lastOpening := s.loggedOpenings[c.Shard]
	switch {
	case c.Open && time.Since(lastOpening.openedAt) >= breakerLogPause:
		s.loggedOpenings[c.Shard] = loggedOpening{openedAt: time.Now(), isOpen: true}
		s.Log.Warn(s.Name+" breaker opened", "server", shard.Server, "shard", shard.Name, "kind", redis.KindOf(c.Err).String(), "error", c.Err)
	case !c.Open && lastOpening.isOpen:
		s.loggedOpenings[c.Shard] = loggedOpening{openedAt: lastOpening.openedAt}
		s.Log.Info(s.Name+" breaker closed", "server", shard.Server, "shard", shard.Name, "open_for", c.OpenFor.Round(time.Millisecond))
	}
}

// priceAttrs returns names and values, in turn, that describe the price of an outage.
func priceAttrs(o *fallback.Outage) []any {
	attrs := []any{
		"lasted", o.Duration().Round(time.Millisecond), "calls", o.Calls, "calls_admitted", o.AdmittedCalls,
		"hits_admitted", o.AdmittedHits, "most_beyond_limits", o.MaxExcessHits,
	}
	for _, reason := range backend.Reasons {
		if n := o.ByReason[reason]; n > 0 {
			attrs = append(attrs, reason.String(), n)
		}
	}
	if limits := fallback.PriceText(o.Limits); limits != "" {
		attrs = append(attrs, "limits", limits)
	}
	return attrs
}

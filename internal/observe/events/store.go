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
	lastLine       time.Time             // the time of the last log line about an outage or a blip
	lastStartLine  time.Time             // the time of the last log line about the start of an outage
	isStartLogged  bool                  // the log has a line about the start of the last outage
}

// loggedOpening describes the last log line about the opening of a breaker.
type loggedOpening struct {
	openedAt         time.Time
	needsClosingLine bool // the log has no line yet that the breaker has closed
}

const (
	progressPause   = time.Minute      // the time between two log lines about the current outage
	outageLogPause  = 10 * time.Second // the shortest time between two log lines about blips or about starts of outages
	breakerLogPause = 10 * time.Second // the shortest time between two log lines about openings of the same breaker
)

// NewStore returns the observer of a store that has not answered yet.
func (e *Events) NewStore(options StoreOptions) *Store {
	store := &Store{Observer: e.Metrics.Fallback(), Events: e, StoreOptions: options, loggedOpenings: map[int]loggedOpening{}}
	store.setHealth(false, "no connection to "+store.Name+" yet")
	return store
}

// Connected reports the first answer of the store.
func (s *Store) Connected() { s.setHealth(true, "") }

func (s *Store) setHealth(isUp bool, detail string) {
	if s.NeedsStore {
		s.Health.Set(strings.ToLower(s.Name), isUp, detail)
	}
}

// StateChanged implements fallback.Observer.
func (s *Store) StateChanged(change fallback.StateChange) {
	s.Observer.StateChanged(change)
	outage := &change.Outage
	s.setHealth(!change.Down, "no connection to "+s.Name)
	if change.Down {
		s.Health.Note(strings.ToLower(s.Name), fmt.Sprintf("down since %s; deciding without %s (mode %s, ratio %v, or as the rule says)",
			time.Now().UTC().Format(time.RFC3339), s.Name, s.Mode, s.Ratio))
		s.recordOutage(slog.LevelError, change, s.Name+" outage started",
			append(s.causeAttrs(outage.Err), "address", s.Address, "hits", s.decisionText())...)
		return
	}
	s.Health.Note(strings.ToLower(s.Name), "")
	if s.OutageEnded != nil {
		s.OutageEnded()
	}
	s.recordOutage(slog.LevelInfo, change, s.Name+" outage ended",
		append(priceAttrs(outage), "hits_replayed", outage.ReplayedHits, "counters_kept", outage.CountersKept)...)
}

func (s *Store) causeAttrs(err error) []any {
	return []any{"kind", redis.KindOf(err).String(), "error", err, "advice", s.Advice(err)}
}

// decisionText says how the service decides hits without the store, such as "admitted".
func (s *Store) decisionText() string {
	switch s.Mode {
	case limit.FailAllow:
		return "admitted, or as the rule says"
	case limit.FailDeny:
		return "denied, or as the rule says"
	}
	return fmt.Sprintf("counted here, up to %v of each limit, or as its rule says", s.Ratio)
}

// LogProgress logs the price of an outage in progress after each minute of the outage, until ctx is done.
func (s *Store) LogProgress(ctx context.Context, status func() fallback.Status) {
	for pause := progressPause; wait.Sleep(ctx, pause); {
		currentStatus := status()
		pause = progressPause
		if lasted := currentStatus.Outage.Duration(); currentStatus.Down && lasted < progressPause {
			pause -= lasted
		} else if currentStatus.Down {
			s.Log.Warn(s.Name+" outage not over", append(priceAttrs(&currentStatus.Outage), s.causeAttrs(currentStatus.Outage.Err)...)...)
		}
	}
}

// BlipEnded implements fallback.Observer.
func (s *Store) BlipEnded(blip fallback.Outage) {
	s.Observer.BlipEnded(blip)
	s.recordOutage(slog.LevelWarn, fallback.StateChange{Outage: blip}, "hits decided without "+s.Name+" for a short time", priceAttrs(&blip)...)
}

// recordOutage adds an event about an outage or a blip, and perhaps logs it. An Outage without Err is a blip. If the start
// of an outage has a log line, the end has a line too.
func (s *Store) recordOutage(level slog.Level, change fallback.StateChange, text string, attrs ...any) {
	e := timeline.Event{Kind: timeline.Breaker, Repeats: true, Failed: change.Down, Text: text, Attrs: details(attrs...)}
	if change.Down {
		e.Time = change.Outage.Start
	}
	s.Add(e)
	s.mu.Lock()
	defer s.mu.Unlock()
	now, isLogged := time.Now(), s.isStartLogged
	switch {
	case change.Down:
		isLogged = now.Sub(s.lastStartLine) >= outageLogPause
		s.isStartLogged = isLogged
	case change.Outage.Err == nil:
		isLogged = now.Sub(s.lastLine) >= outageLogPause
	}
	if !isLogged {
		return
	}
	s.lastLine = now
	if change.Down {
		s.lastStartLine = now
	}
	s.Log.Log(context.Background(), level, text, attrs...)
}

// BreakerChanged implements fallback.Observer. With a single breaker, it logs nothing, because each opening is an outage
// and has its own lines.
func (s *Store) BreakerChanged(change fallback.BreakerChange) {
	s.Observer.BreakerChanged(change)
	if len(s.Shards) == 1 {
		return
	}
	shard := s.Shards[change.Shard]
	s.mu.Lock()
	defer s.mu.Unlock()
	lastOpening := s.loggedOpenings[change.Shard]
	switch {
	case change.Open && time.Since(lastOpening.openedAt) >= breakerLogPause:
		s.loggedOpenings[change.Shard] = loggedOpening{openedAt: time.Now(), needsClosingLine: true}
		s.Log.Warn(s.Name+" breaker opened", "server", shard.Server, "shard", shard.Name, "kind", redis.KindOf(change.Err).String(), "error", change.Err)
	case !change.Open && lastOpening.needsClosingLine:
		s.loggedOpenings[change.Shard] = loggedOpening{openedAt: lastOpening.openedAt}
		s.Log.Info(s.Name+" breaker closed", "server", shard.Server, "shard", shard.Name, "open_for", change.OpenTime.Round(time.Millisecond))
	}
}

// priceAttrs returns the price of an outage as names, each followed by its value.
func priceAttrs(outage *fallback.Outage) []any {
	attrs := []any{
		"lasted", outage.Duration().Round(time.Millisecond), "calls", outage.Calls, "calls_admitted", outage.AdmittedCalls,
		"hits_admitted", outage.AdmittedHits, "most_beyond_limits", outage.MaxExcessHits,
	}
	for _, reason := range backend.Reasons {
		if n := outage.ByReason[reason]; n > 0 {
			attrs = append(attrs, reason.String(), n)
		}
	}
	if limits := fallback.PriceText(outage.Limits); limits != "" {
		attrs = append(attrs, "limits", limits)
	}
	return attrs
}

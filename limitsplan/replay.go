package limitsplan

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/seed-81f232ab/rls/backend/local"
	"github.com/seed-81f232ab/rls/descriptors"
	"github.com/seed-81f232ab/rls/service"
)

// Options of a replay.
type Options struct {
	// Settings of the service: SHADOW_MODE, QUOTA_MODE and
	// STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT.
	ShadowMode, QuotaMode, AllOrNone bool

	// MaxKeys is the number of keys in the report; default 20.
	MaxKeys int
}

// maxCounters bounds the counters of a replay, and the keys that the report counts. It bounds
// the memory, too.
const maxCounters = 2_000_000

// replay is a service with a virtual clock and its observer.
type replay struct {
	counts  counts
	call    *Call
	service *service.Service
}

// Run replays all calls of r against the limits in config.
func Run(ctx context.Context, config *descriptors.Config, r Reader, o Options) (*Report, error) {
	if o.MaxKeys <= 0 {
		o.MaxKeys = 20
	}
	var store descriptors.Store
	store.Set(config)
	limiter := local.New(local.Options{AllOrNone: o.AllOrNone, MaxKeys: maxCounters})
	var now time.Time
	p := &replay{counts: newCounts(maxCounters)}
	p.service = service.New(service.Options{
		Limits: &store, Limiter: limiter, Observers: []service.Observer{p},
		Now: func() time.Time { return now }, ShadowMode: o.ShadowMode, QuotaMode: o.QuotaMode,
	})
	var disordered uint64
	for ctx.Err() == nil {
		c, err := r.Next()
		if errors.Is(err, io.EOF) {
			report := p.counts.report(o.MaxKeys)
			report.addNote(disordered, "calls are more than %d lines out of order; they are replayed late", maxSorted)
			report.addNote(uint64(limiter.Evictions()), "counters were forgotten, because the replay has room for %d keys; some denials are missing", maxCounters)
			report.Notes = append(report.Notes, r.Notes()...)
			return report, nil
		}
		if err != nil {
			return nil, err
		}
		if c.Time.Before(now) {
			disordered++ // the clock does not go back
		} else {
			now = c.Time
		}
		p.call = c
		_, _ = p.service.ShouldRateLimit(ctx, c.Request) // Answered counts the error
	}
	return nil, ctx.Err()
}

// Answered implements service.Observer.
func (p *replay) Answered(_ context.Context, c *service.Call) { p.counts.add(p.call, c) }

// addNote adds a note about n things, unless n is 0.
func (r *Report) addNote(n uint64, format string, args ...any) {
	if n > 0 {
		r.Notes = append(r.Notes, fmt.Sprintf("%d ", n)+fmt.Sprintf(format, args...))
	}
}

package limitsplan

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/metadata"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/backend/local"
	"github.com/seed-81f232ab/rls/descriptors"
	"github.com/seed-81f232ab/rls/internal/base/entrytext"
	"github.com/seed-81f232ab/rls/internal/base/fields"
	"github.com/seed-81f232ab/rls/limit"
	"github.com/seed-81f232ab/rls/service"
)

// Options are the options of a replay.
type Options struct {
	ShadowMode, QuotaMode, AllOrNone bool // the settings of the service

	MaxKeys int // the maximum number of keys in the report; the default is 20
}

const maxCounters = 2_000_000 // bounds the counters of a replay, and the keys that the report counts

// replay is a service with a virtual clock. It is also the backend and the observer of this service.
type replay struct {
	counts   replayCounts
	call     *Call
	service  *service.Service
	counters map[int]*local.Limiter // the counters of each replica for limits with scope instance; the key allReplicas has the shared counters
}

// Run replays all calls of reader against config. It fails if reader has no calls, or if no call meets a rule.
func Run(ctx context.Context, config *descriptors.Config, reader Reader, options Options) (*Report, error) {
	if options.MaxKeys <= 0 {
		options.MaxKeys = 20
	}
	var store descriptors.Store
	store.Set(config)
	var now time.Time
	newReplay := &replay{counts: newReplayCounts(maxCounters), counters: map[int]*local.Limiter{}}
	newReplay.service = service.New(service.Options{
		Limits: &store, Limiter: newReplay, Observers: []service.Observer{newReplay},
		Now: func() time.Time { return now }, ShadowMode: options.ShadowMode, QuotaMode: options.QuotaMode, AllOrNone: options.AllOrNone,
	})
	var firstCall *Call
	var lateCalls uint64
	for ctx.Err() == nil {
		call, err := reader.Next()
		if errors.Is(err, io.EOF) {
			if reason := newReplay.reasonForNoReport(config, firstCall); reason != "" {
				return nil, errors.New(strings.Join(append([]string{reason}, reader.Notes()...), "\n"))
			}
			report := newReplay.counts.report(options.MaxKeys)
			report.addNote(lateCalls, "calls are more than %d lines out of order; they are replayed late", maxQueueLength)
			report.addNote(uint64(newReplay.evictions()), "counters were forgotten, because the replay has room for %d keys; some denials are missing", maxCounters)
			report.Notes = append(report.Notes, reader.Notes()...)
			return report, nil
		}
		if err != nil {
			return nil, err
		}
		if firstCall == nil {
			firstCall = call
		}
		if call.Time.Before(now) {
			lateCalls++ // call is replayed after its time, because the clock does not go back
		} else {
			now = call.Time
		}
		newReplay.call = call
		_, _ = newReplay.service.ShouldRateLimit(call.context(ctx), call.Request) // CallAnswered counts the error
	}
	return nil, ctx.Err()
}

func (p *replay) reasonForNoReport(config *descriptors.Config, firstCall *Call) string {
	switch {
	case firstCall == nil:
		return "no call to replay"
	case p.counts.calls.Total == 0:
		return "no call can be replayed; the first error is: " + p.counts.firstFailure.Error()
	case !p.counts.hasMetRule && config.RuleCount() > 0:
		return noRuleText(config, firstCall)
	}
	return ""
}

func noRuleText(config *descriptors.Config, firstCall *Call) string {
	text := fmt.Sprintf("no call meets a rule of the new limits; the first call is %s in domain %s",
		descriptors.QuoteIfNeeded(entrytext.Format(firstCall.Request.Descriptors[0].Entries)), fields.Printable(firstCall.Request.Domain))
	const maxNames = 10
	domain := config.Domain(firstCall.Request.Domain)
	if domain == nil {
		return text + ", and the limits have only the domains " +
			fields.JoinFirst(config.Domains(), maxNames, ", ", func(d *descriptors.Domain) string { return fields.Printable(d.Name) })
	}
	var keys []string
	for _, d := range domain.Source.Descriptors {
		if !slices.Contains(keys, d.Key) {
			keys = append(keys, d.Key)
		}
	}
	return text + ", and the rules of this domain begin with the keys " + fields.JoinFirst(keys, maxNames, ", ", fields.Printable)
}

// Take implements backend.Limiter. Each replica has its own counters for limits with scope instance.
func (p *replay) Take(ctx context.Context, now time.Time, hits []backend.Hit, results []backend.Result) {
	if len(hits) == len(p.call.decisions) {
		for i := range hits {
			// The deny cache charges nothing when it denies a hit.
			if source := p.call.decisions[i].Source; hits[i].N > 0 && source == backend.SourceDenyCache.String() {
				hits[i].Limit = hits[i].Limit.WithChargeDenied(false)
			}
		}
	}
	backend.Scopes{Shared: p.countersOf(allReplicas), Instance: p.countersOf(p.call.replica)}.Take(ctx, now, hits, results)
}

const allReplicas = -1

func (p *replay) countersOf(replica int) backend.Counters {
	if p.counters[replica] == nil {
		p.counters[replica] = local.New(local.Options{MaxKeys: maxCounters})
	}
	return backend.Counters{Limiter: p.counters[replica]}
}

func (p *replay) evictions() (n int64) {
	for _, counters := range p.counters {
		n += counters.Evictions()
	}
	return n
}

func (c *Call) context(ctx context.Context) context.Context {
	callMetadata := metadata.MD{}
	for i := range c.decisions {
		record := c.decisions[i]
		if record.Acquire {
			callMetadata.Set(limit.AcquireKey, "true")
		}
		if record.Hold != "" {
			callMetadata.Set(limit.HoldKey, record.Hold)
		}
	}
	if len(callMetadata) == 0 {
		return ctx
	}
	return metadata.NewIncomingContext(ctx, callMetadata)
}

func (p *replay) CallAnswered(_ context.Context, c *service.Call) { p.counts.add(p.call, c) }

func (r *Report) addNote(n uint64, format string, args ...any) {
	if n > 0 {
		r.Notes = append(r.Notes, fmt.Sprintf("%d ", n)+fmt.Sprintf(format, args...))
	}
}

package service

import (
	"context"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/seed-81f232ab/rls/backend"
)

// Item is one of several requests that AnswerAll answers.
type Item struct {
	Context context.Context // with the metadata of the call; also for the Observers
	Request *rlsv3.RateLimitRequest
}

// AnswerAll answers independent requests, each as ShouldRateLimit does. The hits of all requests
// go to the Limiter in one Take, in the order of the requests. A request goes alone if its hits
// must be charged together, or if a hit exceeds the max_hits of its rule.
//
// answered is called for each request in order. The Call is valid only until answered returns.
func (s *Service) AnswerAll(ctx context.Context, items []Item, answered func(i int, c *Call)) {
	now := s.o.Now()
	all := make([]*Call, len(items))
	together := backend.NewSubBatch()
	defer together.Release()
	for i, item := range items {
		c := calls.Get().(*Call)
		all[i] = c
		c.Request, c.Start = item.Request, now
		if c.Err = s.prepare(item.Context, c); c.Err != nil || s.goesAlone(c) {
			continue
		}
		for j := range c.hits {
			together.Add(j, c.hits[j])
		}
	}
	together.Take(ctx, now, s.o.Limiter)
	decided := together.Results
	for i, c := range all {
		switch {
		case c.Err != nil:
		case len(c.hits) > 0 && s.goesAlone(c):
			s.take(ctx, c)
		default:
			decided = decided[copy(c.results, decided):]
		}
		if c.Err == nil {
			c.Response, c.Err = s.respond(ctx, c)
		}
		for _, o := range s.o.Observers {
			o.Answered(items[i].Context, c)
		}
		answered(i, c)
		c.release()
	}
}

// goesAlone reports whether the hits of c need a Take of their own.
func (s *Service) goesAlone(c *Call) bool { return s.o.AllOrNone || c.exceedsMaxHits }

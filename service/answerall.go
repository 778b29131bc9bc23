package service

import (
	"context"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/descriptors"
)

// Item is one of several requests that AnswerAll answers.
type Item struct {
	Context  context.Context // with the metadata of the call; also for the Observers
	Request  *rlsv3.RateLimitRequest
	OnAnswer func(*Call) // called with the answer; the Call is valid only until OnAnswer returns
}

// AnswerAll answers independent requests in their order, each as ShouldRateLimit does. Their hits go to the Limiter
// in one Take. A request goes alone if its hits must be charged together, or if a hit exceeds max_hits.
func (s *Service) AnswerAll(ctx context.Context, items []Item) {
	now := s.options.Now()
	batchCalls := make([]*Call, len(items))
	sharedBatch := backend.NewSubBatch()
	defer sharedBatch.Release()
	var budget descriptors.Budget // of the conditions of all requests
	for i, item := range items {
		c := calls.Get().(*Call)
		batchCalls[i] = c
		c.Request, c.Start, c.budget = item.Request, now, budget
		c.Err = s.prepare(item.Context, c)
		budget = c.budget
		if c.Err != nil || s.needsOwnTake(c) {
			continue
		}
		for j := range c.hits {
			sharedBatch.Add(j, c.hits[j])
		}
	}
	sharedBatch.Take(ctx, now, s.options.Limiter)
	sharedResults := sharedBatch.Results
	for i, c := range batchCalls {
		switch {
		case c.Err != nil:
		case len(c.hits) > 0 && s.needsOwnTake(c):
			s.take(ctx, c)
		default:
			sharedResults = sharedResults[copy(c.results, sharedResults):]
		}
		if c.Err == nil {
			c.Response, c.Err = s.respond(ctx, c)
		}
		for _, o := range s.options.Observers {
			o.Answered(items[i].Context, c)
		}
		items[i].OnAnswer(c)
		c.returnToPool()
	}
}

func (s *Service) needsOwnTake(c *Call) bool { return s.options.AllOrNone || c.exceedsMaxHits }

package decisionlog

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed-81f232ab/rls/service"
)

// MaxSubscribers is the maximum number of subscribers of a Hub.
const MaxSubscribers = 16

// Hub is a service.Observer that sends records to subscribers. Without subscribers, a call costs one atomic load.
type Hub struct {
	now  func() time.Time
	hash *Hash

	mu          sync.Mutex // guards changes of subscribers
	subscribers atomic.Pointer[[]*Subscription]
}

var _ service.Observer = (*Hub)(nil)

// NewHub returns a Hub without subscribers. now is the clock of the service. hash replaces values after the filters have
// compared them.
func NewHub(now func() time.Time, hash *Hash) *Hub {
	h := &Hub{now: now, hash: hash}
	h.subscribers.Store(new([]*Subscription))
	return h
}

// Subscription has the records for one subscriber.
type Subscription struct {
	Records chan Record // is never closed

	hub       *Hub
	filter    Filter
	dropCount atomic.Uint64
}

// Subscribe adds a subscriber to the records that filter selects. If bufferSize records wait for the subscriber, further
// records are dropped. The subscriber must call Close at the end. Subscribe fails if the Hub has MaxSubscribers.
func (h *Hub) Subscribe(filter Filter, bufferSize int) (*Subscription, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	subscribers := *h.subscribers.Load()
	if len(subscribers) >= MaxSubscribers {
		return nil, fmt.Errorf("live decisions: got %d subscribers, want at most %d; close another one", len(subscribers)+1, MaxSubscribers)
	}
	s := &Subscription{hub: h, filter: filter, Records: make(chan Record, bufferSize)}
	subscribers = append(slices.Clone(subscribers), s)
	h.subscribers.Store(&subscribers)
	return s, nil
}

// Close removes the subscriber from the Hub.
func (s *Subscription) Close() {
	h := s.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	subscribers := slices.Clone(*h.subscribers.Load())
	subscribers = slices.DeleteFunc(subscribers, func(other *Subscription) bool { return other == s })
	h.subscribers.Store(&subscribers)
}

// CallAnswered implements service.Observer.
func (h *Hub) CallAnswered(ctx context.Context, call *service.Call) {
	subscribers := *h.subscribers.Load()
	if len(subscribers) == 0 {
		return
	}
	duration := h.now().Sub(call.Start)
	for _, s := range subscribers {
		s.send(ctx, call, duration)
	}
}

func (s *Subscription) send(ctx context.Context, c *service.Call, duration time.Duration) {
	for outcome := newOutcomes(c); outcome.advance(); {
		if !s.filter.selects(&outcome) {
			continue
		}
		if len(s.Records) == cap(s.Records) { // skip the cost of making the record
			s.dropCount.Add(1)
			continue
		}
		record := outcome.record(ctx, duration)
		s.hub.hash.replaceValues(&record)
		select {
		case s.Records <- record:
		default:
			s.dropCount.Add(1)
		}
	}
}

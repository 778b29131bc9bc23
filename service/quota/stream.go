package quota

import (
	"context"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	rlqsv3 "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/seed-81f232ab/rls/internal/base/wait"
)

type connection = grpc.BidiStreamingServer[rlqsv3.RateLimitQuotaUsageReports, rlqsv3.RateLimitQuotaResponse]

type stream struct {
	conn    connection
	address string                // the address of the Envoy
	client  *client               // has all streams of the IP address
	domain  string                // the domain of the last report
	buckets map[bucketKey]*bucket // guarded by the mutex of the Service

	sendStart atomic.Int64  // the time at which the current Send began, in nanoseconds since 1970; 0 without a Send
	wake      chan struct{} // has an element if waitingActions is not empty

	mu             sync.Mutex                                                // guards waitingActions
	waitingActions map[bucketKey]*rlqsv3.RateLimitQuotaResponse_BucketAction // the newest action for each bucket that was not sent
}

// maxSendTime bounds the time of a Send. A client that reads nothing for this time loses its stream. Its grants have expired.
const maxSendTime = 15 * time.Second

// StreamRateLimitQuotas implements rlqsv3.RateLimitQuotaServiceServer.
func (s *Service) StreamRateLimitQuotas(conn connection) error {
	st := &stream{
		conn: conn, address: "unknown", buckets: map[bucketKey]*bucket{}, wake: make(chan struct{}, 1),
		waitingActions: map[bucketKey]*rlqsv3.RateLimitQuotaResponse_BucketAction{},
	}
	ctx := conn.Context()
	if p, ok := peer.FromContext(ctx); ok && p.Addr != nil {
		st.address = p.Addr.String()
	}
	if err := s.add(st); err != nil {
		return err
	}
	defer s.remove(st)
	streamErrors := make(chan error, 2)
	s.workers.Go(func() { streamErrors <- s.receive(ctx, st) })
	s.workers.Go(func() { streamErrors <- st.send() })
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	for {
		select {
		case err := <-streamErrors:
			return err
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		case <-ticker.C:
			if sendStart := st.sendStart.Load(); sendStart != 0 && time.Since(time.Unix(0, sendStart)) > maxSendTime {
				s.mu.Lock()
				s.counts.BlockedStreams++
				s.mu.Unlock()
				return status.Errorf(codes.DeadlineExceeded, "stream: the client has read nothing for %s", maxSendTime)
			}
		}
	}
}

func (s *Service) add(st *stream) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	ip, _, _ := net.SplitHostPort(st.address)
	if st.client = s.clientOf(ip); st.client == nil {
		s.counts.BlockedStreams++
		reason := "the streams of this address use too much memory (QUOTA_MAX_BUCKETS)"
		s.logIgnored(st, reason)
		return status.Error(codes.ResourceExhausted, "stream: "+reason)
	}
	s.streams[st] = true
	return nil
}

func (s *Service) receive(ctx context.Context, st *stream) error {
	for {
		m, err := st.conn.Recv()
		if err != nil {
			return err
		}
		if err := s.handleReports(ctx, st, m); err != nil {
			return err
		}
	}
}

func (st *stream) send() error {
	for {
		select {
		case <-st.wake:
		case <-st.conn.Context().Done():
			return st.conn.Context().Err()
		}
		st.mu.Lock()
		actions := st.waitingActions
		st.waitingActions = map[bucketKey]*rlqsv3.RateLimitQuotaResponse_BucketAction{}
		st.mu.Unlock()
		response := &rlqsv3.RateLimitQuotaResponse{}
		for _, action := range actions {
			response.BucketAction = append(response.BucketAction, action)
		}
		st.sendStart.Store(time.Now().UnixNano())
		if err := st.conn.Send(response); err != nil {
			return err
		}
		st.sendStart.Store(0)
	}
}

// queue sends action soon. It replaces a waiting action of the same bucket.
func (st *stream) queue(b *bucket, action *rlqsv3.RateLimitQuotaResponse_BucketAction) {
	action.BucketId = b.key.id()
	st.mu.Lock()
	st.waitingActions[b.key] = action
	st.mu.Unlock()
	wait.Signal(st.wake)
}

// maxUsagesAtOnce is the number of usages of a report for which other streams wait.
const maxUsagesAtOnce = 256

func (s *Service) handleReports(ctx context.Context, st *stream, m *rlqsv3.RateLimitQuotaUsageReports) error {
	if domain := m.GetDomain(); domain != "" && domain != st.domain {
		if len(domain) > maxIDBytes {
			return status.Errorf(codes.InvalidArgument, "domain: got %d bytes, want at most %d", len(domain), maxIDBytes)
		}
		if check := s.options.CheckDomain; check != nil {
			if err := check(ctx, domain); err != nil {
				return err
			}
		}
		st.domain = domain
	}
	if st.domain == "" {
		return status.Error(codes.InvalidArgument, "domain: got none, want the domain of a limits file in the first report")
	}
	now, hasValidUsage := time.Now(), false
	for usages := range slices.Chunk(m.GetBucketQuotaUsages(), maxUsagesAtOnce) {
		hasValidUsage = s.countUsages(st, usages, now) || hasValidUsage
	}
	if !hasValidUsage {
		wait.Signal(st.wake) // each report gets an answer; otherwise its bytes count as pending until the stream ends
	}
	return nil
}

func (s *Service) countUsages(st *stream, usages []*rlqsv3.RateLimitQuotaUsageReports_BucketQuotaUsage, now time.Time) (hasValidUsage bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, usage := range usages {
		b, reason := s.bucketOf(st, usage.GetBucketId(), now)
		if b == nil {
			s.counts.IgnoredReports++
			s.logIgnored(st, reason)
			continue
		}
		hasValidUsage = true
		if b.fixedAnswer == denyAll {
			s.evaluate(b) // the limit may have a free place now
		}
		b.count(usage, now)
		if b.group != nil {
			s.markDueFor(b.group, st.client)
		} else {
			b.sendFixedAnswer()
		}
	}
	return hasValidUsage
}

func (s *Service) logIgnored(st *stream, reason string) {
	if s.ignoredLog.Allow() {
		s.options.Log.Warn("quota report ignored", "from", st.address, "domain", st.domain, "reason", reason)
	}
}

// remove forgets st. Its holders stay in the store until their grants have expired.
func (s *Service) remove(st *stream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.streams, st)
	for _, b := range st.buckets {
		s.forget(b)
	}
	s.freeMemory(st.client, streamMemory)
	st.buckets = nil
}

package quota

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	rlqsv3 "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/backend/local"
	division "github.com/seed-81f232ab/rls/limit/quota"
)

// openFrom is open from an IP address. The client reads and forgets all responses.
func openFrom(t *testing.T, s *Service, ip string) (p *pipe, closeStream func(), ended chan error) {
	ctx, cancel := context.WithCancel(peer.NewContext(t.Context(), &peer.Peer{Addr: &net.TCPAddr{IP: net.ParseIP(ip), Port: 7}}))
	p = &pipe{ctx: ctx, reports: make(chan *rlqsv3.RateLimitQuotaUsageReports), responses: make(chan *rlqsv3.RateLimitQuotaResponse)}
	ended = make(chan error, 1)
	go func() {
		ended <- s.StreamRateLimitQuotas(p)
		cancel()
	}()
	go func() {
		for {
			select {
			case <-p.responses:
			case <-ctx.Done():
				return
			}
		}
	}()
	return p, cancel, ended
}

// tenants returns a report of n tenants with this name and a number.
func tenants(name string, n int) *rlqsv3.RateLimitQuotaUsageReports {
	m := &rlqsv3.RateLimitQuotaUsageReports{Domain: "shop"}
	for i := range n {
		m.BucketQuotaUsages = append(m.BucketQuotaUsages, usage(map[string]string{"tenant": fmt.Sprint(name, i)}, 1).BucketQuotaUsages...)
	}
	return m
}

func TestOneAddressLeavesHalfOfTheMemoryToOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOptions(t, local.NewQuotas(), sharedLimits)
		o.MaxBuckets = 100
		s, _ := start(t, o)
		var closeStreams []func()
		refused := 0
		for i := range 500 {
			p, closeStream, ended := openFrom(t, s, "10.0.0.1")
			closeStreams = append(closeStreams, closeStream)
			select {
			case p.reports <- tenants(strings.Repeat("x", 1100)+fmt.Sprint(i, "-"), 100):
			case err := <-ended:
				assert.Equal(t, codes.ResourceExhausted, status.Code(err))
				refused++
			}
			synctest.Wait()
		}
		assert.Positive(t, refused)
		assert.LessOrEqual(t, s.memory, int64(maxMemory*100/2))
		assert.Greater(t, s.memory, int64(maxMemory*100/2*9/10))
		stats := s.Stats()
		assert.Positive(t, stats.Ignored)
		assert.EqualValues(t, refused, stats.Blocked)

		other, closeOther, _ := openFrom(t, s, "10.0.0.2")
		other.reports <- tenants("other", 100)
		synctest.Wait()
		after := s.Stats()
		assert.Equal(t, stats.Buckets+100, after.Buckets, "another address gets all its buckets")
		assert.Equal(t, stats.Ignored, after.Ignored)

		closeOther()
		for _, closeStream := range closeStreams {
			closeStream()
		}
		synctest.Wait()
		assert.Zero(t, s.memory)
		assert.Empty(t, s.clients)
	})
}

// waitForOthers is longer than the grants of the flood need to expire.
const waitForOthers = 20 * time.Second

func TestStreamsThatCloseQuicklyLeavePlacesToOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		o := newOptions(t, local.NewQuotas(), sharedLimits)
		o.Log = slog.New(slog.NewTextHandler(&log, nil))
		s, _ := start(t, o)
		acme := func() *rlqsv3.RateLimitQuotaUsageReports { return usage(map[string]string{"tenant": "acme"}, 100) }
		old, closeOld, _ := open(t, s)
		old.reports <- acme()
		share := answer(t, old)
		for range 14 {
			var closeStreams []func()
			for range 400 {
				p, closeStream, _ := openFrom(t, s, "10.0.0.1")
				p.reports <- acme()
				closeStreams = append(closeStreams, closeStream)
			}
			time.Sleep(tickInterval + time.Millisecond) // so that the store has all holders before they leave
			for _, closeStream := range closeStreams {
				closeStream()
			}
			synctest.Wait()
		}
		c := s.clients["10.0.0.1"]
		assert.EqualValues(t, departureMemory*len(s.departures), c.memory)
		assert.InDelta(t, division.MaxHolders/2, c.holders[s.groups["shop|tenant=acme"].hash], 100)
		assert.Positive(t, s.Stats().Ignored)
		assert.Contains(t, log.String(), "limit shop > tenant: got too many Envoys, want at most 10000, and half of the free places for one address")

		refused, closeRefused, _ := openFrom(t, s, "10.0.0.1")
		refused.reports <- acme()
		synctest.Wait()
		assert.True(t, bucketOf(s, "10.0.0.1").group == nil, "got a group, want none")
		for _, ip := range []string{"10.0.0.2", "10.0.0.3"} {
			p, closeStream, _ := openFrom(t, s, ip)
			p.reports <- acme()
			time.Sleep(tickInterval)
			synctest.Wait()
			assert.True(t, bucketOf(s, ip).isAnswered, ip)
			closeStream()
		}
		old.reports <- acme()
		assert.NotContains(t, answer(t, old), "DENY", "the share before was %s", share)

		time.Sleep(waitForOthers)
		refused.reports <- acme()
		time.Sleep(tickInterval)
		synctest.Wait()
		assert.True(t, bucketOf(s, "10.0.0.1").isAnswered)
		closeRefused()
		closeOld()
		time.Sleep(waitForOthers)
		synctest.Wait()
		assert.Empty(t, s.clients)
		assert.Empty(t, s.departures)
	})
}

// bucketOf returns a bucket of an IP address.
func bucketOf(s *Service, ip string) *bucket {
	for st := range s.streams {
		for _, b := range st.buckets {
			if st.client.ip == ip {
				return b
			}
		}
	}
	return nil
}

// fullStore has no place for further holders.
type fullStore struct{ state []byte }

func (f *fullStore) Update(_ context.Context, changes []*backend.QuotaChange) {
	for _, c := range changes {
		c.Apply(f.state, 1, time.Now().UnixMicro())
		c.Err = nil
	}
}

func TestBucketWithoutAPlaceInTheStateIsDenied(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var reports []division.Report
		for i := range division.MaxHolders {
			reports = append(reports, division.Report{Holder: division.HolderID(i + 1)})
		}
		full, l := division.State{}, division.Limit{Rate: 6000, Interval: minInterval, Burst: 100, TTL: 15 * second, Delay: second}
		full.Apply(&l, time.Now().UnixMicro(), division.Update{Reports: reports})
		s, _ := start(t, newOptions(t, &fullStore{full.Append(nil)}, sharedLimits))
		p, closeStream, _ := open(t, s)
		p.reports <- usage(map[string]string{"tenant": "acme"}, 1)
		assert.Contains(t, answer(t, p), "DENY_ALL")
		assert.EqualValues(t, 1, s.Stats().Ignored)
		closeStream()
	})
}

func TestAbandonedBucketsFreeTheirMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _ := start(t, newOptions(t, local.NewQuotas(), sharedLimits))
		p, closeStream, _ := openFrom(t, s, "10.0.0.1")
		p.reports <- tenants("a", 50)
		time.Sleep(idleTime + 4*idleInterval)
		synctest.Wait()
		assert.EqualValues(t, streamMemory, s.memory)
		closeStream()
	})
}

// delayedStore takes a time for each update.
type delayedStore struct {
	backend.QuotaStore
	time time.Duration
}

func (s delayedStore) Update(ctx context.Context, changes []*backend.QuotaChange) {
	time.Sleep(s.time)
	s.QuotaStore.Update(ctx, changes)
}

func TestClientWithManyBucketsDelaysOnlyItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _ := start(t, newOptions(t, delayedStore{local.NewQuotas(), 50 * time.Millisecond}, sharedLimits))
		flood, stopFlood := context.WithCancel(t.Context())
		for i := range 10 { // 10,000 buckets need two seconds for each update
			p, _, _ := openFrom(t, s, "10.0.0.1")
			report := tenants(fmt.Sprint(i, "-"), 1000)
			go func() {
				for flood.Err() == nil {
					select {
					case p.reports <- report:
					case <-flood.Done():
						return
					}
					time.Sleep(time.Second)
				}
			}()
		}
		time.Sleep(5 * time.Second)
		p, closeStream, _ := open(t, s)
		for range 5 {
			p.reports <- usage(map[string]string{"tenant": "acme"}, 100)
			begin := time.Now()
			assert.NotEqual(t, "no answer", answer(t, p))
			assert.Less(t, time.Since(begin), maxReportAge+100*time.Millisecond)
			time.Sleep(5*time.Second + 37*time.Millisecond)
		}
		closeStream()
		stopFlood()
		time.Sleep(2 * time.Second) // the goroutines end
	})
}

func TestMemoryOfBucketsIsTakenUpToHalf(t *testing.T) {
	s := New(newOptions(t, local.NewQuotas(), ""))
	key, _ := newBucketKey(strings.Repeat("x", 998), nil) // two bytes have the length
	assert.EqualValues(t, bucketMemory+4000, (&bucket{key: key}).memoryBytes())
	c := &client{}
	assert.True(t, s.takeMemory(c, maxMemory*1000/2))
	assert.False(t, s.takeMemory(c, 1))
	assert.True(t, s.takeMemory(&client{}, maxMemory*1000/4))
}

func TestLongDomainIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _ := start(t, newOptions(t, local.NewQuotas(), sharedLimits))
		p, _, ended := open(t, s)
		m := usage(map[string]string{"tenant": "a"}, 1)
		m.Domain = strings.Repeat("x", maxIDBytes)
		p.reports <- m
		require.Empty(t, (<-p.responses).GetBucketAction(), "a domain of 4096 bytes ends no stream")
		m = usage(map[string]string{"tenant": "a"}, 1)
		m.Domain = strings.Repeat("x", maxIDBytes+1)
		p.reports <- m
		assert.ErrorContains(t, <-ended, "domain: got 4097 bytes, want at most 4096")
	})
}

func TestUnknownFieldsOfABucketIDAreNotKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _ := start(t, newOptions(t, local.NewQuotas(), sharedLimits))
		p, closeStream, _ := open(t, s)
		m := usage(map[string]string{"tenant": "a"}, 1)
		unknown := protowire.AppendBytes(protowire.AppendTag(nil, 77, protowire.BytesType), make([]byte, 100_000))
		m.GetBucketQuotaUsages()[0].GetBucketId().ProtoReflect().SetUnknown(unknown)
		p.reports <- m
		response := <-p.responses
		assert.Empty(t, response.GetBucketAction()[0].GetBucketId().ProtoReflect().GetUnknown())
		closeStream()
	})
}

func TestAbsurdNumbersGetAnOrdinaryAnswer(t *testing.T) {
	for name, change := range map[string]func(*rlqsv3.RateLimitQuotaUsageReports_BucketQuotaUsage){
		"most requests": func(u *rlqsv3.RateLimitQuotaUsageReports_BucketQuotaUsage) {
			u.NumRequestsAllowed, u.NumRequestsDenied = 1<<64-1, 1<<64-1
		},
		"2^63 requests": func(u *rlqsv3.RateLimitQuotaUsageReports_BucketQuotaUsage) {
			u.NumRequestsAllowed, u.NumRequestsDenied = 1<<63, 1<<63
		},
		"no requests": func(u *rlqsv3.RateLimitQuotaUsageReports_BucketQuotaUsage) { u.NumRequestsAllowed = 0 },
		"no time":     func(u *rlqsv3.RateLimitQuotaUsageReports_BucketQuotaUsage) { u.TimeElapsed = nil },
		"negative time": func(u *rlqsv3.RateLimitQuotaUsageReports_BucketQuotaUsage) {
			u.TimeElapsed = durationpb.New(-time.Hour)
		},
		"time beyond int": func(u *rlqsv3.RateLimitQuotaUsageReports_BucketQuotaUsage) {
			u.TimeElapsed = &durationpb.Duration{Seconds: -1 << 63, Nanos: 1<<31 - 1}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, _ := start(t, newOptions(t, local.NewQuotas(), sharedLimits))
				p, closeStream, _ := open(t, s)
				for range 3 {
					m := usage(map[string]string{"tenant": "a"}, 1)
					change(m.GetBucketQuotaUsages()[0])
					p.reports <- m
					assert.Contains(t, answer(t, p), "in 1m0s")
					time.Sleep(5 * time.Second)
				}
				other, closeOther, _ := open(t, s)
				other.reports <- usage(map[string]string{"tenant": "b"}, 1)
				assert.NotEqual(t, "no answer", answer(t, other))
				closeOther()
				closeStream()
			})
		})
	}
}

func TestReportWithoutAValidBucketGetsAnEmptyResponse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _ := start(t, newOptions(t, local.NewQuotas(), sharedLimits))
		p, closeStream, _ := open(t, s)
		p.reports <- usage(nil, 1)
		response := <-p.responses
		require.Empty(t, response.GetBucketAction())
		closeStream()
	})
}

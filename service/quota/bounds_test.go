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

// openStreamFrom is openStream from an IP address. The client reads and forgets all responses.
func openStreamFrom(t *testing.T, s *Service, ip string) (p *pipe, closeStream func(), ended chan error) {
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

// reportOfTenants returns a report of n tenants with this name and a number.
func reportOfTenants(name string, n int) *rlqsv3.RateLimitQuotaUsageReports {
	m := &rlqsv3.RateLimitQuotaUsageReports{Domain: "shop"}
	for i := range n {
		m.BucketQuotaUsages = append(m.BucketQuotaUsages, newReport(map[string]string{"tenant": fmt.Sprint(name, i)}, 1).BucketQuotaUsages...)
	}
	return m
}

func TestOneAddressLeavesHalfOfTheMemoryToOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOptions(t, local.NewQuotas(), sharedLimits)
		o.MaxBuckets = 100
		s, _ := startReplica(t, o)
		var closeStreams []func()
		refusedCount := 0
		for i := range 500 {
			p, closeStream, ended := openStreamFrom(t, s, "10.0.0.1")
			closeStreams = append(closeStreams, closeStream)
			select {
			case p.reports <- reportOfTenants(strings.Repeat("x", 1100)+fmt.Sprint(i, "-"), 100):
			case err := <-ended:
				assert.Equal(t, codes.ResourceExhausted, status.Code(err))
				refusedCount++
			}
			synctest.Wait()
		}
		assert.Positive(t, refusedCount)
		assert.LessOrEqual(t, s.memory, int64(maxMemory*100/2))
		assert.Greater(t, s.memory, int64(maxMemory*100/2*9/10))
		stats := s.Stats()
		assert.Positive(t, stats.IgnoredReports)
		assert.EqualValues(t, refusedCount, stats.BlockedStreams)

		otherStream, closeOtherStream, _ := openStreamFrom(t, s, "10.0.0.2")
		otherStream.reports <- reportOfTenants("other", 100)
		synctest.Wait()
		statsAfter := s.Stats()
		assert.Equal(t, stats.Buckets+100, statsAfter.Buckets, "another address gets all its buckets")
		assert.Equal(t, stats.IgnoredReports, statsAfter.IgnoredReports)

		closeOtherStream()
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
		s, _ := startReplica(t, o)
		reportOfAcme := func() *rlqsv3.RateLimitQuotaUsageReports { return newReport(map[string]string{"tenant": "acme"}, 100) }
		oldStream, closeOldStream, _ := openStream(t, s)
		oldStream.reports <- reportOfAcme()
		share := awaitAnswer(t, oldStream)
		for range 14 {
			var closeStreams []func()
			for range 400 {
				p, closeStream, _ := openStreamFrom(t, s, "10.0.0.1")
				p.reports <- reportOfAcme()
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
		assert.Positive(t, s.Stats().IgnoredReports)
		assert.Contains(t, log.String(), "limit shop > tenant: got too many Envoys, want at most 10000, and half of the free places for one address")

		refusedStream, closeRefusedStream, _ := openStreamFrom(t, s, "10.0.0.1")
		refusedStream.reports <- reportOfAcme()
		synctest.Wait()
		assert.True(t, bucketOf(s, "10.0.0.1").group == nil, "the bucket must have no group")
		for _, ip := range []string{"10.0.0.2", "10.0.0.3"} {
			p, closeStream, _ := openStreamFrom(t, s, ip)
			p.reports <- reportOfAcme()
			time.Sleep(tickInterval)
			synctest.Wait()
			assert.True(t, bucketOf(s, ip).hasShare, ip)
			closeStream()
		}
		oldStream.reports <- reportOfAcme()
		assert.NotContains(t, awaitAnswer(t, oldStream), "DENY", "the share before was %s", share)

		time.Sleep(waitForOthers)
		refusedStream.reports <- reportOfAcme()
		time.Sleep(tickInterval)
		synctest.Wait()
		assert.True(t, bucketOf(s, "10.0.0.1").hasShare)
		closeRefusedStream()
		closeOldStream()
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
		fullState, l := division.State{}, division.Limit{Rate: 6000, Interval: minInterval, Burst: 100, TTL: 15 * second, Delay: second}
		fullState.Apply(&l, time.Now().UnixMicro(), division.Update{Reports: reports})
		s, _ := startReplica(t, newOptions(t, &fullStore{fullState.Append(nil)}, sharedLimits))
		p, closeStream, _ := openStream(t, s)
		p.reports <- newReport(map[string]string{"tenant": "acme"}, 1)
		assert.Contains(t, awaitAnswer(t, p), "DENY_ALL")
		assert.EqualValues(t, 1, s.Stats().IgnoredReports)
		closeStream()
	})
}

func TestAbandonedBucketsFreeTheirMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _ := startReplica(t, newOptions(t, local.NewQuotas(), sharedLimits))
		p, closeStream, _ := openStreamFrom(t, s, "10.0.0.1")
		p.reports <- reportOfTenants("a", 50)
		time.Sleep(idleTime + 4*idleSearchInterval)
		synctest.Wait()
		assert.EqualValues(t, streamMemory, s.memory)
		closeStream()
	})
}

// delayedStore takes a time for each update.
type delayedStore struct {
	backend.QuotaStore
	delay time.Duration
}

func (s delayedStore) Update(ctx context.Context, changes []*backend.QuotaChange) {
	time.Sleep(s.delay)
	s.QuotaStore.Update(ctx, changes)
}

func TestClientWithManyBucketsDelaysOnlyItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _ := startReplica(t, newOptions(t, delayedStore{local.NewQuotas(), 50 * time.Millisecond}, sharedLimits))
		floodContext, stopFlood := context.WithCancel(t.Context())
		for i := range 10 { // 10,000 buckets need two seconds for each update
			p, _, _ := openStreamFrom(t, s, "10.0.0.1")
			report := reportOfTenants(fmt.Sprint(i, "-"), 1000)
			go func() {
				for floodContext.Err() == nil {
					select {
					case p.reports <- report:
					case <-floodContext.Done():
						return
					}
					time.Sleep(time.Second)
				}
			}()
		}
		time.Sleep(5 * time.Second)
		p, closeStream, _ := openStream(t, s)
		for range 5 {
			p.reports <- newReport(map[string]string{"tenant": "acme"}, 100)
			startTime := time.Now()
			assert.NotEqual(t, "no answer", awaitAnswer(t, p))
			assert.Less(t, time.Since(startTime), maxReportAge+100*time.Millisecond)
			time.Sleep(5*time.Second + 37*time.Millisecond)
		}
		closeStream()
		stopFlood()
		time.Sleep(2 * time.Second) // the goroutines end
	})
}

func TestMemoryOfBucketsIsTakenUpToHalf(t *testing.T) {
	s := New(newOptions(t, local.NewQuotas(), ""))
	key, _ := newBucketKey(strings.Repeat("x", 1000), nil)
	assert.EqualValues(t, bucketMemory+4000, (&bucket{key: key}).memoryBytes())
	c := &client{}
	assert.True(t, s.takeMemory(c, maxMemory*1000/2))
	assert.False(t, s.takeMemory(c, 1))
	assert.True(t, s.takeMemory(&client{}, maxMemory*1000/4))
}

func TestLongDomainIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _ := startReplica(t, newOptions(t, local.NewQuotas(), sharedLimits))
		p, _, ended := openStream(t, s)
		m := newReport(map[string]string{"tenant": "a"}, 1)
		m.Domain = strings.Repeat("x", maxIDBytes)
		p.reports <- m
		require.Empty(t, (<-p.responses).GetBucketAction(), "a domain of 4096 bytes ends no stream")
		m = newReport(map[string]string{"tenant": "a"}, 1)
		m.Domain = strings.Repeat("x", maxIDBytes+1)
		p.reports <- m
		assert.ErrorContains(t, <-ended, "domain: got 4097 bytes, want at most 4096")
	})
}

func TestUnknownFieldsOfABucketIDAreNotKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _ := startReplica(t, newOptions(t, local.NewQuotas(), sharedLimits))
		p, closeStream, _ := openStream(t, s)
		m := newReport(map[string]string{"tenant": "a"}, 1)
		unknownField := protowire.AppendBytes(protowire.AppendTag(nil, 77, protowire.BytesType), make([]byte, 100_000))
		m.GetBucketQuotaUsages()[0].GetBucketId().ProtoReflect().SetUnknown(unknownField)
		p.reports <- m
		response := <-p.responses
		assert.Empty(t, response.GetBucketAction()[0].GetBucketId().ProtoReflect().GetUnknown())
		closeStream()
	})
}

func TestAbsurdNumbersGetAnOrdinaryAnswer(t *testing.T) {
	for name, change := range map[string]func(*rlqsv3.RateLimitQuotaUsageReports_BucketQuotaUsage){
		"the largest number of requests": func(u *rlqsv3.RateLimitQuotaUsageReports_BucketQuotaUsage) {
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
				s, _ := startReplica(t, newOptions(t, local.NewQuotas(), sharedLimits))
				p, closeStream, _ := openStream(t, s)
				for range 3 {
					m := newReport(map[string]string{"tenant": "a"}, 1)
					change(m.GetBucketQuotaUsages()[0])
					p.reports <- m
					assert.Contains(t, awaitAnswer(t, p), "in 1m0s")
					time.Sleep(5 * time.Second)
				}
				otherStream, closeOtherStream, _ := openStream(t, s)
				otherStream.reports <- newReport(map[string]string{"tenant": "b"}, 1)
				assert.NotEqual(t, "no answer", awaitAnswer(t, otherStream))
				closeOtherStream()
				closeStream()
			})
		})
	}
}

func TestReportWithoutAValidBucketGetsAnEmptyResponse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _ := startReplica(t, newOptions(t, local.NewQuotas(), sharedLimits))
		p, closeStream, _ := openStream(t, s)
		p.reports <- newReport(nil, 1)
		response := <-p.responses
		require.Empty(t, response.GetBucketAction())
		closeStream()
	})
}

package quota

import (
	"flag"
	"fmt"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	rlqsv3 "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"github.com/stretchr/testify/assert"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/seed-81f232ab/rls/backend/local"
)

var (
	manyEnvoys     = flag.Int("envoys", 50, "Envoys; docs/lab/quota.md has the figures of 1,000")
	manyBuckets    = flag.Int("buckets", 100, "limits that the Envoys share; docs/lab/quota.md has the figures of 10,000")
	envoysPerLimit = flag.Int("shared-by", 10, "Envoys that share each limit")
)

// greedyEnvoy asks for more requests than it gets, in each of its buckets. It sends all buckets in one report.
type greedyEnvoy struct {
	sync.Mutex                                       // guards the fields below
	buckets                 map[string]*greedyBucket // the key is the tenant
	report                  *rlqsv3.RateLimitQuotaUsageReports
	sent, sentBytes         int // reports
	received, receivedBytes int // responses
}

type greedyBucket struct {
	rate, burst                  float64 // rate is in tokens a second; requests use each token at once
	filledAt, expiry             time.Time
	passedTokens, reportedTokens float64
	usage                        *rlqsv3.RateLimitQuotaUsageReports_BucketQuotaUsage
}

// fill lets the tokens pass that have come since the last call.
func (b *greedyBucket) fill(now time.Time) {
	if until := b.expiry; until.After(b.filledAt) {
		if now.Before(until) {
			until = now
		}
		b.passedTokens += b.rate * until.Sub(b.filledAt).Seconds()
	}
	b.filledAt = now
}

func (b *greedyBucket) receive(assignment *typev3.TokenBucket, ttl time.Duration, now time.Time) {
	if assignment == nil { // DENY_ALL
		b.rate, b.burst, b.expiry = 0, 0, now
		return
	}
	if burst := float64(assignment.MaxTokens); b.burst == 0 || !now.Before(b.expiry) {
		b.passedTokens += burst
	}
	b.rate = float64(assignment.TokensPerFill.GetValue()) / assignment.FillInterval.AsDuration().Seconds()
	b.burst, b.expiry = float64(assignment.MaxTokens), now.Add(ttl)
}

// run reports every five seconds until the stream ends.
func (e *greedyEnvoy) run(p *pipe, phase time.Duration) {
	ticks := time.NewTimer(phase)
	for {
		select {
		case <-ticks.C:
			ticks.Reset(5 * time.Second)
			e.Lock()
			now := time.Now()
			for _, b := range e.buckets {
				b.fill(now)
				admittedRequests := uint64(b.passedTokens - b.reportedTokens)
				b.reportedTokens += float64(admittedRequests)
				b.usage.NumRequestsAllowed, b.usage.NumRequestsDenied = admittedRequests, 100
			}
			e.sent, e.sentBytes = e.sent+1, e.sentBytes+proto.Size(e.report)
			e.Unlock()
			select {
			case p.reports <- e.report:
			case <-p.ctx.Done():
				return
			}
		case m := <-p.responses:
			e.Lock()
			now := time.Now()
			e.received, e.receivedBytes = e.received+1, e.receivedBytes+proto.Size(m)
			for _, action := range m.GetBucketAction() {
				b := e.buckets[action.GetBucketId().GetBucket()["tenant"]]
				b.fill(now)
				assignment := action.GetQuotaAssignmentAction()
				b.receive(assignment.GetRateLimitStrategy().GetTokenBucket(), assignment.GetAssignmentTimeToLive().AsDuration(), now)
			}
			e.Unlock()
		case <-p.ctx.Done():
			return
		}
	}
}

func cpuTime() time.Duration {
	var usage syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &usage)
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

func readHeap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// TestManyEnvoysShareManyLimits prints the figures of docs/lab/quota.md about many limits together.
func TestManyEnvoysShareManyLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, buckets := *manyEnvoys, *manyBuckets
		heapAtStart, store := readHeap(), local.NewQuotas()
		var replicas []*Service
		for range 3 {
			o := newOptions(t, store, sharedLimits)
			o.MaxBuckets = 16_384
			s, _ := startReplica(t, o)
			replicas = append(replicas, s)
		}
		time.Sleep(time.Second)
		envoys := make([]*greedyEnvoy, n)
		pairs := 0
		for i := range envoys {
			e := &greedyEnvoy{buckets: map[string]*greedyBucket{}, report: &rlqsv3.RateLimitQuotaUsageReports{Domain: "shop"}}
			envoys[i] = e
			for b := i % (n / *envoysPerLimit); b < buckets; b += n / *envoysPerLimit {
				tenant := fmt.Sprint("tenant-", b)
				usage := &rlqsv3.RateLimitQuotaUsageReports_BucketQuotaUsage{BucketId: &rlqsv3.BucketId{Bucket: map[string]string{"tenant": tenant}}, TimeElapsed: durationpb.New(0)}
				e.buckets[tenant] = &greedyBucket{usage: usage, filledAt: time.Now()}
				e.report.BucketQuotaUsages = append(e.report.BucketQuotaUsages, usage)
				pairs++
			}
		}
		envoyMemory := readHeap() - heapAtStart
		for i, e := range envoys {
			p, closeStream, _ := openStream(t, replicas[i%3])
			defer closeStream()
			go e.run(p, time.Duration(i)*5*time.Second/time.Duration(n))
		}
		time.Sleep(60 * time.Second)
		synctest.Wait()
		sumUp := func() (passedTokens float64, sent, sentBytes, received, receivedBytes int) {
			for _, e := range envoys {
				e.Lock()
				defer e.Unlock()
				sent, sentBytes, received, receivedBytes = sent+e.sent, sentBytes+e.sentBytes, received+e.received, receivedBytes+e.receivedBytes
				for _, b := range e.buckets {
					b.fill(time.Now())
					passedTokens += b.passedTokens
				}
			}
			return passedTokens, sent, sentBytes, received, receivedBytes
		}
		passedBefore := map[*greedyBucket]float64{}
		passedTokens, sent, sentBytes, received, receivedBytes := sumUp()
		for _, e := range envoys {
			e.Lock()
			for _, b := range e.buckets {
				passedBefore[b] = b.passedTokens
			}
			e.Unlock()
		}
		memory := readHeap() - heapAtStart - envoyMemory - uint64(len(passedBefore)*40)
		const seconds = 30
		cpu := cpuTime()
		time.Sleep(seconds * time.Second)
		synctest.Wait()
		cpu = cpuTime() - cpu
		passedAfter, sentAfter, sentBytesAfter, receivedAfter, receivedBytesAfter := sumUp()
		use := (passedAfter - passedTokens) / seconds / 100 / float64(buckets)
		sum, squares := 0.0, 0.0
		for _, e := range envoys {
			e.Lock()
			defer e.Unlock()
		}
		for b, passedTokens := range passedBefore {
			sum, squares = sum+b.passedTokens-passedTokens, squares+(b.passedTokens-passedTokens)*(b.passedTokens-passedTokens)
		}
		jainIndex := sum * sum / squares / float64(pairs)
		var updates uint64
		for _, s := range replicas {
			updates += s.Stats().Updates
		}
		t.Logf("%d Envoys share %d limits, each limit %d Envoys: %d buckets of Envoys", n, buckets, *envoysPerLimit, pairs)
		t.Logf("use %.2f %%, Jain's index %.4f", 100*use, jainIndex)
		t.Logf("%.0f reports/s with %.1f KB, %.0f responses/s with %.1f KB", float64(sentAfter-sent)/seconds, float64(sentBytesAfter-sentBytes)/1000/float64(sentAfter-sent),
			float64(receivedAfter-received)/seconds, float64(receivedBytesAfter-receivedBytes)/1000/float64(receivedAfter-received))
		t.Logf("CPU time a second, with the Envoys: %.3f s; %.0f updates/s", cpu.Seconds()/seconds, float64(updates)/91)
		t.Logf("memory of the replicas and the store: %d bytes for a bucket of an Envoy", memory/uint64(pairs))
		assert.GreaterOrEqual(t, use, 0.97)
		assert.LessOrEqual(t, use, 1.0)
		assert.GreaterOrEqual(t, jainIndex, 0.98)
	})
}

//go:build attacks

package attacks

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	rlqsv3 "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
)

const quotaMethod = "/envoy.service.rate_limit_quota.v3.RateLimitQuotaService/StreamRateLimitQuotas"

// quotaAttacks are attacks with reports of quotas. The key q has a quota.
var quotaAttacks = []attack{
	{name: "malformed bucket ids in quota reports on 8 streams", run: reports(8, 1, forAll(malformedReports)), wantLog: "quota report ignored"},
	{name: "absurd numbers in quota reports on 8 streams", run: reports(8, 1, forAll(absurdReports))},
	{name: "reports of 10,000 bucket ids on each of 8 streams", run: reports(8, 1, manyIDs(10_000, 10, 900_000)), wantLog: "QUOTA_MAX_BUCKETS"},
	{name: "reports of 250 bucket ids of 3.5 KB on each of 200 streams", run: reports(8, 25, manyIDs(250, 3500, 15_000)), wantLog: `use too much memory \(QUOTA_MAX_BUCKETS\)|reason=pending_bytes`}, // a busy service cuts the connections before it has decoded so many reports
	{name: "quota reports of 1 MB with empty usages on each of 200 streams", run: reports(8, 25, forAll(emptyUsages))},
	{name: "200 quota streams that never read", run: streamsThatNeverRead(8, 25, manyIDs(100, 1000, 15_000))},
	{name: "200 quota streams that end after a report of the other client's limit, again and again", run: streamsThatEnd(8, 25)},
	{name: "100 half-sent quota reports of 1 MB on each of 3 connections, after an answer", run: halfSentReports(3, 100), refusalReason: "pending_bytes"},
}

func init() {
	for i := range quotaAttacks {
		quotaAttacks[i].calls = callsAndQuota
	}
	allAttacks = append(allAttacks, quotaAttacks...)
}

// maxQuotaWait bounds the time between two answers to the reports of the other client. Its share lasts 15 s.
const maxQuotaWait = 5 * time.Second

// callWithQuota returns calls of a client that also sends a report of its quota every second. A call fails if the reports
// get no answers.
func callWithQuota(addr string) func(context.Context) error {
	client, _ := newClient(addr, net.Dialer{})
	var quota struct {
		sync.Mutex
		stream     rlqsv3.RateLimitQuotaService_StreamRateLimitQuotasClient
		err        error
		reportTime time.Time
		answerTime time.Time
	}
	quota.answerTime = time.Now()
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err == nil {
		quota.stream, err = rlqsv3.NewRateLimitQuotaServiceClient(conn).StreamRateLimitQuotas(context.Background())
	}
	if err != nil {
		return func(context.Context) error { return err }
	}
	go func() {
		for {
			_, err := quota.stream.Recv()
			quota.Lock()
			quota.answerTime, quota.err = time.Now(), err
			quota.Unlock()
			if err != nil {
				return
			}
		}
	}()
	report := func() error {
		quota.Lock()
		defer quota.Unlock()
		switch {
		case quota.err != nil:
			return quota.err
		case time.Since(quota.answerTime) > maxQuotaWait:
			return errors.New("the quota reports have no answers")
		case time.Since(quota.reportTime) < time.Second:
			return nil
		}
		quota.reportTime = time.Now()
		return quota.stream.Send(reportOf(map[string]string{"q": "other"}, 10))
	}
	return func(ctx context.Context) error {
		_, err := client.ShouldRateLimit(ctx, request("other", 1))
		return errors.Join(err, report())
	}
}

func reportOf(id map[string]string, requests uint64) *rlqsv3.RateLimitQuotaUsageReports {
	return &rlqsv3.RateLimitQuotaUsageReports{Domain: "d", BucketQuotaUsages: []*rlqsv3.RateLimitQuotaUsageReports_BucketQuotaUsage{{
		BucketId: &rlqsv3.BucketId{Bucket: id}, NumRequestsAllowed: requests, TimeElapsed: durationpb.New(time.Second),
	}}}
}

// rawCodec is a codec for messages that are encoded already. It drops responses.
type rawCodec struct{}

func (rawCodec) Marshal(message any) ([]byte, error) { return message.([]byte), nil }
func (rawCodec) Unmarshal([]byte, any) error         { return nil }
func (rawCodec) Name() string                        { return "proto" }

// reports opens streams on each connection, and sends the messages of each stream again and again without a pause. It opens
// a stream again if the stream ends.
func reports(conns, streams int, messages func(stream int) [][]byte) func(context.Context, *service) {
	return func(ctx context.Context, s *service) {
		onEachStream(ctx, s, conns, streams, messages, func(stream grpc.ClientStream, allMessages [][]byte) {
			go func() {
				for stream.RecvMsg(nil) == nil {
				}
			}()
			for n := 0; stream.SendMsg(allMessages[n%len(allMessages)]) == nil; n++ {
			}
		})
	}
}

// streamsThatNeverRead sends messages as fast as the service reads them, and reads no response.
func streamsThatNeverRead(conns, streams int, messages func(stream int) [][]byte) func(context.Context, *service) {
	return func(ctx context.Context, s *service) {
		onEachStream(ctx, s, conns, streams, messages, func(stream grpc.ClientStream, allMessages [][]byte) {
			for ; ctx.Err() == nil; time.Sleep(100 * time.Millisecond) {
				for _, m := range allMessages {
					_ = stream.SendMsg(m)
				}
			}
		})
	}
}

// streamsThatEnd sends a report on each stream and ends the stream after the answer. So one limit gets many Envoys.
func streamsThatEnd(conns, streams int) func(context.Context, *service) {
	message := encode(reportOf(map[string]string{"q": "other"}, 10))
	return func(ctx context.Context, s *service) {
		onEachStream(ctx, s, conns, streams, forAll(func() [][]byte { return [][]byte{message} }), func(stream grpc.ClientStream, allMessages [][]byte) {
			if stream.SendMsg(allMessages[0]) == nil {
				_ = stream.RecvMsg(nil)
			}
		})
	}
}

// onEachStream runs f on streams until ctx is done, and on a new one after f has returned.
func onEachStream(ctx context.Context, s *service, conns, streams int, messages func(stream int) [][]byte, f func(_ grpc.ClientStream, messages [][]byte)) {
	var goroutines sync.WaitGroup
	for c := range conns {
		conn, err := grpc.NewClient(s.grpc, grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithDefaultCallOptions(grpc.ForceCodec(rawCodec{})),
			grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
				return attackerDialer.DialContext(ctx, "tcp", addr)
			}))
		if err != nil {
			panic(err) // the address of the service is no address
		}
		defer func() { _ = conn.Close() }()
		for i := range streams {
			goroutines.Go(func() {
				allMessages := messages(c*streams + i)
				for ctx.Err() == nil {
					streamCtx, cancel := context.WithCancel(ctx)
					stream, err := conn.NewStream(streamCtx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, quotaMethod)
					if err == nil {
						f(stream, allMessages)
					}
					cancel()
					time.Sleep(10 * time.Millisecond)
				}
			})
		}
	}
	goroutines.Wait()
}

func encode(m *rlqsv3.RateLimitQuotaUsageReports) []byte {
	data, err := proto.Marshal(m)
	if err != nil {
		panic(err) // a text is no UTF-8
	}
	return data
}

// forAll returns messages that are the same for all streams.
func forAll(messages func() [][]byte) func(stream int) [][]byte {
	messagesOnce := sync.OnceValue(messages)
	return func(int) [][]byte { return messagesOnce() }
}

// malformedReports returns reports that the service should ignore or reject.
func malformedReports() [][]byte {
	manyPairs := map[string]string{}
	for i := range 10_000 {
		manyPairs[fmt.Sprint("key", i)] = "value"
	}
	longText := strings.Repeat("x", 100_000)
	unknownField := reportOf(map[string]string{"q": "unknown"}, 1)
	unknownField.GetBucketQuotaUsages()[0].GetBucketId().ProtoReflect().SetUnknown(
		protowire.AppendString(protowire.AppendTag(nil, 99, protowire.BytesType), strings.Repeat(longText, 9)))
	var allMessages [][]byte
	for _, id := range []map[string]string{nil, {}, manyPairs, {longText: "v"}, {"q": longText}, {"": ""}} {
		allMessages = append(allMessages, encode(reportOf(id, 1)))
	}
	longDomain := reportOf(nil, 1)
	longDomain.Domain = strings.Repeat(longText, 5)
	longDomain.BucketQuotaUsages = slices.Repeat(longDomain.GetBucketQuotaUsages(), 30_000)
	return append(allMessages, encode(unknownField), encode(longDomain), []byte("no report"))
}

// absurdReports returns reports with numbers that no Envoy sends.
func absurdReports() [][]byte {
	var allMessages [][]byte
	for _, requests := range []uint64{0, 1 << 63, math.MaxUint64} {
		for _, elapsed := range []*durationpb.Duration{nil, {}, {Seconds: math.MinInt64, Nanos: math.MaxInt32}, {Seconds: math.MaxInt64}} {
			m := reportOf(map[string]string{"q": "absurd"}, requests)
			m.GetBucketQuotaUsages()[0].NumRequestsDenied = requests
			m.GetBucketQuotaUsages()[0].TimeElapsed = elapsed
			allMessages = append(allMessages, encode(m))
		}
	}
	return allMessages
}

// manyIDs returns a function that returns reports of n bucket ids with values of size bytes. A report has about reportBytes.
// Each stream has its own ids.
func manyIDs(n, size, reportBytes int) func(stream int) [][]byte {
	return func(stream int) (allMessages [][]byte) {
		m := &rlqsv3.RateLimitQuotaUsageReports{Domain: "d"}
		for i := range n {
			id := map[string]string{"q": fmt.Sprintf("%d-%0*d", stream, size, i)}
			m.BucketQuotaUsages = append(m.BucketQuotaUsages, reportOf(id, 100).GetBucketQuotaUsages()...)
			if i == n-1 || (i+1)*(size+50)/reportBytes > i*(size+50)/reportBytes {
				allMessages = append(allMessages, encode(m))
				m.BucketQuotaUsages = nil
			}
		}
		return allMessages
	}
}

// emptyUsages returns a report of 1 MB with as many usages as possible. A usage has an empty key and an empty value.
func emptyUsages() [][]byte {
	m := reportOf(map[string]string{"": ""}, 0)
	m.GetBucketQuotaUsages()[0].TimeElapsed = nil
	m.BucketQuotaUsages = slices.Repeat(m.GetBucketQuotaUsages(), 100_000)
	return [][]byte{encode(m)}
}

// halfSentReports gets an answer in each stream, and then holds a half-sent report.
func halfSentReports(conns, streams int) func(context.Context, *service) {
	wholeReport := encode(reportOf(map[string]string{"q": "half"}, 1))
	wholeReport = append(messagePrefix(len(wholeReport)), wholeReport...)
	halfReport := append(messagePrefix(1<<20), make([]byte, 1<<20-1)...)
	return func(ctx context.Context, s *service) {
		onConnections(ctx, conns, s.grpc, func(conn *frameConn) error {
			var openStreams []uint32
			for range streams {
				stream, err := conn.startCall(quotaMethod)
				if err == nil {
					err = conn.WriteData(stream, false, wholeReport)
				}
				if err != nil {
					return err
				}
				openStreams = append(openStreams, stream)
			}
			time.Sleep(500 * time.Millisecond) // the service answers every 250 ms
			for _, stream := range openStreams {
				for chunk := range slices.Chunk(halfReport, 16<<10) {
					if err := conn.WriteData(stream, false, chunk); err != nil {
						return err
					}
				}
			}
			<-ctx.Done()
			return ctx.Err()
		})
	}
}

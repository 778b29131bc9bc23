//go:build attacks

package attacks

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// costlyConditions has the limit of the other client, and conditions that take many steps.
func costlyConditions() string {
	var b strings.Builder
	b.WriteString(otherLimits + "- {key: agent, regex: '.*a.{500}', rate_limit: {unit: hour, requests_per_unit: 1}}\n")
	for i := range 10 {
		b.WriteString("- " + costlyExpression("path", i) + "\n")
	}
	return b.String()
}

// costlyExpression returns a descriptor with a condition that no value of the letter a meets.
func costlyExpression(key string, i int) string {
	return fmt.Sprintf(`{key: %s, cel: '[1, 2, 3, 4, 5, 6, 7, 8, 9].exists(i, [1, 2, 3, 4, 5, 6, 7, 8, 9].exists(j, value.contains("x%d")))', rate_limit: {unit: hour, requests_per_unit: 1}}`, key, i)
}

// longValues keeps 16 calls in flight, each with descriptors of the key and a value of that many bytes.
func longValues(key string, bytes, descriptors int) func(context.Context, *service) {
	entry := &ratelimitv3.RateLimitDescriptor_Entry{Key: key, Value: strings.Repeat("a", bytes)}
	req := &rlsv3.RateLimitRequest{Domain: "d"}
	for range descriptors {
		req.Descriptors = append(req.Descriptors, &ratelimitv3.RateLimitDescriptor{Entries: []*ratelimitv3.RateLimitDescriptor_Entry{entry}})
	}
	return func(ctx context.Context, s *service) {
		var goroutines sync.WaitGroup
		var denied, admitted atomic.Int64
		for range 4 {
			conn, err := grpc.NewClient(s.grpc, grpc.WithTransportCredentials(insecure.NewCredentials()),
				grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
					return attackerDialer.DialContext(ctx, "tcp", addr)
				}))
			require.NoError(s.t, err)
			defer func() { _ = conn.Close() }()
			for range 4 {
				goroutines.Go(func() {
					for ctx.Err() == nil {
						resp, err := rlsv3.NewRateLimitServiceClient(conn).ShouldRateLimit(ctx, req)
						switch {
						case err != nil:
						case resp.OverallCode == rlsv3.RateLimitResponse_OVER_LIMIT:
							denied.Add(1)
						default:
							admitted.Add(1)
						}
					}
				})
			}
		}
		goroutines.Wait()
		s.t.Logf("%d calls denied, %d admitted", denied.Load(), admitted.Load())
	}
}

func TestServiceSurvivesCostlyConditions(t *testing.T) {
	length, checksTimes := attackTime(t)
	program := build(t)
	for _, test := range []attack{
		{name: "16 calls in flight with values of 100 KB for a regular expression", run: longValues("agent", 100_000, 1)},
		{name: "16 calls in flight with values of 500 bytes for the same expression", run: longValues("agent", 500, 1)},
		{name: "16 calls in flight with 100 values of 500 bytes for the same expression", run: longValues("agent", 500, 100)},
		{name: "16 calls in flight with a value for 10 expressions in CEL", run: longValues("path", 128, 1)},
		{name: "16 calls in flight with 100 values for 10 expressions in CEL", run: longValues("path", 128, 100)},
	} {
		t.Run(test.name, func(t *testing.T) {
			service := startServiceWithLimits(t, program, costlyConditions())
			answers := service.attackFor(length, test)
			table.rows = append(table.rows, answers.row(test.name, service.peakMemory(), nil))
			assert.Empty(t, answers.Errors, "the other client gets all answers")
			assert.LessOrEqual(t, service.peakMemory(), int64(maxMemory))
			if checksTimes {
				assert.Less(t, answers.quantile(0.99), maxP99)
			}
			assert.LessOrEqual(t, strings.Count(service.log(), "condition not tested"), 1)
			assert.NotContains(t, service.log(), "panic")
		})
	}
}

// repeatedDescriptors returns a file with n descriptors. pattern has the place of a number.
func repeatedDescriptors(n int, pattern string) string {
	b := "domain: d\ndescriptors:\n"
	for i := range n {
		b += "- " + strings.ReplaceAll(pattern, "NUMBER", fmt.Sprint(i)) + "\n"
	}
	return b
}

func TestHostileConditionsTakeBoundedMemory(t *testing.T) {
	program := build(t)
	for _, file := range []hostileFile{
		{"40 regular expressions of 660,000 instructions", func() string {
			return repeatedDescriptors(40, "{key: k, regex: '"+strings.Repeat("((a?)(b?)){1000}", 60)+"NUMBER'}")
		}, "instructions, want at most 2000"},
		{"10,000 regular expressions of 1,900 instructions", func() string {
			return repeatedDescriptors(10_000, "{key: kNUMBER, regex: '.{1000}.{890}NUMBER'}")
		}, "all regular expressions together need more than 500000 instructions"},
		{"10,000 regular expressions with large classes of characters", func() string {
			return repeatedDescriptors(10_000, `{key: kNUMBER, regex: '(?i)[\pL\pN]{100}NUMBER'}`)
		}, "all regular expressions together need more than 500000 instructions"},
		{"300 costly expressions in CEL for one key", func() string {
			b := "domain: d\ndescriptors:\n"
			for i := range 300 {
				b += "- " + costlyExpression("path", i) + "\n"
			}
			return b
		}, "the conditions for this key take up to"},
	} {
		t.Run(file.name, func(t *testing.T) { file.check(t, program) })
	}
}

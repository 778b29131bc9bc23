package xds

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	confv3 "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/seed-81f232ab/rls/internal/base/clienttls"
	"github.com/seed-81f232ab/rls/internal/base/wait"
	"github.com/seed-81f232ab/rls/internal/testkit/polltest"
	"github.com/seed-81f232ab/rls/internal/testkit/xdstest"
)

func TestEachResponseReplacesAllLimits(t *testing.T) {
	t.Parallel()
	server := xdstest.Serve(t, "127.0.0.1:0")
	server.Set("1", xdstest.Config("a", 1), xdstest.Config("b", 2))
	client := runClient(t, server.Addr, Options{NodeMetadata: map[string]string{"zone": "x"}, Headers: map[string]string{"Authorization": "s3cret"}})

	assert.Equal(t, "a b", client.nextUpdate())
	assert.Equal(t, []string{"s3cret"}, (<-server.Headers).Get("authorization"))
	firstRequest := server.Request()
	assert.Equal(t, xdstest.Node, firstRequest.GetNode().GetId())
	assert.Equal(t, "x", firstRequest.GetNode().GetMetadata().GetFields()["zone"].GetStringValue())
	assert.Equal(t, typeURL, firstRequest.GetTypeUrl())
	assert.Empty(t, firstRequest.GetVersionInfo())
	assert.Empty(t, firstRequest.GetResponseNonce())
	assert.Empty(t, firstRequest.GetResourceNames())
	ack := server.Request()
	assert.Equal(t, "1", ack.GetVersionInfo())
	assert.NotEmpty(t, ack.GetResponseNonce())
	assert.Nil(t, ack.GetErrorDetail())
	assert.Equal(t, typeURL, ack.GetTypeUrl())

	server.Set("2", xdstest.Config("b", 3))
	assert.Equal(t, "b", client.nextUpdate())
	assert.EqualValues(t, 3, client.requestsPerDay("b"))
	assert.Equal(t, "2", server.Request().GetVersionInfo())

	server.Set("3")
	assert.Empty(t, client.nextUpdate(), "an empty response is valid")
	assert.Equal(t, "3", server.Request().GetVersionInfo())

	server.Set("2", xdstest.Config("c", 4))
	assert.Equal(t, "c", client.nextUpdate(), "versions have no order")
	assert.NotContains(t, client.log.String(), "s3cret")
}

func TestInvalidResourcesAreRejectedAndOtherResourcesApplied(t *testing.T) {
	t.Parallel()
	server := xdstest.Serve(t, "127.0.0.1:0")
	server.Set("7", xdstest.Config("a", 1))
	client := runClient(t, server.Addr, Options{})
	assert.Equal(t, "a", client.nextUpdate())
	server.Request()
	ack := server.Request()

	server.Set("8", xdstest.Config("a", 2), xdstest.Broken("b"), xdstest.Broken("c"), xdstest.Config("d", 1))
	const reason = "b: b > tenant: unit is missing; want millisecond, second, minute, hour, day, week, month or year\n" +
		"c: c > tenant: unit is missing; want millisecond, second, minute, hour, day, week, month or year"
	assert.Equal(t, reason, client.nextProblem())
	nack := server.Request()
	assert.Equal(t, "7", nack.GetVersionInfo(), "the last accepted version")
	assert.NotEmpty(t, nack.GetResponseNonce())
	assert.NotEqual(t, ack.GetResponseNonce(), nack.GetResponseNonce())
	assert.Equal(t, reason, nack.GetErrorDetail().GetMessage())
	assert.EqualValues(t, codes.InvalidArgument, nack.GetErrorDetail().GetCode())
	assert.Equal(t, "a d", client.nextUpdate())
	assert.EqualValues(t, 2, client.requestsPerDay("a"))

	// The server sends the same response again after each NACK. The client reports the response once, and delays each
	// further NACK.
	for range 3 {
		assert.Equal(t, "7", server.Request().GetVersionInfo())
	}
	assert.Empty(t, client.problems)
	assert.Empty(t, client.updates)

	server.Set("8b", xdstest.Broken("a"), xdstest.Broken("b"), xdstest.Broken("c"), xdstest.Config("d", 4))
	assert.Contains(t, client.nextProblem(), "a: a > tenant: unit is missing")
	assert.Equal(t, "a d", client.nextUpdate())
	assert.EqualValues(t, 2, client.requestsPerDay("a"), "the last good version")
	assert.EqualValues(t, 4, client.requestsPerDay("d"))

	server.Set("8c", xdstest.Broken("a"), xdstest.Broken("b"), xdstest.Broken("c"), xdstest.Config("d", 5))
	client.nextProblem()
	assert.Equal(t, "a d", client.nextUpdate())
	assert.EqualValues(t, 5, client.requestsPerDay("d"), "the problems are the same, but the limits are not")
	polltest.Until(t, 5*time.Second, func() bool { return len(client.log.linesWith("response rejected")) >= 3 }) // a line follows its update
	assert.Len(t, client.log.linesWith("response rejected"), 3)

	server.Set("9", xdstest.Config("a", 3))
	assert.Equal(t, "a", client.nextUpdate())
	assert.EqualValues(t, 3, client.requestsPerDay("a"))
	assert.Empty(t, client.problems)

	server.Set("8", xdstest.Broken("b"))
	assert.Contains(t, client.nextProblem(), "b > tenant", "another rejection is reported")
	server.Set("10")
	assert.Empty(t, client.nextUpdate())
}

func TestRejectedFirstResponseBringsNoLimitsIntoForce(t *testing.T) {
	t.Parallel()
	server := xdstest.Serve(t, "127.0.0.1:0")
	server.Set("1", xdstest.Broken("a"))
	client := runClient(t, server.Addr, Options{})
	client.nextProblem()
	server.Request()
	assert.Empty(t, server.Request().GetVersionInfo())
	assert.Nil(t, client.store.Load())
}

func TestSilentServerIsReported(t *testing.T) {
	t.Parallel()
	server := xdstest.Serve(t, "127.0.0.1:0")
	client := runClient(t, server.Addr, Options{})
	server.Request()
	client.awaitOutage(`has sent nothing for node "envoy-ratelimit"`)
	assert.Contains(t, client.awaitLines(1, "xDS server silent")[0], "no limits loaded yet")
	client.awaitOutage("has sent nothing")
	server.Set("1", xdstest.Config("a", 1))
	assert.Equal(t, "a", client.nextUpdate())
	client.awaitOutage("<nil>")
	assert.Empty(t, client.outages)

	server.Stop()
	client.awaitOutage("xDS server " + server.Addr + ": ")
	xdstest.Serve(t, server.Addr)
	client.awaitOutage("<nil>") // the server may be about to send limits
	client.awaitOutage("has sent nothing")
	assert.Contains(t, client.awaitLines(2, "xDS server silent")[1], "the last good limits stay in force")
}

func TestRepeatedNACKsAreDelayed(t *testing.T) {
	t.Parallel()
	const updates = 20
	nackTime := make(chan time.Duration, 1) // gets the time until all responses have a NACK
	addr := serveStreams(t, func(stream discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error {
		start := time.Now()
		for i := range updates {
			_, err := stream.Recv()
			if err != nil {
				return err
			}
			brokenConfig := xdstest.Broken("b")
			if i == updates/2 {
				brokenConfig = xdstest.Broken("another")
			}
			if err := stream.Send(&discoveryv3.DiscoveryResponse{
				VersionInfo: fmt.Sprint(i), Nonce: fmt.Sprint(i), TypeUrl: typeURL, Resources: wrap(t, brokenConfig),
			}); err != nil {
				return err
			}
		}
		_, err := stream.Recv()
		nackTime <- time.Since(start)
		return err
	})
	client := runClient(t, addr, Options{Backoff: wait.Backoff{Initial: time.Hour, Max: time.Hour}})
	for _, want := range []string{"b > tenant", "another > tenant", "b > tenant"} {
		assert.Contains(t, client.nextProblem(), want)
	}
	select {
	case duration := <-nackTime:
		assert.Greater(t, duration, (updates-1)*5*time.Millisecond)
	case <-time.After(xdstest.Patience):
		require.FailNow(t, "some responses have no answer", client.log.String())
	}
	assert.Empty(t, client.problems)
	assert.Len(t, client.log.linesWith("response rejected"), 3)
}

func TestRestartedServerMayRepeatVersions(t *testing.T) {
	t.Parallel()
	server := xdstest.Serve(t, "127.0.0.1:0")
	server.Set("1", xdstest.Config("a", 1))
	client := runClient(t, server.Addr, Options{})
	assert.Equal(t, "a", client.nextUpdate())

	server.Stop()
	client.awaitLines(1, "xDS stream lost; the last good limits stay in force")
	assert.Equal(t, "a", client.domainsInForce())
	client.awaitLines(2, "xDS server unreachable")
	assert.Equal(t, "a", client.domainsInForce())

	server = xdstest.Serve(t, server.Addr)
	server.Set("1", xdstest.Config("b", 5))
	assert.Equal(t, "b", client.nextUpdate())
	assert.Empty(t, server.Request().GetVersionInfo(), "the new server could use the version for other resources")
	assert.Equal(t, "1", server.Request().GetVersionInfo())

	server.Stop()
	server = xdstest.Serve(t, server.Addr)
	server.Set("1", xdstest.Broken("b"))
	client.nextProblem()
	server.Request()
	assert.Equal(t, "1", server.Request().GetVersionInfo())
	assert.EqualValues(t, 5, client.requestsPerDay("b"))
}

var retryIn = regexp.MustCompile(`retry_in=(\S+)`)

// retryPauses returns the pauses in log lines.
func retryPauses(t *testing.T, lines []string) (pauses []time.Duration) {
	for _, line := range lines {
		d, err := time.ParseDuration(retryIn.FindStringSubmatch(line)[1])
		require.NoError(t, err)
		pauses = append(pauses, d)
	}
	return pauses
}

func TestStreamWithValidLimitsResetsBackoff(t *testing.T) {
	t.Parallel()
	const ms = time.Millisecond
	server := xdstest.Serve(t, "127.0.0.1:0")
	server.Set("1", xdstest.Config("a", 1))
	client := runClient(t, server.Addr, Options{Backoff: wait.Backoff{Initial: 2 * ms, Max: 10 * ms}})
	client.nextUpdate()
	server.Stop()
	assert.Equal(t, []time.Duration{2 * ms, 4 * ms, 8 * ms, 10 * ms, 10 * ms}, retryPauses(t, client.awaitLines(5, "retry_in")))

	server = xdstest.Serve(t, server.Addr)
	server.Set("1", xdstest.Config("a", 1))
	client.nextUpdate()
	lineCount := len(client.log.linesWith("retry_in"))
	server.Stop()
	assert.Equal(t, 2*ms, retryPauses(t, client.awaitLines(lineCount+1, "retry_in"))[lineCount])
}

func TestBackoffIsJittered(t *testing.T) {
	t.Parallel()
	b := wait.Backoff{Initial: time.Second, Max: 4 * time.Second, Jitter: 0.5}
	pauses := map[time.Duration]bool{}
	for range 100 {
		e := b.Start()
		for _, middle := range []time.Duration{time.Second, 2 * time.Second, 4 * time.Second, 4 * time.Second} {
			d := e.NextBackOff()
			assert.InDelta(t, middle, d, float64(middle)/2+1)
			pauses[d] = true
		}
	}
	assert.Greater(t, len(pauses), 100)
}

func TestStreamWithoutLimitsDoesNotResetBackoff(t *testing.T) {
	t.Parallel()
	const ms = time.Millisecond
	addr := serveStreams(t, func(stream discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error {
		_, err := stream.Recv()
		return err
	})
	client := runClient(t, addr, Options{Backoff: wait.Backoff{Initial: 20 * ms, Max: time.Hour}})
	assert.Equal(t, []time.Duration{20 * ms, 40 * ms, 80 * ms, 160 * ms}, retryPauses(t, client.awaitLines(4, "retry_in")))
	assert.Contains(t, client.log.String(), "the server closed the stream")
}

// wrap returns the resources of a response with these configs.
func wrap(t *testing.T, configs ...*confv3.RateLimitConfig) (resources []*anypb.Any) {
	for _, c := range configs {
		r, err := anypb.New(c)
		require.NoError(t, err)
		resources = append(resources, r)
	}
	return resources
}

func TestUndecodableResourceRejectsTheResponse(t *testing.T) {
	t.Parallel()
	otherResource, err := anypb.New(&confv3.RateLimitPolicy{})
	require.NoError(t, err)
	garbage := &anypb.Any{TypeUrl: typeURL, Value: []byte("\x0a\xff")}
	validResources := wrap(t, xdstest.Config("a", 1))
	answers := make(chan *discoveryv3.DiscoveryRequest, 100)
	addr := serveStreams(t, func(stream discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error {
		for i, response := range []*discoveryv3.DiscoveryResponse{
			{VersionInfo: "v1", Nonce: "n1", TypeUrl: typeURL, Resources: validResources},
			{VersionInfo: "v2", Nonce: "n2", TypeUrl: typeURL, Resources: []*anypb.Any{validResources[0], garbage}},
			{VersionInfo: "v3", Nonce: "n3", TypeUrl: typeURL, Resources: []*anypb.Any{otherResource, validResources[0]}},
			{VersionInfo: "v4", Nonce: "n4", TypeUrl: typeURL, Resources: []*anypb.Any{validResources[0], nil}},
			{VersionInfo: "", Nonce: "n5", TypeUrl: typeURL, Resources: wrap(t, xdstest.Config("b", 1))},
		} {
			if i == 1 {
				if err := stream.Send(&discoveryv3.DiscoveryResponse{TypeUrl: "type.googleapis.com/other", Nonce: "n1b"}); err != nil {
					return err
				}
			}
			for _, step := range []func() error{
				func() error { return stream.Send(response) },
				func() error { a, err := stream.Recv(); answers <- a; return err },
			} {
				if err := step(); err != nil {
					return err
				}
			}
		}
		_, err := stream.Recv()
		return err
	})
	client := runClient(t, addr, Options{})
	assert.Equal(t, "a", client.nextUpdate())
	assert.Contains(t, client.nextProblem(), "resource 2 can't be decoded: ")
	assert.Contains(t, client.nextProblem(), "resource 1 can't be decoded: ")
	assert.Contains(t, client.nextProblem(), "resource 2 can't be decoded: ")
	assert.Equal(t, "b", client.nextUpdate())
	<-answers // the subscription
	for _, want := range []struct {
		version, nonce string
		isNACK         bool
	}{{"v1", "n1", false}, {"v1", "n2", true}, {"v1", "n3", true}, {"v1", "n4", true}} {
		got := <-answers
		assert.Equal(t, want.version, got.GetVersionInfo())
		assert.Equal(t, want.nonce, got.GetResponseNonce())
		assert.Equal(t, want.isNACK, got.GetErrorDetail() != nil)
	}
	assert.Len(t, client.awaitLines(1, "xDS response ignored"), 1)
}

func TestTooLargeResponseEndsTheStream(t *testing.T) {
	t.Parallel()
	server := xdstest.Serve(t, "127.0.0.1:0")
	server.Set("1", xdstest.Config("a", 1))
	client := runClient(t, server.Addr, Options{MaxMessageBytes: 100_000, Backoff: wait.Backoff{Initial: 10 * time.Millisecond, Max: time.Hour}})
	assert.Equal(t, "a", client.nextUpdate())

	hugeConfig := xdstest.Config("huge", 1)
	hugeConfig.Descriptors[0].Key = strings.Repeat("k", 200_000)
	server.Set("2", hugeConfig)
	lostLines := client.awaitLines(3, "larger than max")
	assert.Contains(t, lostLines[0], "xDS stream lost")
	assert.Equal(t, []time.Duration{10 * time.Millisecond, 20 * time.Millisecond, 40 * time.Millisecond}, retryPauses(t, lostLines))
	assert.Equal(t, "a", client.domainsInForce())

	server.Set("3", xdstest.Config("b", 1))
	assert.Equal(t, "b", client.nextUpdate())
}

func TestResponseMayExceedTheDefaultOfGRPC(t *testing.T) {
	t.Parallel()
	server := xdstest.Serve(t, "127.0.0.1:0")
	largeConfig := xdstest.Config("large", 1)
	largeConfig.Descriptors[0].Key = strings.Repeat("k", 5<<20)
	server.Set("1", largeConfig)
	assert.Equal(t, "large", runClient(t, server.Addr, Options{}).nextUpdate(), "the response is larger than 4 MiB, the default of gRPC")
}

// TestRuleWith129NestedDescriptorsMatches has the largest rule of Envoy Gateway, which has a descriptor for each header.
func TestRuleWith129NestedDescriptorsMatches(t *testing.T) {
	t.Parallel()
	server := xdstest.Serve(t, "127.0.0.1:0")
	config := &confv3.RateLimitConfig{Name: "gateway", Domain: "gateway"}
	list := &config.Descriptors
	var entries []*ratelimitv3.RateLimitDescriptor_Entry
	for i := range 129 {
		d := &confv3.RateLimitDescriptor{Key: fmt.Sprintf("rule-0-match-%d", i), Value: fmt.Sprintf("rule-0-match-%d", i)}
		entries = append(entries, &ratelimitv3.RateLimitDescriptor_Entry{Key: d.Key, Value: d.Value})
		*list, list = append(*list, d), &d.Descriptors
		if i == 128 {
			d.RateLimit = &confv3.RateLimitPolicy{Unit: confv3.RateLimitUnit_HOUR, RequestsPerUnit: 5}
		}
	}
	server.Set("1", config)
	client := runClient(t, server.Addr, Options{})
	assert.Equal(t, "gateway", client.nextUpdate())
	assert.NotNil(t, client.store.Load().Domain("gateway").Match(entries))
	assert.Nil(t, client.store.Load().Domain("gateway").Match(entries[:128]))
}

func TestResponseWithTooManyDescriptorsIsRejected(t *testing.T) {
	t.Parallel()
	server := xdstest.Serve(t, "127.0.0.1:0")
	server.Set("1", xdstest.Config("a", 1))
	client := runClient(t, server.Addr, Options{})
	assert.Equal(t, "a", client.nextUpdate())
	largeConfig := xdstest.Config("many", 1)
	for range 320_000 {
		largeConfig.Descriptors = append(largeConfig.Descriptors, &confv3.RateLimitDescriptor{})
	}
	server.Set("2", largeConfig)
	assert.Equal(t, "resource 1: response has more than 320000 descriptors and limits; send fewer or shorter resources", client.nextProblem())
	assert.Equal(t, "a", client.domainsInForce())
}

func TestLongReasonIsTruncatedInTheNACK(t *testing.T) {
	t.Parallel()
	server := xdstest.Serve(t, "127.0.0.1:0")
	brokenConfig := xdstest.Broken("a")
	for range 800 {
		brokenConfig.Descriptors = append(brokenConfig.Descriptors, xdstest.Broken("a").Descriptors[0])
	}
	server.Set("1", brokenConfig)
	client := runClient(t, server.Addr, Options{})
	assert.Greater(t, len(client.nextProblem()), maxReasonBytes)
	server.Request()
	reason := server.Request().GetErrorDetail().GetMessage()
	assert.LessOrEqual(t, len(reason), maxReasonBytes+100)
	assert.Contains(t, reason, "… and more")
}

func TestRunEndsWithItsContext(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(*testing.T) *testClient{
		"while it waits to connect": func(t *testing.T) *testClient {
			client := runClient(t, "127.0.0.1:1", Options{Backoff: wait.Backoff{Initial: time.Hour, Max: time.Hour}})
			client.awaitLines(1, "unreachable")
			return client
		},
		"on a stream": func(t *testing.T) *testClient {
			server := xdstest.Serve(t, "127.0.0.1:0")
			client := runClient(t, server.Addr, Options{})
			server.Request()
			return client
		},
	} {
		t.Run(name, func(t *testing.T) {
			service := start(t)
			done := make(chan struct{})
			go func() { service.stop(); close(done) }()
			select {
			case <-done:
			case <-time.After(xdstest.Patience):
				t.Fatal("Run does not return")
			}
		})
	}
}

func TestNewRejectsInvalidOptions(t *testing.T) {
	t.Parallel()
	validBackoff := wait.Backoff{Initial: 1, Max: 2}
	for want, o := range map[string]Options{
		"xDS: the server is missing": {Backoff: validBackoff},
		"xDS TLS: client certificate and key: got only one, want both or none": {Server: "s", Backoff: validBackoff, TLS: &clienttls.Files{Cert: "x"}},
		"xDS TLS: CA file: open /nowhere: no such file or directory":           {Server: "s", Backoff: validBackoff, TLS: &clienttls.Files{CA: "/nowhere"}},
	} {
		_, err := New(o)
		assert.EqualError(t, err, want)
	}
}

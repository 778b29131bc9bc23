package codec_test

import (
	"bytes"
	"slices"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlqsv3 "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/encoding"
	protocodec "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	"pgregory.net/rapid"

	"github.com/seed-81f232ab/rls/internal/server/codec"
)

// generalCodec is the codec of grpc. Codec must encode and decode messages as generalCodec does.
var generalCodec = encoding.GetCodecV2(protocodec.Name)

// newRequest returns a request. Each of descriptors has keys and values in turn.
func newRequest(domain string, descriptors ...[]string) *rlsv3.RateLimitRequest {
	request := &rlsv3.RateLimitRequest{Domain: domain}
	for _, pairs := range descriptors {
		d := new(ratelimitv3.RateLimitDescriptor)
		for i := 0; i < len(pairs); i += 2 {
			d.Entries = append(d.Entries, &ratelimitv3.RateLimitDescriptor_Entry{Key: pairs[i], Value: pairs[i+1]})
		}
		request.Descriptors = append(request.Descriptors, d)
	}
	return request
}

// exampleRequests returns requests that need small, medium and large memory, and have common and rare fields.
func exampleRequests() []*rlsv3.RateLimitRequest {
	pairs := []string{"service", "checkout", "ip", "10.0.0.1"}
	rareFields := newRequest("shop", pairs)
	rareFields.Descriptors[0].HitsAddend = wrapperspb.UInt64(3)
	rareFields.Descriptors[0].IsNegativeHits = true
	largeAddend := newRequest("shop", pairs)
	largeAddend.HitsAddend = 1<<32 - 1
	return []*rlsv3.RateLimitRequest{
		{},
		newRequest("shop"), newRequest("shop", nil), newRequest("shop", []string{"", ""}), usualRequest(),
		newRequest("shop", pairs, pairs[:2], nil, pairs), newRequest("shop", append(pairs, pairs...)), newRequest("", pairs, pairs, pairs, pairs, pairs),
		rareFields, largeAddend,
	}
}

// usualRequest returns a request with one descriptor of two entries.
func usualRequest() *rlsv3.RateLimitRequest {
	return newRequest("shop", []string{"service", "checkout", "ip", "10.0.0.1"})
}

func FuzzRequest(f *testing.F) {
	for _, request := range exampleRequests() {
		data, err := proto.Marshal(request)
		require.NoError(f, err)
		f.Add(data)
	}
	f.Add([]byte("\x0a\x01\xff"))                       // a domain that is not text
	f.Add([]byte("\x12\x05\x0a\x03\x0a\x01\xff"))       // a key that is not text
	f.Add([]byte("\x18\xff\xff\xff\xff\xff\x01"))       // a large hits_addend
	f.Add([]byte("\x0a\x01a\x0a\x01b\x12\x00\x18\x05")) // two domains
	f.Add([]byte("\x0a\x05a"))                          // a domain of fewer bytes than its length says
	f.Add([]byte("\x8a\x00\x01a"))                      // a tag of two bytes
	f.Fuzz(func(t *testing.T, data []byte) {
		want, got := new(rlsv3.RateLimitRequest), new(rlsv3.RateLimitRequest)
		wantErr := generalCodec.Unmarshal(mem.BufferSlice{mem.SliceBuffer(data)}, want)
		err := codec.New(0, 0).Unmarshal(mem.BufferSlice{mem.SliceBuffer(data)}, got)
		if wantErr != nil {
			assert.EqualError(t, err, wantErr.Error())
			return
		}
		require.NoError(t, err)
		assert.True(t, proto.Equal(want, got), "got %v, want %v", got, want)
	})
}

func TestDecodedRequestKeepsNoBytesOfItsBuffer(t *testing.T) {
	data, err := proto.Marshal(usualRequest())
	require.NoError(t, err)
	got := new(rlsv3.RateLimitRequest)
	require.NoError(t, codec.New(0, 0).Unmarshal(mem.BufferSlice{mem.SliceBuffer(data)}, got))
	clear(data) // grpc uses the buffer again
	assert.True(t, proto.Equal(usualRequest(), got))
}

func TestRequestInPiecesIsDecoded(t *testing.T) {
	data, err := proto.Marshal(usualRequest())
	require.NoError(t, err)
	got := new(rlsv3.RateLimitRequest)
	require.NoError(t, codec.New(0, 0).Unmarshal(mem.BufferSlice{mem.SliceBuffer(data[:9]), mem.SliceBuffer(data[9:])}, got))
	assert.True(t, proto.Equal(usualRequest(), got))
}

func TestTooManyDescriptorsOrEntriesAreOnlyCounted(t *testing.T) {
	boundedCodec := codec.New(100, 6400)
	decode := func(descriptors int) *rlsv3.RateLimitRequest {
		want := newRequest("shop", slices.Repeat([][]string{{"service", "checkout"}}, descriptors)...)
		want.HitsAddend = 3
		data, err := proto.Marshal(want)
		require.NoError(t, err)
		got := new(rlsv3.RateLimitRequest)
		require.NoError(t, boundedCodec.Unmarshal(mem.BufferSlice{mem.SliceBuffer(data[:9]), mem.SliceBuffer(data[9:])}, got))
		if descriptors <= 100 {
			assert.True(t, proto.Equal(want, got))
		}
		return got
	}
	decode(99)
	decode(100)
	got := decode(101)
	assert.Equal(t, "shop", got.Domain)
	assert.Len(t, got.Descriptors, 101)
	assert.Empty(t, got.Descriptors[100].Entries)

	entry := &ratelimitv3.RateLimitDescriptor_Entry{Key: "k", Value: "v"}
	descriptor := &ratelimitv3.RateLimitDescriptor{HitsAddend: wrapperspb.UInt64(2), Entries: slices.Repeat([]*ratelimitv3.RateLimitDescriptor_Entry{entry}, 3201)}
	data, err := proto.Marshal(&rlsv3.RateLimitRequest{Domain: "shop", Descriptors: []*ratelimitv3.RateLimitDescriptor{descriptor, descriptor}})
	require.NoError(t, err)
	got = new(rlsv3.RateLimitRequest)
	require.NoError(t, boundedCodec.Unmarshal(mem.BufferSlice{mem.SliceBuffer(data)}, got))
	assert.Equal(t, "shop", got.Domain)
	assert.Len(t, got.Descriptors[0].Entries, 6402, "the entries of both descriptors")
	assert.Empty(t, got.Descriptors[0].Entries[0].Key)

	truncatedRequest := append(bytes.Repeat([]byte("\x12\x00"), 2000), "\x12\x05"...)
	assert.Error(t, boundedCodec.Unmarshal(mem.BufferSlice{mem.SliceBuffer(truncatedRequest)}, got))
}

// drawResponse draws a response with common and rare fields.
func drawResponse(t *rapid.T) *rlsv3.RateLimitResponse {
	isRare := func(field string) bool { return rapid.IntRange(0, 19).Draw(t, field) == 0 }
	response := &rlsv3.RateLimitResponse{OverallCode: rlsv3.RateLimitResponse_Code(rapid.IntRange(0, 2).Draw(t, "code"))}
	for range rapid.IntRange(0, 6).Draw(t, "statuses") {
		status := &rlsv3.RateLimitResponse_DescriptorStatus{Code: rlsv3.RateLimitResponse_Code(rapid.IntRange(0, 2).Draw(t, "status"))}
		if rapid.Bool().Draw(t, "has limit") {
			status.CurrentLimit = &rlsv3.RateLimitResponse_RateLimit{
				RequestsPerUnit: rapid.Uint32().Draw(t, "limit"),
				Unit:            rlsv3.RateLimitResponse_RateLimit_Unit(rapid.IntRange(0, 7).Draw(t, "unit")),
				Name:            rapid.StringN(0, 200, 200).Draw(t, "name"),
			}
			if isRare("multiplier") {
				status.CurrentLimit.UnitMultiplier = wrapperspb.UInt32(2)
			}
			status.DurationUntilReset = &durationpb.Duration{Seconds: rapid.Int64().Draw(t, "seconds"), Nanos: rapid.Int32().Draw(t, "nanos")}
		}
		status.LimitRemaining = rapid.Uint32().Draw(t, "remaining")
		response.Statuses = append(response.Statuses, status)
	}
	if isRare("headers") {
		response.ResponseHeadersToAdd = []*corev3.HeaderValue{{Key: "a", Value: "b"}}
	}
	if isRare("body") {
		response.RawBody = []byte("denied")
	}
	return response
}

func TestResponseHasSameBytesAsFromGeneralCodec(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := drawResponse(t)
		want, err := generalCodec.Marshal(r)
		require.NoError(t, err)
		got, err := codec.New(0, 0).Marshal(r)
		require.NoError(t, err)
		assert.Equal(t, want.Materialize(), got.Materialize())
	})
}

func TestGeneralCodecEncodesOtherMessages(t *testing.T) {
	encodedRequest, err := codec.New(0, 0).Marshal(usualRequest())
	require.NoError(t, err)
	got := new(rlsv3.RateLimitRequest)
	require.NoError(t, generalCodec.Unmarshal(encodedRequest, got))
	assert.True(t, proto.Equal(usualRequest(), got))

	_, err = codec.New(0, 0).Marshal(&rlsv3.RateLimitResponse{Statuses: []*rlsv3.RateLimitResponse_DescriptorStatus{
		{CurrentLimit: &rlsv3.RateLimitResponse_RateLimit{Name: "\xff"}},
	}})
	assert.ErrorContains(t, err, "UTF-8")
}

func TestUsualMessagesNeedFewAllocations(t *testing.T) {
	data, err := proto.Marshal(usualRequest())
	require.NoError(t, err)
	c := codec.New(0, 0)
	buffers := mem.BufferSlice{mem.SliceBuffer(data)}
	request := new(rlsv3.RateLimitRequest)
	assert.EqualValues(t, 2, testing.AllocsPerRun(100, func() {
		_ = c.Unmarshal(buffers, request)
	}), "one allocation for the strings, and one for the rest of the request")
	response := &rlsv3.RateLimitResponse{Statuses: []*rlsv3.RateLimitResponse_DescriptorStatus{{LimitRemaining: 7}}}
	assert.EqualValues(t, 1, testing.AllocsPerRun(100, func() { _, _ = c.Marshal(response) }))
}

func BenchmarkMessages(b *testing.B) {
	data, err := proto.Marshal(usualRequest())
	require.NoError(b, err)
	buffers := mem.BufferSlice{mem.SliceBuffer(data)}
	response := &rlsv3.RateLimitResponse{OverallCode: rlsv3.RateLimitResponse_OK, Statuses: []*rlsv3.RateLimitResponse_DescriptorStatus{{
		Code: rlsv3.RateLimitResponse_OK, CurrentLimit: &rlsv3.RateLimitResponse_RateLimit{RequestsPerUnit: 100, Unit: 1},
		LimitRemaining: 1234, DurationUntilReset: durationpb.New(17e9),
	}}}
	for name, codecUnderTest := range map[string]encoding.CodecV2{"general": generalCodec, "own": codec.New(0, 0)} {
		b.Run("request/"+name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if err := codecUnderTest.Unmarshal(buffers, new(rlsv3.RateLimitRequest)); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run("response/"+name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := codecUnderTest.Marshal(response); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func TestReportWithTooManyUsagesIsNotDecoded(t *testing.T) {
	for usages, want := range map[int]string{0: "", 16_384: "", 16_385: "bucket_quota_usages: got 16385, want at most 16384"} {
		report := &rlqsv3.RateLimitQuotaUsageReports{Domain: "d"}
		for range usages {
			report.BucketQuotaUsages = append(report.BucketQuotaUsages, &rlqsv3.RateLimitQuotaUsageReports_BucketQuotaUsage{NumRequestsAllowed: 1})
		}
		encodedReport, err := proto.Marshal(report)
		require.NoError(t, err)
		decodedReports, waits := &rlqsv3.RateLimitQuotaUsageReports{}, 0
		err = codec.New(1, 1).Unmarshal(mem.BufferSlice{mem.SliceBuffer(encodedReport)}, &codec.StreamMessage{Message: decodedReports, BeforeDecode: func(bytes int) error {
			waits++
			assert.Equal(t, len(encodedReport), bytes)
			return nil
		}})
		if want != "" {
			assert.EqualError(t, err, want)
			assert.Zero(t, waits)
			continue
		}
		assert.NoError(t, err)
		assert.True(t, proto.Equal(report, decodedReports))
	}
}

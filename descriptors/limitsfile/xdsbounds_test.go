package limitsfile

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	confv3 "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
)

// field returns a field that is a message.
func field(number protowire.Number, content []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(nil, number, protowire.BytesType), content)
}

func TestXDSResponsesAreBoundedBeforeTheyAreDecoded(t *testing.T) {
	descriptor := field(3, nil)
	policy, replaced := field(3, field(3, nil)), field(3, field(3, field(5, nil)))
	value := field(3, field(8, field(1, field(2, nil))))
	listItems := func(n int) []byte {
		return field(3, field(8, field(1, field(2, field(6, bytes.Repeat(field(1, nil), n))))))
	}
	nested := []byte(nil)
	for range maxXDSDepth + 1 {
		nested = field(4, nested)
	}
	for name, c := range map[string]struct {
		resource []byte
		want     string // empty for no error
	}{
		"most descriptors":   {bytes.Repeat(descriptor, maxRules), ""},
		"descriptors":        {bytes.Repeat(descriptor, maxRules+1), "response has more than 320000 descriptors and limits"},
		"nested descriptors": {field(3, bytes.Repeat(field(4, nil), maxRules)), "320000 descriptors and limits"},
		"limits":             {bytes.Repeat(policy, maxRules/2+1), "320000 descriptors and limits"},
		"replaced limits":    {bytes.Repeat(replaced, maxRules/3+1), "320000 descriptors and limits"},
		"metadata":           {bytes.Repeat(value, maxRules), ""},
		"items of metadata":  {listItems(maxMetadata), "response has more than 400000 values in metadata"},
		"deep descriptors":   {field(3, nested), "messages are nested more than 1000 deep"},
		"broken":             {[]byte{0x1a, 0x7f}, ""},
		"other fields":       {bytes.Repeat([]byte{0x20, 0x01}, maxRules+1), ""},
	} {
		t.Run(name, func(t *testing.T) {
			err := new(XDSBounds).Add(c.resource)
			if c.want == "" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, c.want)
			}
		})
	}
	var b XDSBounds
	require.NoError(t, b.Add(bytes.Repeat(descriptor, maxRules)))
	require.Error(t, b.Add(descriptor), "the resources of a response count together")
}

func TestOneXDSDescriptorHasBoundedContent(t *testing.T) {
	parent := &confv3.RateLimitDescriptor{Key: "k"}
	for range maxXDSPieceRules {
		parent.Descriptors = append(parent.Descriptors, &confv3.RateLimitDescriptor{Key: "l"})
	}
	_, err := ParseXDS([]*confv3.RateLimitConfig{{Name: "r", Domain: "d", Descriptors: []*confv3.RateLimitDescriptor{{Key: "a"}, parent}}}, nil, Options{})
	require.EqualError(t, err, "r: d > k: got more than 100000 descriptors and limits in one descriptor; split the descriptor")
}

// The names of messages in XDSBounds are those of the API.
func TestXDSBoundsCountWhatTheAPISends(t *testing.T) {
	r := resource(t, "r", `{"domain":"d","descriptors":[{"key":"a","rate_limit":{"unit":"DAY","replaces":[{"name":"x"}]},
		"metadata":{"a":[1,{"b":2}]},"descriptors":[{"key":"b"}]}]}`)
	wire, err := proto.Marshal(r)
	require.NoError(t, err)
	var b XDSBounds
	require.NoError(t, b.Add(wire))
	assert.Equal(t, XDSBounds{ruleCount: 4, metadataValueCount: 4}, b)
}

package limitsfile

import (
	"bytes"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	confv3 "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
)

// messageField returns a field that is a message.
func messageField(number protowire.Number, content []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(nil, number, protowire.BytesType), content)
}

func TestXDSResponsesAreBoundedBeforeTheyAreDecoded(t *testing.T) {
	descriptor := messageField(3, nil)
	policy, replaced := messageField(3, messageField(3, nil)), messageField(3, messageField(3, messageField(5, nil)))
	value := messageField(3, messageField(8, messageField(1, messageField(2, nil))))
	listItems := func(n int) []byte {
		return messageField(3, messageField(8, messageField(1, messageField(2, messageField(6, bytes.Repeat(messageField(1, nil), n))))))
	}
	nestedDescriptors := func(n int) (content []byte) {
		for range n - 1 {
			content = messageField(4, content)
		}
		return messageField(3, content)
	}
	for name, c := range map[string]struct {
		resource []byte
		want     string // empty for no error
	}{
		"as many descriptors as the bound":        {bytes.Repeat(descriptor, maxRules), ""},
		"one descriptor too many":                 {bytes.Repeat(descriptor, maxRules+1), "response has more than 320000 descriptors and limits"},
		"too many nested descriptors":             {messageField(3, bytes.Repeat(messageField(4, nil), maxRules)), "320000 descriptors and limits"},
		"too many limits":                         {bytes.Repeat(policy, maxRules/2+1), "320000 descriptors and limits"},
		"too many replaced limits":                {bytes.Repeat(replaced, maxRules/3+1), "320000 descriptors and limits"},
		"as many values of metadata as the bound": {bytes.Repeat(value, maxRules), ""},
		"too many items of metadata":              {listItems(maxMetadata), "response has more than 400000 values in metadata"},
		"as many items of metadata as the bound":  {listItems(maxMetadata - 1), ""},         // the list is a value, too
		"descriptors as deep as the bound":        {nestedDescriptors(maxXDSDepth - 1), ""}, // the resource is a message, too
		"deep descriptors":                        {nestedDescriptors(maxXDSDepth), "messages are nested more than 1000 deep"},
		"broken message":                          {[]byte{0x1a, 0x7f}, ""},
		"other fields":                            {bytes.Repeat([]byte{0x20, 0x01}, maxRules+1), ""},
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
	children := func(n int, child *confv3.RateLimitDescriptor) *confv3.RateLimitDescriptor {
		return &confv3.RateLimitDescriptor{Key: "k", Descriptors: slices.Repeat([]*confv3.RateLimitDescriptor{child}, n)}
	}
	withReplaces := func(n int) *confv3.RateLimitDescriptor {
		return &confv3.RateLimitDescriptor{Key: "k", RateLimit: &confv3.RateLimitPolicy{Replaces: make([]*confv3.RateLimitReplace, n)}}
	}
	const want = "r: d > k: got more than 100000 descriptors and limits in one descriptor; split the descriptor"
	for name, c := range map[string]struct {
		descriptor *confv3.RateLimitDescriptor
		isTooLarge bool
	}{
		"as many children as the bound": {children(maxXDSPieceRules-1, &confv3.RateLimitDescriptor{Key: "l"}), false},
		"one child too many":            {children(maxXDSPieceRules, &confv3.RateLimitDescriptor{Key: "l"}), true},
		"children with limits":          {children(maxXDSPieceRules/2, &confv3.RateLimitDescriptor{Key: "l", RateLimit: &confv3.RateLimitPolicy{}}), true},
		"replaced limits":               {withReplaces(maxXDSPieceRules), true},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := ParseXDS([]*confv3.RateLimitConfig{{Name: "r", Domain: "d", Descriptors: []*confv3.RateLimitDescriptor{{Key: "a"}, c.descriptor}}}, nil, Options{})
			if c.isTooLarge {
				require.EqualError(t, err, want)
			} else {
				require.NotContains(t, err.Error(), want)
			}
		})
	}
}

// The names of messages in XDSBounds are those of the API.
func TestXDSBoundsCountWhatTheAPISends(t *testing.T) {
	r := newResource(t, "r", `{"domain":"d","descriptors":[{"key":"a","rate_limit":{"unit":"DAY","replaces":[{"name":"x"}]},
		"metadata":{"a":[1,{"b":2}]},"descriptors":[{"key":"b"}]}]}`)
	wire, err := proto.Marshal(r)
	require.NoError(t, err)
	var b XDSBounds
	require.NoError(t, b.Add(wire))
	assert.Equal(t, XDSBounds{ruleCount: 4, metadataValueCount: 4}, b)
}

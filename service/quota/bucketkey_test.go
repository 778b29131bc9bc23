package quota

import (
	"slices"
	"strings"
	"testing"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestBucketKeyHasDomainAndID(t *testing.T) {
	text := rapid.String()
	rapid.Check(t, func(t *rapid.T) {
		domain := text.Draw(t, "domain")
		id := rapid.MapOfN(text, text, 1, 5).Draw(t, "id")
		key, ok := newBucketKey(domain, id)
		require.True(t, ok)
		assert.Equal(t, domain, key.domain())
		assert.Equal(t, id, key.id().GetBucket())
		assert.True(t, slices.IsSortedFunc(key.entries(nil), func(a, b *ratelimitv3.RateLimitDescriptor_Entry) int { return strings.Compare(a.GetKey(), b.GetKey()) }))
		sameKey, _ := newBucketKey(domain, key.id().GetBucket())
		assert.Equal(t, key, sameKey)
	})
}

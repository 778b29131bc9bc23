package redis

import (
	"crypto/sha256"
	"encoding/base64"
)

// layoutVersion names the format of what the scripts store. Another format gets another
// version, so that old and new replicas can share a Redis.
const layoutVersion = "v1:"

// maxKey bounds a key in Redis, in bytes.
const maxKey = 200

// hashLen is the length of a hash in a key.
var hashLen = base64.RawURLEncoding.EncodedLen(sha256.Size)

// keyspace names the counters of one partition. It is the part of the names up to
// layoutVersion:
//
//	<prefix>[{hash tag}]v1:<tag of the limit>:<key>
//	<prefix>[{hash tag}]v1:<tag of the limit>#<SHA-256 of key>:<start of key>
//
// The second form replaces names of more than maxKey bytes. Prefix and hash tag are the
// same for all counters, and a limit's tag holds only letters and digits. So no two
// counters have the same name.
type keyspace string

// append appends the name of a counter to b.
func (k keyspace) append(b []byte, tag string, key []byte) []byte {
	b = append(b, k...)
	b = append(b, tag...)
	space := maxKey - len(k) - len(tag) - 1
	if len(key) <= space {
		b = append(b, ':')
		return append(b, key...)
	}
	sum := sha256.Sum256(key)
	b = append(b, '#')
	b = base64.RawURLEncoding.AppendEncode(b, sum[:])
	b = append(b, ':')
	return append(b, key[:space-hashLen-1]...)
}

package redis

import (
	"crypto/sha256"
	"encoding/base64"
	"hash/crc32"
)

// layout is the version of what the scripts store; another layout gets another
// name, so that both can be in one Redis while replicas are replaced.
const layout = "v1:"

// maxKey bounds a key in Redis, in bytes.
const maxKey = 200

// hashLen is the length of a hash in a key.
var hashLen = base64.RawURLEncoding.EncodedLen(sha256.Size)

// keys names the counters of one partition:
//
//	<prefix>[{hash tag}]v1:<tag of the limit>:<key>
//	<prefix>[{hash tag}]v1:<tag of the limit>#<SHA-256 of key>:<start of key>
//
// the latter where the former would have more than maxKey bytes. As prefix and
// hash tag are the same for all, and tags hold only letters and digits, no two
// counters have one name.
type keys struct {
	head string // up to and with the layout
}

// append adds the name of the counter of key and tag to b.
func (k keys) append(b []byte, tag string, key []byte) []byte {
	b = append(b, k.head...)
	b = append(b, tag...)
	room := maxKey - len(k.head) - len(tag) - 1
	if len(key) <= room {
		b = append(b, ':')
		return append(b, key...)
	}
	sum := sha256.Sum256(key)
	b = append(b, '#')
	b = base64.RawURLEncoding.AppendEncode(b, sum[:])
	b = append(b, ':')
	return append(b, key[:room-hashLen-1]...)
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// partition is where the counters of key are. Those of all its limits are
// together, so that several limits of one descriptor are charged in one step.
func (p *pool) partition(key []byte) int {
	if len(p.lanes) == 1 {
		return 0
	}
	return int(crc32.Checksum(key, castagnoli) % uint32(len(p.lanes)))
}

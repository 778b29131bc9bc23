package redis

import (
	"crypto/sha256"
	"encoding/base64"
	"strconv"
	"strings"

	"github.com/seed-81f232ab/rls/limit"
)

// A layout is the format of the value of a counter. The name of the counter has the layout, so versions of rls with
// different formats can share a Redis.
const (
	layoutState = "v1:" // the state of an algorithm, as the scripts store it
	layoutCount = "v2:" // the count of one window, a whole number
)

// maxNameBytes is the largest length of the name of a counter, in bytes.
const maxNameBytes = 200

// maxWindowNameBytes is the length of the longest name of a window: an @ and a number of seconds. Until the year 2286, a
// number of milliseconds has no more digits.
const maxWindowNameBytes = len("@9223372036854")

var hashLength = base64.RawURLEncoding.EncodedLen(sha256.Size)

// keyspace names the counters of one partition. A keyspace is the start of all these names:
//
//	<prefix>[{hash tag}]<layout><tag of the limit>:<key>[@<start of the window>]
//	<prefix>[{hash tag}]<layout><tag of the limit>#<SHA-256 of key>:<start of key>[@<start of the window>]
//
// Names of more than maxNameBytes have the second form. Two counters never have the same name: the tag of a limit has only
// letters and digits, and the tag determines whether a window follows.
type keyspace string

// refundMarkName returns the name of the refund mark, a key that exists while charges in the partition may be refunded. A
// batch sets the mark before such charges. Another batch reads the mark after its plain commands. If the mark does not
// exist, the denials of these commands can't end early. No limit has the tag "rls", so no counter has this name.
func (k keyspace) refundMarkName() string { return string(k) + layoutState + "rls:refundable" }

// append appends the name of a counter of l to b, without the window.
func (k keyspace) append(b []byte, l *limit.Limit, key []byte) []byte {
	if l.Algorithm.CountsByWindow() {
		return k.appendName(b, layoutCount, l.Tag(), key, maxNameBytes-maxWindowNameBytes)
	}
	return k.appendName(b, layoutState, l.Tag(), key, maxNameBytes)
}

// quotaState returns the name of the state of a quota. Tags of counters have no _, so no counter has such a name.
func (k keyspace) quotaState(key []byte) string {
	return string(k.appendName(nil, layoutState, "quota_state", key, maxNameBytes))
}

func (k keyspace) quotaMark() string { return string(k) + layoutState + "quota_mark" }

func (k keyspace) appendName(b []byte, layout, tag string, key []byte, maxBytes int) []byte {
	b = append(b, k...)
	b = append(b, layout...)
	b = append(b, tag...)
	maxKeyBytes := maxBytes - len(k) - len(layout) - len(tag) - 1 // the 1 is for the separator
	if len(key) <= maxKeyBytes {
		b = append(b, ':')
		return append(b, key...)
	}
	sum := sha256.Sum256(key)
	b = append(b, '#')
	b = base64.RawURLEncoding.AppendEncode(b, sum[:])
	b = append(b, ':')
	return append(b, key[:maxKeyBytes-hashLength-1]...)
}

// emptyWindow takes the place of the name of a window until setWindow writes the name.
var emptyWindow = strings.Repeat(" ", maxWindowNameBytes)

const microsPerSecond = 1_000_000

const hashSlotCount = 16384

// hashTags returns hash tags such as "{7}". It divides all hash slots into count equal ranges, and returns one tag for
// each range. So if all masters have equally many slots, their numbers of partitions differ by at most two.
func hashTags(count int) []string {
	tags := make([]string, count)
	for i, foundTags := 0, 0; foundTags < count; i++ {
		tag := strconv.Itoa(i)
		if slotRange := hashSlot(tag) * count / hashSlotCount; tags[slotRange] == "" {
			tags[slotRange] = "{" + tag + "}"
			foundTags++
		}
	}
	return tags
}

// hashSlot returns the hash slot of a hash tag: its CRC-16/XMODEM, as the Redis Cluster specification defines.
func hashSlot(tag string) int {
	var crc uint16
	for i := range len(tag) {
		crc ^= uint16(tag[i]) << 8
		for range 8 {
			if crc&0x8000 != 0 {
				crc = crc<<1 ^ 0x1021
			} else {
				crc <<= 1
			}
		}
	}
	return int(crc % hashSlotCount)
}

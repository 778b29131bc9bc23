// Package fingerprint has a few bytes stand for a counter's name, however long that is.
package fingerprint

import "hash/maphash"

// ID stands for a counter's key and tag.
//
// Each half is a 64-bit hash of its own random seeds, so two given counters share
// an ID with a chance of about 2^-128; among a million counters any two do with
// less than 2^-88. Nobody outside the process learns the seeds or sees a hash, so
// keys can't be made to collide either.
type ID struct{ Lo, Hi uint64 }

// Seeds make IDs, which are of use only among those of the same Seeds.
type Seeds [4]maphash.Seed

// NewSeeds returns random ones.
func NewSeeds() (s Seeds) {
	for i := range s {
		s[i] = maphash.MakeSeed()
	}
	return s
}

// Of is the ID of key and tag. They are hashed apart and then joined by XOR, so that
// no bytes can move from one to the other.
func (s *Seeds) Of(key []byte, tag string) ID {
	return ID{
		Lo: maphash.Bytes(s[0], key) ^ maphash.String(s[1], tag),
		Hi: maphash.Bytes(s[2], key) ^ maphash.String(s[3], tag),
	}
}

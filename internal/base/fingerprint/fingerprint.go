// Package fingerprint hashes counter names to 128-bit IDs.
package fingerprint

import "hash/maphash"

// ID identifies a counter by its key and tag. Each half is a 64-bit hash with random seeds of its own, so among a
// million counters, any two share an ID with a chance below 2^-88. Nobody outside the process learns the seeds, so
// nobody can make keys collide.
type ID struct{ Lo, Hi uint64 }

// Seeds make IDs. Only IDs of the same Seeds can be compared.
type Seeds [4]maphash.Seed

// NewSeeds returns random seeds.
func NewSeeds() (s Seeds) {
	for i := range s {
		s[i] = maphash.MakeSeed()
	}
	return s
}

// ID hashes key and tag separately, so that "a" + "bc" and "ab" + "c" differ.
func (s *Seeds) ID(key []byte, tag string) ID {
	return ID{
		Lo: maphash.Bytes(s[0], key) ^ maphash.String(s[1], tag),
		Hi: maphash.Bytes(s[2], key) ^ maphash.String(s[3], tag),
	}
}

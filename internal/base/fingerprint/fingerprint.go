// Package fingerprint hashes counter names to 128-bit IDs.
package fingerprint

import "hash/maphash"

// ID identifies a counter by its key and tag. Each half is a 64-bit hash with its own random seeds. Among a million
// counters, the chance that any two have the same ID is below 2^-88. The seeds never leave the process, so nobody can
// choose keys that have the same ID.
type ID struct{ Lo, Hi uint64 }

// Seeds are the seeds of IDs. Only IDs with the same Seeds can be compared.
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

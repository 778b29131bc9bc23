package local

import "hash/maphash"

type seed = maphash.Seed

// fingerprint stands for a counter's key and tag.
//
// Each half is a 64-bit hash of its own random seeds, so two given counters share
// a fingerprint with a chance of about 2^-128; among a million counters any two
// do with less than 2^-88. Nobody outside the process learns the seeds or sees a
// hash, so keys can't be made to collide either.
//
// Key and tag are hashed apart and then joined by XOR, so that no bytes can move
// from one to the other.
type fingerprint struct{ lo, hi uint64 }

func newSeeds() (s [4]seed) {
	for i := range s {
		s[i] = maphash.MakeSeed()
	}
	return s
}

func (l *Limiter) fingerprint(key []byte, tag string) fingerprint {
	return fingerprint{
		lo: maphash.Bytes(l.seeds[0], key) ^ maphash.String(l.seeds[1], tag),
		hi: maphash.Bytes(l.seeds[2], key) ^ maphash.String(l.seeds[3], tag),
	}
}

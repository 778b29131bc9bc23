package backend

import "github.com/seed-81f232ab/rls/limit"

// Probe is a hit that finds out whether a Limiter can charge, as reading can work
// where writing doesn't. Its counter, that of key, is to be of no other use.
func Probe(key string) Hit {
	return Hit{Key: []byte(key), Limit: probeLimit, N: 1, Shadow: true}
}

var probeLimit = func() *limit.Limit {
	l, err := limit.New(limit.Spec{Requests: 1, Unit: limit.Second, ChargeDenied: true})
	if err != nil {
		panic(err) // it is a constant
	}
	return l
}()

package backend

import "github.com/seed-81f232ab/rls/limit"

// Probe returns a hit that shows whether a Limiter can charge. A Limiter may be able to read
// and unable to write. No other hit should use the counter of key.
func Probe(key string) Hit {
	return Hit{Key: []byte(key), Limit: probeLimit, N: 1, Shadow: true}
}

var probeLimit = func() *limit.Limit {
	l, err := limit.New(limit.Spec{Requests: 1, Unit: limit.Second, ChargeDenied: true})
	if err != nil {
		panic(err) // the Spec is constant and valid
	}
	return l
}()

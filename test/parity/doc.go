// Package parity runs the tests of envoyproxy/ratelimit against rls: make parity. The tests are those of the
// module in the cache of Go, unchanged. Only the package that starts the service is replaced, by
// testdata/runner.go.txt.
package parity

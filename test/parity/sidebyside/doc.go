// Package sidebyside sends the same requests to rls and to envoyproxy/ratelimit, and compares answers, counters
// and metrics: make parity, and make e2e. A missing program makes the tests fail, not skip.
package sidebyside

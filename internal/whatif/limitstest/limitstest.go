// Package limitstest runs the unit tests of limits. A test file names limits files, sends
// requests at given times of a virtual clock, and states the answers that it wants.
//
// The package uses the service itself, with counters in memory. Each test starts with empty
// counters.
package limitstest

import (
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
)

// File is a parsed test file.
type File struct {
	Name string

	// Limits has the paths of the limits files, relative to the folder of the test file.
	// Merge merges limits files of the same domain.
	Limits []string
	Merge  bool

	Settings Settings
	Tests    []Test
}

// Settings are the settings of the service that a test file can change.
type Settings struct {
	ShadowMode, QuotaMode, AllOrNone bool
}

// Test is one test of a file.
type Test struct {
	Name     string
	Line     int
	Requests []Request
}

// Request is a request of a test, sent once or more.
type Request struct {
	Line        int
	Descriptors []string // as the file writes them
	Message     *rlsv3.RateLimitRequest
	At          time.Time     // of the first time that the request is sent
	Repeat      int           // how often it is sent, at least 1
	Every       time.Duration // between two times
	Want        Want
}

// time returns the time at which the request is sent for the i-th time, from 0.
func (r *Request) time(i int) time.Time { return r.At.Add(time.Duration(i) * r.Every) }

// Want is the wanted answer. Nil fields are not compared.
type Want struct {
	Code  *string // of each answer
	Error *string // a part of the error of each answer

	// Admitted is how many of the answers have the code OK.
	Admitted *int

	// Headers has the wanted values of response headers of the last answer.
	Headers map[string]string

	// Body is the body of the last answer, or NoBody.
	Body *string

	// Statuses describes the descriptors. It is empty, or has one item for each descriptor.
	Statuses []WantStatus
}

// WantStatus is the wanted status of a descriptor. Nil fields are not compared. Code, Rule and
// DeniedInShadow are compared for each answer, and the others for the last answer.
type WantStatus struct {
	Code           *string
	Rule           *string // the path of the rule, or NoRule
	DeniedInShadow *bool

	Limit     *string // the name of the limit, or the limit in words
	Remaining *uint32
	Reset     *time.Duration
}

// NoBody is the Want.Body of an answer without a body.
const NoBody = "none"

// NoRule is the WantStatus.Rule of a descriptor that no rule limits.
const NoRule = "none"

// The codes of an answer.
const (
	codeOK        = "OK"
	codeOverLimit = "OVER_LIMIT"
)

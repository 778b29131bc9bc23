// Package limitstest runs the unit tests of limits. A test file names limits files, sends
// requests at given times of a virtual clock, and states the answers that it wants.
//
// The package uses the service itself, with counters in memory. Each test starts with empty counters.
package limitstest

import (
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/seed-81f232ab/rls/service"
)

// File is a parsed test file.
type File struct {
	Name          string
	Limits        []string        // paths of the limits files, relative to the folder of the test file
	MergesDomains bool            // merge limits files of the same domain
	Settings      service.Options // the settings that a test file can change
	Tests         []Test
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
	Descriptors []string // the descriptors as the file writes them
	Message     *rlsv3.RateLimitRequest
	FirstTime   time.Time     // the time at which the request is sent first
	Repetitions int           // the number of times that the request is sent, at least 1
	Pause       time.Duration // the time between two repetitions
	Want        []Want
	WantedError string // a part of the error that each answer must have; if it is empty, no answer may be an error
}

// sendTime returns the time of repetition i, from 0.
func (r *Request) sendTime(i int) time.Time { return r.FirstTime.Add(time.Duration(i) * r.Pause) }

// Want is a wanted value of an answer.
type Want struct {
	Field      string // the name of the value in a test file
	Label      string // the name of the value in reports
	Header     string // the name of the header in lower case, if Field is headers
	Descriptor int    // the index of the descriptor with the status that has the value, or wholeAnswer
	Text       string
}

// wholeAnswer is the Want.Descriptor of a value outside the field statuses. If the request has one descriptor, the value
// can belong to the status of this descriptor.
const wholeAnswer = -1

const noValue = "none" // the value of an error, a body, a header, a rule or a limit that an answer does not have

// Package local decides requests of package client in this process, with limits files and the code of the
// service. A program that imports only package client does not contain this code.
//
//	limits, err := local.ReadLimits("limits.yaml")
//	…
//	c, err := client.New("rls:8081", client.Options{Failure: client.FailLocal, Limits: limits})
package local

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	counters "github.com/seed-81f232ab/rls/backend/local"
	"github.com/seed-81f232ab/rls/client"
	"github.com/seed-81f232ab/rls/descriptors"
	"github.com/seed-81f232ab/rls/descriptors/limitsfile"
	"github.com/seed-81f232ab/rls/service"
)

// Limits are the limits of limits files. They are immutable. Clients that share them have separate counters.
type Limits struct {
	set *limitsfile.Set
}

var _ client.Limits = (*Limits)(nil)

// ReadLimits reads limits files. No two files may have the same domain. The error has all problems with their remedies.
func ReadLimits(paths ...string) (*Limits, error) {
	var files []limitsfile.File
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("limits file: %w", err)
		}
		files = append(files, limitsfile.File{Name: path, Data: data})
	}
	return parse(files)
}

// ParseLimits parses the text of a limits file. name is the name of the file in errors.
func ParseLimits(name, text string) (*Limits, error) {
	return parse([]limitsfile.File{{Name: name, Data: []byte(text)}})
}

func parse(files []limitsfile.File) (*Limits, error) {
	if len(files) == 0 {
		return nil, errors.New("limits files: got none, want at least 1")
	}
	set, err := limitsfile.Parse(files, limitsfile.Options{ReadList: os.ReadFile})
	if err != nil {
		return nil, err
	}
	return &Limits{set}, nil
}

// Warnings returns a text for each part of the files that is valid but is probably a mistake.
func (l *Limits) Warnings() []string {
	var warnings []string
	for _, w := range l.set.Warnings {
		warnings = append(warnings, w.String())
	}
	return warnings
}

// NewService implements client.Limits.
func (l *Limits) NewService(ratio float64, now func() time.Time) rlsv3.RateLimitServiceServer {
	store := new(descriptors.Store)
	store.Set(descriptors.Compile(scaleSet(l.set, ratio)))
	s := &sweeper{counters: counters.New(counters.Options{})}
	return service.New(service.Options{Limits: store, Limiter: s.counters, Observers: []service.Observer{s}, Now: now})
}

func scaleSet(set *limitsfile.Set, ratio float64) *limitsfile.Set {
	if ratio == 1 {
		return set
	}
	scaledSet := *set
	scaledSet.Domains = make([]*limitsfile.Domain, len(set.Domains))
	for i, d := range set.Domains {
		scaledDomain := *d
		scaledDomain.Descriptors = scaleDescriptors(d.Descriptors, ratio)
		scaledSet.Domains[i] = &scaledDomain
	}
	return &scaledSet
}

func scaleDescriptors(list []*limitsfile.Descriptor, ratio float64) []*limitsfile.Descriptor {
	scaledList := make([]*limitsfile.Descriptor, len(list))
	for i, descriptor := range list {
		scaledDescriptor := *descriptor
		scaledDescriptor.Limits = make([]*limitsfile.Limit, len(descriptor.Limits))
		for j, l := range descriptor.Limits {
			scaledLimit := *l
			if !l.Unlimited {
				scaledLimit.Limit = l.Scaled(ratio)
			}
			scaledDescriptor.Limits[j] = &scaledLimit
		}
		scaledDescriptor.Descriptors = scaleDescriptors(descriptor.Descriptors, ratio)
		scaledList[i] = &scaledDescriptor
	}
	return scaledList
}

// callsPerSweep is the number of calls after which the sweeper frees a part of the expired counters.
const callsPerSweep = 256

type sweeper struct {
	counters *counters.Limiter
	calls    atomic.Uint64
}

// CallAnswered implements service.Observer.
func (s *sweeper) CallAnswered(_ context.Context, c *service.Call) {
	if s.calls.Add(1)%callsPerSweep == 0 {
		s.counters.Sweep(c.Start)
	}
}

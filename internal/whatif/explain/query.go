package explain

import (
	"errors"
	"fmt"
	"math"
	"net/url"
	"slices"
	"strconv"
	"strings"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"

	"github.com/seed-81f232ab/rls/internal/base/entrytext"
	"github.com/seed-81f232ab/rls/internal/base/fields"
	"github.com/seed-81f232ab/rls/limit"
)

// The parameters of a query. Only descriptor can occur several times.
const (
	DomainParam     = "domain"
	DescriptorParam = "descriptor"
	LimitParam      = "limit"
	FormatParam     = "format"
)

var queryParams = []string{DomainParam, DescriptorParam, LimitParam, FormatParam}

// Bounds of a query.
const (
	MaxQueryBytes  = 64 << 10
	maxDescriptors = 20
)

// ParseQuery returns the request of a query with these parameters:
//
//   - domain: the domain;
//   - descriptor: a descriptor in the form of entrytext.Parse, once for each
//     descriptor of the request;
//   - limit: a limit that the request states for each descriptor, such as 100/minute.
func ParseQuery(q url.Values) (*rlsv3.RateLimitRequest, error) {
	for name, values := range q {
		if !slices.Contains(queryParams, name) {
			return nil, fmt.Errorf("unknown parameter %s; want %s", fields.Printable(name), fields.OneOf(name, queryParams))
		}
		if name != DescriptorParam && len(values) > 1 {
			return nil, fmt.Errorf("parameter %s is given %d times, want once", name, len(values))
		}
	}
	return NewRequest(q.Get(DomainParam), q[DescriptorParam], q.Get(LimitParam))
}

// NewRequest returns the request that the parameters of a query describe, as in ParseQuery. If limitText is empty, the
// request states no limit.
func NewRequest(domain string, descriptorTexts []string, limitText string) (*rlsv3.RateLimitRequest, error) {
	switch {
	case domain == "":
		return nil, errors.New("domain is missing")
	case len(descriptorTexts) == 0:
		return nil, errors.New("descriptor is missing; write KEY=VALUE,KEY=VALUE…")
	case len(descriptorTexts) > maxDescriptors:
		return nil, fmt.Errorf("descriptors: got %d, want at most %d", len(descriptorTexts), maxDescriptors)
	}
	var requestLimit *ratelimitv3.RateLimitDescriptor_RateLimitOverride
	if limitText != "" {
		var err error
		if requestLimit, err = ParseLimit(limitText); err != nil {
			return nil, err
		}
	}
	req := &rlsv3.RateLimitRequest{Domain: domain}
	for _, text := range descriptorTexts {
		entries, err := entrytext.ParseRequest(text)
		if err != nil {
			return nil, err
		}
		req.Descriptors = append(req.Descriptors, &ratelimitv3.RateLimitDescriptor{Entries: entries, Limit: requestLimit})
	}
	return req, nil
}

// ParseLimit parses a limit such as 100/minute.
func ParseLimit(text string) (*ratelimitv3.RateLimitDescriptor_RateLimitOverride, error) {
	number, unitName, _ := strings.Cut(text, "/")
	requests, err := strconv.ParseUint(number, 10, 32)
	unit, isUnit := limit.ParseUnit(unitName)
	switch {
	case isUnit && errors.Is(err, strconv.ErrRange):
		return nil, fmt.Errorf("limit: got %s, want a number up to %d", fields.Printable(text), uint32(math.MaxUint32))
	case err != nil || !isUnit || unit == limit.Millisecond: // Envoy has no milliseconds
		units := slices.DeleteFunc(limit.UnitNames(), func(name string) bool { return name == limit.Millisecond.String() })
		if isUnit {
			unitName = "" // the message must suggest no similar unit
		}
		return nil, fmt.Errorf("limit: got %s, want NUMBER/UNIT such as 100/minute; units are %s", fields.Printable(text), fields.OneOf(unitName, units))
	}
	return &ratelimitv3.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: uint32(requests), Unit: typev3.RateLimitUnit(unit)}, nil
}

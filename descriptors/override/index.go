package override

import (
	"strings"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"

	"github.com/seed-81f232ab/rls/descriptors/limitsfile"
)

// index finds descriptors of one list.
type index struct {
	byName    map[[2]string]*limitsfile.Descriptor // by key and value
	wildcards []wildcard                           // in file order
}

type wildcard struct {
	key, value limitsfile.Pattern
	descriptor *limitsfile.Descriptor
}

func newIndex(list []*limitsfile.Descriptor) *index {
	x := &index{byName: make(map[[2]string]*limitsfile.Descriptor, len(list))}
	for _, d := range list {
		x.byName[[2]string{d.Key, d.Value}] = d
		if d.WildcardKey || d.WildcardValue {
			value := limitsfile.NewPattern("*")
			if d.Value != "" {
				value = limitsfile.NewPattern(d.Value)
			}
			x.wildcards = append(x.wildcards, wildcard{limitsfile.NewPattern(d.Key), value, d})
		}
	}
	return x
}

// find returns the descriptor with the key and value of e. If there is none, find returns
// the descriptor that matches a request with e, or nil.
func (x *index) find(e *ratelimitv3.RateLimitDescriptor_Entry) (d *limitsfile.Descriptor, exact bool) {
	key, value := e.GetKey(), e.GetValue()
	if d = x.byName[[2]string{key, value}]; d != nil {
		return d, true
	}
	if value == "" || strings.Contains(key+value, "*") {
		return nil, false
	}
	for i := range x.wildcards {
		if w := &x.wildcards[i]; w.value.Match(value) && w.key.Match(key) {
			return w.descriptor, false
		}
	}
	return x.byName[[2]string{key, ""}], false
}

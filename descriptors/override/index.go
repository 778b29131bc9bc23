package override

import (
	"maps"
	"strings"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"

	"github.com/seed-81f232ab/rls/descriptors/limitsfile"
)

// index finds descriptors of one list, by their place in it.
type index struct {
	byName    map[[2]string]int // by key and value
	wildcards []wildcard        // in file order
	copies    map[int][]int     // those for single values, by the original
}

// listID identifies a list by its memory.
type listID struct {
	first  **limitsfile.Descriptor
	length int
}

type wildcard struct {
	key, value limitsfile.Pattern
	place      int
}

// index returns the index of list.
func (o *overlay) index(list *[]*limitsfile.Descriptor) *index {
	if x := o.owned[list]; x != nil {
		return x
	}
	if len(*list) == 0 {
		return &index{}
	}
	id := listID{&(*list)[0], len(*list)}
	if o.shared[id] == nil {
		o.shared[id] = newIndex(*list)
	}
	return o.shared[id]
}

func newIndex(list []*limitsfile.Descriptor) *index {
	x := &index{byName: make(map[[2]string]int, len(list)), copies: map[int][]int{}}
	for i, d := range list {
		x.byName[[2]string{d.Key, d.Value}] = i
		if d.WildcardKey || d.WildcardValue {
			value := limitsfile.NewPattern("*")
			if d.Value != "" {
				value = limitsfile.NewPattern(d.Value)
			}
			x.wildcards = append(x.wildcards, wildcard{limitsfile.NewPattern(d.Key), value, i})
		}
		if d.CopiedFrom != nil { // it comes after the original
			from := x.byName[[2]string{d.CopiedFrom.Key, d.CopiedFrom.Value}]
			x.copies[from] = append(x.copies[from], i)
		}
	}
	return x
}

func (x *index) clone() *index {
	return &index{maps.Clone(x.byName), x.wildcards, maps.Clone(x.copies)}
}

// find returns the place of the descriptor with the key and value of e, else of the one
// that requests with e match; -1 if there is none.
func (x *index) find(e *ratelimitv3.RateLimitDescriptor_Entry) (place int, exact bool) {
	key, value := e.GetKey(), e.GetValue()
	if i, ok := x.byName[[2]string{key, value}]; ok {
		return i, true
	}
	if value == "" || strings.Contains(key+value, "*") {
		return -1, false
	}
	for i := range x.wildcards {
		if w := &x.wildcards[i]; w.value.Match(value) && w.key.Match(key) {
			return w.place, false
		}
	}
	if i, ok := x.byName[[2]string{key, ""}]; ok {
		return i, false
	}
	return -1, false
}

package envoyconf

import (
	"fmt"
	"maps"
	"slices"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"
)

// walk collects what is wrong with a message, and the clusters it names.
type walk struct {
	errs          []error
	defined, used map[string]bool
}

// message visits m and all messages below it, those in an Any included. A message
// of Envoy's validates its fields, but not what an Any holds.
func (w *walk) message(m protoreflect.Message) {
	switch x := m.Interface().(type) {
	case *anypb.Any:
		inner, err := x.UnmarshalNew()
		if err != nil {
			w.errs = append(w.errs, err)
			return
		}
		w.validate(inner)
		w.message(inner.ProtoReflect())
		return
	case *clusterv3.Cluster:
		w.define(x.GetName())
	case *routev3.RouteAction:
		w.use(x.GetCluster())
	case *routev3.WeightedCluster_ClusterWeight:
		w.use(x.GetName())
	case *routev3.RouteAction_RequestMirrorPolicy:
		w.use(x.GetCluster())
	case *corev3.GrpcService_EnvoyGrpc:
		w.use(x.GetClusterName())
	}
	m.Range(func(field protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case field.IsMap():
			if field.MapValue().Message() != nil {
				v.Map().Range(func(_ protoreflect.MapKey, v protoreflect.Value) bool {
					w.message(v.Message())
					return true
				})
			}
		case field.Message() == nil:
		case field.IsList():
			for i := range v.List().Len() {
				w.message(v.List().Get(i).Message())
			}
		default:
			w.message(v.Message())
		}
		return true
	})
}

func (w *walk) validate(m any) {
	v, ok := m.(interface{ ValidateAll() error })
	if !ok {
		return
	}
	if err := v.ValidateAll(); err != nil {
		w.errs = append(w.errs, fmt.Errorf("%T: %w", m, err))
	}
}

func (w *walk) define(name string) {
	if w.defined[name] {
		w.errs = append(w.errs, fmt.Errorf("cluster %s is there twice", name))
	}
	w.defined[name] = true
}

// use takes note of a cluster's name; "" means that another field tells it.
func (w *walk) use(name string) {
	if name != "" {
		w.used[name] = true
	}
}

// resolve reports clusters that are named and not there.
func (w *walk) resolve() {
	for _, name := range slices.Sorted(maps.Keys(w.used)) {
		if !w.defined[name] {
			w.errs = append(w.errs, fmt.Errorf("no cluster %s", name))
		}
	}
}

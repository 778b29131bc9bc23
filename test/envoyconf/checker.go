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

// checker collects the errors of a message, and the names of clusters.
type checker struct {
	errs          []error
	defined, used map[string]bool
}

// visit visits m and all messages below m, also inside an Any. The validation of an Envoy
// message stops at an Any, so visit validates the message inside.
func (c *checker) visit(m protoreflect.Message) {
	switch typed := m.Interface().(type) {
	case *anypb.Any:
		inner, err := typed.UnmarshalNew()
		if err != nil {
			c.errs = append(c.errs, err)
			return
		}
		c.validate(inner)
		c.visit(inner.ProtoReflect())
		return
	case *clusterv3.Cluster:
		c.define(typed.GetName())
	case *routev3.RouteAction:
		c.use(typed.GetCluster())
	case *routev3.WeightedCluster_ClusterWeight:
		c.use(typed.GetName())
	case *routev3.RouteAction_RequestMirrorPolicy:
		c.use(typed.GetCluster())
	case *corev3.GrpcService_EnvoyGrpc:
		c.use(typed.GetClusterName())
	}
	m.Range(func(field protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case field.IsMap():
			if field.MapValue().Message() != nil {
				v.Map().Range(func(_ protoreflect.MapKey, v protoreflect.Value) bool {
					c.visit(v.Message())
					return true
				})
			}
		case field.Message() == nil:
		case field.IsList():
			for i := range v.List().Len() {
				c.visit(v.List().Get(i).Message())
			}
		default:
			c.visit(v.Message())
		}
		return true
	})
}

func (c *checker) validate(m any) {
	validator, ok := m.(interface{ ValidateAll() error })
	if !ok {
		return
	}
	if err := validator.ValidateAll(); err != nil {
		c.errs = append(c.errs, fmt.Errorf("%T: %w", m, err))
	}
}

func (c *checker) define(name string) {
	if c.defined[name] {
		c.errs = append(c.errs, fmt.Errorf("cluster %s is defined twice", name))
	}
	c.defined[name] = true
}

// use records the name of a cluster. If the name is "", another field names the cluster.
func (c *checker) use(name string) {
	if name != "" {
		c.used[name] = true
	}
}

// checkClusters adds an error for each cluster that is used but not defined.
func (c *checker) checkClusters() {
	for _, name := range slices.Sorted(maps.Keys(c.used)) {
		if !c.defined[name] {
			c.errs = append(c.errs, fmt.Errorf("no cluster %s", name))
		}
	}
}

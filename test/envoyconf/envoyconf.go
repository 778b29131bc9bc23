// Package envoyconf finds Envoy for tests, and checks Envoy's configuration at least as strictly as Envoy.
// Unknown fields, values that Envoy's API forbids, and missing clusters are errors, also
// inside typed_config.
package envoyconf

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	// The message types of typed_config in our examples.
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/local_ratelimit/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/rate_limit_quota/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ratelimit/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
)

// Bootstrap reads a bootstrap file and checks it.
func Bootstrap(path string) (*bootstrapv3.Bootstrap, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	b := new(bootstrapv3.Bootstrap)
	if err := Unmarshal(text, b); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return b, nil
}

// Unmarshal reads YAML into m and checks m with Check.
func Unmarshal(text []byte, m proto.Message) error {
	var tree any
	if err := yaml.Unmarshal(text, &tree); err != nil {
		return err
	}
	jsonText, err := json.Marshal(tree)
	if err != nil {
		return err
	}
	if err := protojson.Unmarshal(jsonText, m); err != nil {
		return err
	}
	return Check(m)
}

// Check returns an error for everything in m that Envoy would reject. If m is a
// bootstrap, it must define each cluster that it names.
func Check(m proto.Message) error {
	c := checker{defined: map[string]bool{}, used: map[string]bool{}}
	c.validate(m)
	c.visit(m.ProtoReflect())
	if _, isBootstrap := m.(*bootstrapv3.Bootstrap); isBootstrap {
		c.checkClusters()
	}
	return errors.Join(c.errs...)
}

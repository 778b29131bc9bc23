// Package envoyconf reads Envoy's configuration as strictly as Envoy does, or more
// so: unknown fields, values that Envoy's API rules out, and clusters that aren't
// there are errors, also inside typed_config. For tests.
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

	// The types that a typed_config of ours can hold.
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ratelimit/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
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

// Unmarshal reads YAML into m and checks it with all that is in it.
func Unmarshal(text []byte, m proto.Message) error {
	var tree any
	if err := yaml.Unmarshal(text, &tree); err != nil {
		return err
	}
	asJSON, err := json.Marshal(tree)
	if err != nil {
		return err
	}
	if err := protojson.Unmarshal(asJSON, m); err != nil {
		return err
	}
	return Check(m)
}

// Check says what Envoy would refuse in m. If m is a bootstrap, its clusters must
// be all that it refers to.
func Check(m proto.Message) error {
	w := walk{defined: map[string]bool{}, used: map[string]bool{}}
	w.validate(m)
	w.message(m.ProtoReflect())
	if _, whole := m.(*bootstrapv3.Bootstrap); whole {
		w.resolve()
	}
	return errors.Join(w.errs...)
}

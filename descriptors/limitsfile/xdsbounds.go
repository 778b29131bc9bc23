package limitsfile

import (
	"fmt"

	confv3 "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// XDSBounds counts the content of the resources of a response before they are decoded. A descriptor of two bytes
// takes 150 times as much memory after decoding.
type XDSBounds struct {
	rules, metadataValues int
}

// maxXDSDepth bounds nested messages. It is more than MaxDepth descriptors with metadata need.
const maxXDSDepth = 1000

// Add counts an encoded resource. The error names the bound that is exceeded. Invalid resources have no error here.
func (b *XDSBounds) Add(resource []byte) error {
	return b.add(resource, (&confv3.RateLimitConfig{}).ProtoReflect().Descriptor(), 1)
}

func (b *XDSBounds) add(wire []byte, m protoreflect.MessageDescriptor, depth int) error {
	switch m.Name() {
	case "RateLimitDescriptor", "RateLimitPolicy", "RateLimitReplace":
		b.rules++
	case "Value":
		b.metadataValues++
	}
	switch {
	case depth > maxXDSDepth:
		return fmt.Errorf("messages are nested more than %d deep", maxXDSDepth)
	case b.rules > maxRules:
		return fmt.Errorf("response has more than %d descriptors and limits", maxRules)
	case b.metadataValues > maxMetadata:
		return fmt.Errorf("response has more than %d values in metadata", maxMetadata)
	}
	for len(wire) > 0 {
		number, kind, start := protowire.ConsumeTag(wire)
		size := protowire.ConsumeFieldValue(number, kind, wire[max(start, 0):])
		if start < 0 || size < 0 {
			return nil
		}
		field := m.Fields().ByNumber(number)
		if field != nil && field.Message() != nil && kind == protowire.BytesType {
			content, _ := protowire.ConsumeBytes(wire[start:])
			if err := b.add(content, field.Message(), depth+1); err != nil {
				return err
			}
		}
		wire = wire[start+size:]
	}
	return nil
}

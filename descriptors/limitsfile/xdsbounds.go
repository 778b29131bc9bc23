package limitsfile

import (
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
)

// XDSBounds counts the content of the resources of one xDS response before they are decoded. A
// descriptor of two bytes takes 150 times as much memory after decoding.
type XDSBounds struct {
	rules, metadataValues int
}

// maxXDSDepth bounds the depth of nested messages. It is more than MaxDepth descriptors with
// metadata of MaxDepth values need.
const maxXDSDepth = 1000

// xdsMessage is a type of messages in a resource.
type xdsMessage struct {
	isRule, isMetadataValue bool
	fields                  map[protowire.Number]*xdsMessage // the fields that are messages
}

// xdsResource is the message of a resource.
var xdsResource = func() *xdsMessage {
	object, value, list := &xdsMessage{}, &xdsMessage{isMetadataValue: true}, &xdsMessage{}
	object.fields = map[protowire.Number]*xdsMessage{1: {fields: map[protowire.Number]*xdsMessage{2: value}}}
	list.fields = map[protowire.Number]*xdsMessage{1: value}
	value.fields = map[protowire.Number]*xdsMessage{5: object, 6: list}

	replaced := &xdsMessage{isRule: true}
	policy := &xdsMessage{isRule: true, fields: map[protowire.Number]*xdsMessage{5: replaced}}
	descriptor := &xdsMessage{isRule: true}
	descriptor.fields = map[protowire.Number]*xdsMessage{3: policy, 4: descriptor, xdsMetadata: object}
	return &xdsMessage{fields: map[protowire.Number]*xdsMessage{3: descriptor}}
}()

// Add counts the content of an encoded resource. The error says which bound the resources so
// far exceed. A resource that can't be decoded has no error here.
func (b *XDSBounds) Add(resource []byte) error { return b.add(resource, xdsResource, 1) }

func (b *XDSBounds) add(wire []byte, m *xdsMessage, depth int) error {
	if depth > maxXDSDepth {
		return fmt.Errorf("messages are nested more than %d deep", maxXDSDepth)
	}
	if m.isRule {
		if b.rules++; b.rules > maxRules {
			return fmt.Errorf("response has more than %d descriptors and limits", maxRules)
		}
	}
	if m.isMetadataValue {
		if b.metadataValues++; b.metadataValues > maxMetadata {
			return fmt.Errorf("response has more than %d values in metadata", maxMetadata)
		}
	}
	for len(wire) > 0 {
		number, kind, start := protowire.ConsumeTag(wire)
		if start < 0 {
			return nil
		}
		size := protowire.ConsumeFieldValue(number, kind, wire[start:])
		if size < 0 {
			return nil
		}
		if field := m.fields[number]; field != nil && kind == protowire.BytesType {
			content, _ := protowire.ConsumeBytes(wire[start:])
			if err := b.add(content, field, depth+1); err != nil {
				return err
			}
		}
		wire = wire[start+size:]
	}
	return nil
}

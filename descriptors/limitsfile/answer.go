package limitsfile

import (
	"bytes"
	"math"
	"slices"
	"strconv"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"go.yaml.in/yaml/v3"
	"golang.org/x/net/http/httpguts"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/seed-81f232ab/rls/internal/base/fields"
)

const (
	maxDenialBytes = 16 << 10 // bounds a message or a body
	maxHeaders     = 20
	maxHeaderBytes = 1024 // bounds the name or the value of a header
)

// Denial has the body and the headers that a rule adds to the responses which deny a request. It is immutable.
type Denial struct {
	Body    []byte
	Headers []*corev3.HeaderValue // the headers in file order
}

func (d *Denial) equal(other *Denial) bool {
	if d == nil || other == nil {
		return d == other
	}
	sameHeader := func(a, b *corev3.HeaderValue) bool { return proto.Equal(a, b) }
	return bytes.Equal(d.Body, other.Body) && slices.EqualFunc(d.Headers, other.Headers, sameHeader)
}

// forbiddenHeaders are headers that a denial can't set, because they belong to the connection or the proxy sets them.
var forbiddenHeaders = []string{
	"connection", "content-length", "host", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade",
}

// readDenial reads the field denial of a rule. If it reports a problem, it returns nil.
func (d *document) readDenial(pos *place, o *object) *Denial {
	oldErrorCount := d.errorCount
	message, body := o.field("message"), o.field("body")
	denial := &Denial{Body: []byte(message.Text + body.Text)}
	switch {
	case message.isPresent() && body.isPresent():
		d.errorf(body.node, pos, "message and body are both given; want one of them")
	case len(denial.Body) > maxDenialBytes:
		v := message
		if body.isPresent() {
			v = body
		}
		d.errorf(v.node, pos, "%s: got %d bytes, want at most %d", v.schema.Name, len(denial.Body), maxDenialBytes)
	}
	if v := o.field("headers"); v.isValid() {
		denial.Headers = d.readHeaders(pos, v.mappings[0])
	}
	hasType := slices.ContainsFunc(denial.Headers, func(h *corev3.HeaderValue) bool { return strings.EqualFold(h.Key, "content-type") })
	if message.Text != "" && !hasType {
		denial.Headers = append(denial.Headers, &corev3.HeaderValue{Key: "content-type", Value: "text/plain; charset=utf-8"})
	}
	if d.errorCount > oldErrorCount || o.hasError() {
		return nil
	}
	if len(denial.Body) == 0 && len(denial.Headers) == 0 {
		d.errorf(o.node, pos, "denial is empty; want message, body or headers in it")
		return nil
	}
	return denial
}

func (d *document) readHeaders(pos *place, n *yaml.Node) []*corev3.HeaderValue {
	var headers []*corev3.HeaderValue
	if len(n.Content)/2 > maxHeaders {
		d.errorf(n, pos, "headers has %d names; maximum is %d", len(n.Content)/2, maxHeaders)
		return nil
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		if !d.mayReadNode(n) {
			break
		}
		name := fields.Resolve(n.Content[i])
		item := schemaField{Field: fields.Field{Name: "header " + fields.Display(name), Kind: fields.Text}}
		v := d.readValue(&item, pos, fields.Resolve(n.Content[i+1]))
		h := &corev3.HeaderValue{Key: name.Value, Value: v.Text}
		hasSameName := func(other *corev3.HeaderValue) bool { return strings.EqualFold(other.Key, h.Key) }
		switch {
		case v.hasError:
		case v.node == nil:
			d.errorf(n.Content[i+1], pos, "%s: got null, want text", item.Name)
		case name.Kind != yaml.ScalarNode || !httpguts.ValidHeaderFieldName(h.Key) || len(h.Key) > maxHeaderBytes:
			d.errorf(n.Content[i], pos, "headers: got %s, want the name of a header, such as x-reason", fields.Display(name))
		case slices.Contains(forbiddenHeaders, strings.ToLower(h.Key)):
			d.errorf(n.Content[i], pos, "headers: %s belongs to the connection; leave it out", h.Key)
		case !httpguts.ValidHeaderFieldValue(h.Value) || len(h.Value) > maxHeaderBytes:
			d.errorf(v.node, pos, "%s: got a value of %d bytes, want at most %d bytes in one line without control characters", item.Name, len(h.Value), maxHeaderBytes)
		case slices.ContainsFunc(headers, hasSameName):
			d.errorf(n.Content[i], pos, "%s is given twice; want it once", item.Name)
		default:
			headers = append(headers, h)
		}
	}
	return headers
}

// readMetadata reads a mapping with values of any type. If it reports a problem, it returns nil.
func (d *document) readMetadata(pos *place, n *yaml.Node) *structpb.Struct {
	oldErrorCount, values := d.errorCount, map[string]any{}
	d.readMetadataFields(values, pos, n, 0)
	s, err := structpb.NewStruct(values)
	if d.errorCount > oldErrorCount || err != nil { // if err is not nil, a text is not UTF-8, which is reported already
		return nil
	}
	return s
}

func (d *document) readMetadataFields(values map[string]any, pos *place, n *yaml.Node, depth int) {
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, v := fields.Resolve(n.Content[i]), fields.Resolve(n.Content[i+1])
		if key.Kind == yaml.ScalarNode && key.ShortTag() == "!!merge" {
			for _, m := range d.mergedMappings(pos, v) {
				if d.countMetadataValue(pos, m, depth+1) {
					d.readMetadataFields(values, pos, m, depth+1)
				}
			}
			continue
		}
		name, ok := fields.ParseText(key)
		if key.Kind != yaml.ScalarNode || !ok {
			d.errorf(n.Content[i], pos, "key in metadata: got %s, want text", fields.Display(key))
			continue
		}
		values[name] = d.readMetadataValue(pos, v, depth+1)
	}
}

func (d *document) countMetadataValue(pos *place, n *yaml.Node, depth int) bool {
	if depth > maxNesting {
		d.errorf(n, pos, "metadata is nested more than %d deep", maxNesting)
		return false
	}
	d.metadataValueCount++
	return d.mayReadNode(n) && d.checkCount(n, d.metadataValueCount, maxMetadata, "values in metadata")
}

func (d *document) readMetadataValue(pos *place, n *yaml.Node, depth int) any {
	if !d.countMetadataValue(pos, n, depth) {
		return nil
	}
	switch n.Kind {
	case yaml.MappingNode:
		values := map[string]any{}
		d.readMetadataFields(values, pos, n, depth)
		return values
	case yaml.SequenceNode:
		list := []any{}
		for _, item := range n.Content {
			list = append(list, d.readMetadataValue(pos, fields.Resolve(item), depth+1))
		}
		return list
	}
	switch fields.Tag(n) {
	case "!!null":
		return nil
	case "!!bool":
		b, _ := fields.ParseBool(n.Value)
		return b
	case "!!int", "!!float":
		if i, ok := fields.ParseInt(n.Value); ok {
			return float64(i)
		}
		// Numbers that JSON lacks (.inf, .nan) stay text.
		if f, err := strconv.ParseFloat(n.Value, 64); err == nil && !math.IsInf(f, 0) && !math.IsNaN(f) {
			return f
		}
	}
	text, ok := fields.ParseText(n)
	if !ok {
		d.errorf(n, pos, "metadata: got %s, want text in UTF-8", fields.Display(n))
	}
	return text
}

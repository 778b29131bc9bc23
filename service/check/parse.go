package check

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// maxDomainBytes bounds the domain of a request, because many answers can repeat the domain.
const maxDomainBytes = 1024

func parse(body []byte, maxChecks int) (*Request, error) {
	if !utf8.Valid(body) {
		return nil, errors.New("body: got invalid UTF-8, want JSON")
	}
	var envelope struct { // has the fields of Request; errors of package json would show the name of the type Request
		Domain string            `json:"domain"`
		Rules  bool              `json:"rules"`
		Checks []json.RawMessage `json:"checks"`
	}
	if err := decode(body, "", &envelope); err != nil {
		return nil, err
	}
	switch n := len(envelope.Checks); {
	case n == 0:
		return nil, errors.New("checks: got none, want at least one")
	case n > maxChecks:
		return nil, fmt.Errorf("checks: got %d, want at most %d", n, maxChecks)
	case len(envelope.Domain) > maxDomainBytes:
		return nil, fmt.Errorf("domain: got %d bytes, want at most %d", len(envelope.Domain), maxDomainBytes)
	}
	req := &Request{Domain: envelope.Domain, Rules: envelope.Rules, Checks: make([]Check, len(envelope.Checks))}
	for i, text := range envelope.Checks {
		if err := decode(text, fmt.Sprintf("checks[%d]", i), &req.Checks[i]); err != nil {
			return nil, err
		}
	}
	return req, nil
}

// decode reads one JSON object into v. place is the place of the object in the body, or empty.
func decode(text []byte, place string, v any) error {
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	err := d.Decode(v)
	if err == nil {
		if _, err = d.Token(); errors.Is(err, io.EOF) {
			return nil
		}
		return errors.New("body: got more than one JSON value, want one object")
	}
	fieldPath := func(field string) string {
		return strings.TrimPrefix(place+"."+field, ".")
	}
	if typeErr, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		name := strings.TrimSuffix(fieldPath(typeErr.Field), ".")
		if name == "" {
			name = "body"
		}
		return fmt.Errorf("%s: got %s, want %s", name, typeErr.Value, kindName(typeErr))
	}
	if name, ok := strings.CutPrefix(err.Error(), "json: unknown field "); ok {
		return fmt.Errorf("%s: unknown field", fieldPath(strings.Trim(name, `"`)))
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return errors.New("body: got an end in the middle, want a JSON object")
	}
	return fmt.Errorf("body: want a JSON object: %w", err)
}

// kindName describes the values that the field of typeErr can have.
func kindName(typeErr *json.UnmarshalTypeError) string {
	switch kind := typeErr.Type.Kind().String(); kind {
	case "struct":
		return "an object"
	case "slice":
		return "a list"
	case "bool":
		return "true or false"
	case "string":
		return "text"
	default:
		return fmt.Sprintf("a whole number from %d to %d", -maxHits, maxHits)
	}
}

// Package callers names the caller of a call, bounds the calls of each caller in a second, and decides which domains a
// caller may use. A client certificate has names: URIs, DNS names and the common name. A file binds these names to the
// domains that their callers may use.
package callers

import (
	"context"
	"crypto/x509"
	"log/slog"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"

	"go.yaml.in/yaml/v3"

	"github.com/seed-81f232ab/rls/internal/base/fields"
	"github.com/seed-81f232ab/rls/internal/base/watchfile"
)

// MaxFileBytes is the maximum size of a file.
const MaxFileBytes = 1 << 20

const (
	fieldCallers            = "callers"
	fieldURI                = "uri"
	fieldDNS                = "dns"
	fieldCommonName         = "common_name"
	fieldWithoutCertificate = "without_certificate"
	fieldDomains            = "domains"

	wantDomains = `a list of domains, or ["*"] for all`
)

var nameFields = []string{fieldURI, fieldDNS, fieldCommonName, fieldWithoutCertificate}

var (
	fileFields = []fields.Field{
		{Name: fieldCallers, Kind: fields.List, Remedy: "write a list, each item with " + fields.JoinOr(nameFields) + ", and domains"},
	}
	bindingFields = []fields.Field{
		{Name: fieldURI, Kind: fields.NonEmpty},
		{Name: fieldDNS, Kind: fields.NonEmpty},
		{Name: fieldCommonName, Kind: fields.NonEmpty},
		{Name: fieldWithoutCertificate, Kind: fields.NonEmpty},
		{Name: fieldDomains, Kind: fields.List, Min: 1, Want: wantDomains, Remedy: "want " + wantDomains},
	}
)

// Bindings has the bindings of each domain in a file. The key is the domain, or * for all domains. Bindings are immutable.
type Bindings map[string][]binding

const allDomains = "*"

// binding names the callers that may use a domain. field says which name of a certificate must match, such as "dns". A *
// at the end of name matches any text.
type binding struct{ field, name string }

// Allows reports whether a caller with certificate c may use domain. c is nil for a caller without a certificate.
func (b Bindings) Allows(c *x509.Certificate, domain string) bool {
	namesCaller := func(item binding) bool { return item.matches(c) }
	return slices.ContainsFunc(b[domain], namesCaller) || slices.ContainsFunc(b[allDomains], namesCaller)
}

func (b binding) matches(c *x509.Certificate) bool {
	if c == nil || b.field == fieldWithoutCertificate {
		return c == nil && b.field == fieldWithoutCertificate
	}
	switch b.field {
	case fieldURI:
		return slices.ContainsFunc(c.URIs, func(u *url.URL) bool { return matchesName(b.name, u.String()) })
	case fieldDNS:
		return slices.ContainsFunc(c.DNSNames, func(name string) bool {
			return matchesName(strings.ToLower(b.name), strings.ToLower(name))
		})
	default:
		return c.Subject.CommonName != "" && matchesName(b.name, c.Subject.CommonName)
	}
}

func matchesName(pattern, name string) bool {
	if prefix, ok := strings.CutSuffix(pattern, "*"); ok {
		return strings.HasPrefix(name, prefix)
	}
	return pattern == name
}

// Parse reads a file. The error is fields.Problems.
func Parse(file string, data []byte) (Bindings, error) {
	bindings := Bindings{}
	f := fields.File{Name: file, Data: data, MaxBytes: MaxFileBytes, ItemsName: "callers", EmptyProblem: "callers is missing"}
	err := f.Read(func(r *fields.Reader, root *yaml.Node) {
		for _, item := range r.Items(r.Object(root, "file", fileFields)[fieldCallers]) {
			values := r.Object(item, "item of callers", bindingFields)
			b := readName(r, item, values)
			for _, n := range r.Items(values[fieldDomains]) {
				domain := r.Read(n, fields.Field{Name: "item of domains", Kind: fields.NonEmpty}).Text
				bindings[domain] = append(bindings[domain], b)
			}
		}
	})
	if err != nil {
		return nil, err
	}
	return bindings, nil
}

// readName returns the binding in values, the fields of the item n. An item must have one name.
func readName(r *fields.Reader, n *yaml.Node, values fields.Values) (b binding) {
	for _, field := range nameFields {
		switch name := values[field]; {
		case !name.IsPresent():
		case b.field != "":
			r.Errorf(name.Node, "%s and %s are both given; write an item for each of them", b.field, field)
		default:
			b = binding{field, name.Text}
			checkName(r, name)
		}
	}
	if b.field == "" && values != nil {
		r.Errorf(n, "name is missing; want %s", fields.JoinOr(nameFields))
	}
	return b
}

func checkName(r *fields.Reader, name fields.FieldValue) {
	switch {
	case name.Text == "": // the Reader has reported this problem
	case name.Name == fieldWithoutCertificate && name.Text != "true":
		r.Errorf(name.Node, "%s: got %s, want true", name.Name, fields.Printable(name.Text))
	case strings.Contains(strings.TrimSuffix(name.Text, "*"), "*"):
		r.Errorf(name.Node, "%s: got %s, want a * only at the end", name.Name, fields.Printable(name.Text))
	case name.Name == fieldURI && !strings.Contains(name.Text, ":"):
		r.Errorf(name.Node, "uri: got %s, want a URI such as spiffe://cluster.local/ns/shop/sa/envoy", fields.Printable(name.Text))
	}
}

// File keeps the last valid bindings of a file in force. A change is in force within two seconds.
type File struct {
	files    *watchfile.Files
	bindings atomic.Pointer[Bindings]
}

// Open reads the file. onChange gets nil after each change that came into force, and the error of each change that was
// rejected. onChange and log can be nil.
func Open(path string, onChange func(err error), log *slog.Logger) (*File, error) {
	f := new(File)
	putInForce := func(contents [][]byte) error {
		b, err := Parse(path, contents[0])
		if err == nil {
			f.bindings.Store(&b)
		}
		return err
	}
	var err error
	f.files, err = watchfile.Read(watchfile.Options{
		Paths: []string{path}, ContentName: "callers", Apply: putInForce, Observe: onChange, Log: log,
	})
	return f, err
}

// Check returns an error if the file at path is invalid.
func Check(path string) error {
	_, err := Open(path, nil, nil)
	return err
}

// Bindings returns the bindings in force.
func (f *File) Bindings() Bindings { return *f.bindings.Load() }

// Run applies changes of the file until ctx is done.
func (f *File) Run(ctx context.Context) { f.files.Watch(ctx) }

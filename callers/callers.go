// Package callers decides which domains a caller may ask, by the names in its client
// certificate. A file binds names to domains.
//
// Terms:
//
//   - name: a URI, a DNS name or the common name in a certificate;
//   - binding: a name, and the domains that callers with this name may ask.
package callers

import (
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"go.yaml.in/yaml/v3"

	"github.com/seed-81f232ab/rls/descriptors/limitsfile"
	"github.com/seed-81f232ab/rls/internal/boundedyaml"
)

// MaxFileBytes is the maximum size of a file.
const MaxFileBytes = 1 << 20

// The fields of a binding.
const (
	fieldURI           = "uri"
	fieldDNS           = "dns"
	fieldCommonName    = "common_name"
	fieldNoCertificate = "without_certificate"
	fieldDomains       = "domains"
)

var fields = []string{fieldURI, fieldDNS, fieldCommonName, fieldNoCertificate, fieldDomains}

// Bindings are the bindings of a file. They are immutable but for a cache.
type Bindings struct {
	list []binding

	// cache has the domains of the certificates of open connections. Its size is bounded.
	cache     sync.Map // *x509.Certificate to domains
	cacheSize atomic.Int64
}

// maxCachedCertificates bounds the cached certificates.
const maxCachedCertificates = 4096

// binding is an item of the file. A * at the end of a name matches any text.
type binding struct {
	field, name string
	domains     domains
}

// domains is a set of domains. With allDomains, it has all domains.
type domains map[string]bool

const allDomains = "*"

// Allows reports whether a caller with certificate c may ask domain. c is nil if the caller has no
// certificate.
func (b *Bindings) Allows(c *x509.Certificate, domain string) bool {
	allowed := b.domainsOf(c)
	return allowed[domain] || allowed[allDomains]
}

// domainsOf returns the domains that a caller with certificate c may ask.
func (b *Bindings) domainsOf(c *x509.Certificate) domains {
	if cached, ok := b.cache.Load(c); ok {
		return cached.(domains)
	}
	all := domains{}
	for _, item := range b.list {
		if item.matches(c) {
			for domain := range item.domains {
				all[domain] = true
			}
		}
	}
	if b.cacheSize.Add(1) > maxCachedCertificates {
		b.cache.Clear()
		b.cacheSize.Store(1)
	}
	b.cache.Store(c, all)
	return all
}

// matches reports whether certificate c, which can be nil, has the name of b.
func (b *binding) matches(c *x509.Certificate) bool {
	if c == nil || b.field == fieldNoCertificate {
		return c == nil && b.field == fieldNoCertificate
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

// Parse reads a file. The error is limitsfile.Problems.
func Parse(file string, data []byte) (*Bindings, error) {
	p := &parser{file: file}
	if len(data) > MaxFileBytes {
		p.errorf(nil, "file is %d bytes; maximum is %d", len(data), MaxFileBytes)
		return nil, p.problems
	}
	doc, err := boundedyaml.Parse(data, boundedyaml.Bounds{})
	if problem, ok := errors.AsType[*boundedyaml.Problem](err); ok {
		p.errorf(&yaml.Node{Line: problem.Line, Column: problem.Column}, "%s", problem.Reason)
	} else if err != nil {
		p.errorf(nil, "%v: callers is missing", err)
	} else {
		p.parseDocument(doc)
	}
	if len(p.problems) > 0 {
		return nil, p.problems
	}
	return &Bindings{list: p.list}, nil
}

// parser reads a file.
type parser struct {
	file     string
	list     []binding
	problems limitsfile.Problems
}

func (p *parser) errorf(n *yaml.Node, format string, args ...any) {
	const maxProblems = 100
	if len(p.problems) >= maxProblems {
		return
	}
	problem := limitsfile.Problem{File: p.file, Reason: fmt.Sprintf(format, args...)}
	if n != nil {
		problem.Line, problem.Column = n.Line, n.Column
	}
	p.problems = append(p.problems, problem)
}

func (p *parser) parseDocument(doc *boundedyaml.Document) {
	if doc.Second != nil {
		p.errorf(doc.Second, "file has a second YAML document; put all callers into one")
	}
	root := p.parseMapping(doc.Root, "file", []string{"callers"})
	list := root["callers"]
	switch {
	case root == nil:
	case list == nil:
		p.errorf(doc.Root, "callers is missing; write a list, each item with %s, and domains", limitsfile.OneOf("", fields[:4]))
	case list.Kind != yaml.SequenceNode:
		p.errorf(list, "callers: want a list")
	default:
		for _, item := range list.Content {
			p.parseBinding(resolveAlias(item))
		}
	}
}

// parseBinding reads an item of callers.
func (p *parser) parseBinding(n *yaml.Node) {
	m := p.parseMapping(n, "item of callers", fields)
	if m == nil {
		return
	}
	b := binding{domains: domains{}}
	for _, field := range fields[:4] {
		switch name := m[field]; {
		case name == nil:
		case b.field != "":
			p.errorf(name, "%s and %s are both given; write an item for each of them", b.field, field)
		default:
			b.field, b.name = field, p.parseName(field, name)
		}
	}
	if b.field == "" {
		p.errorf(n, "name is missing; want %s", limitsfile.OneOf("", fields[:4]))
	}
	list := m[fieldDomains]
	if list == nil || list.Kind != yaml.SequenceNode || len(list.Content) == 0 {
		p.errorf(n, `domains is missing; want a list of domains, or ["*"] for all`)
		return
	}
	for _, item := range list.Content {
		item = resolveAlias(item)
		if item.Kind != yaml.ScalarNode || item.Value == "" {
			p.errorf(item, "item of domains: want the name of a domain")
		}
		b.domains[item.Value] = true
	}
	p.list = append(p.list, b)
}

// parseName reads the value of a field that names callers.
func (p *parser) parseName(field string, n *yaml.Node) string {
	switch {
	case n.Kind != yaml.ScalarNode || n.Value == "":
		p.errorf(n, "%s: want text", field)
	case field == fieldNoCertificate && n.Value != "true":
		p.errorf(n, "%s: got %s, want true", field, limitsfile.Printable(n.Value))
	case strings.Contains(strings.TrimSuffix(n.Value, "*"), "*"):
		p.errorf(n, "%s: got %s, want a * only at the end", field, limitsfile.Printable(n.Value))
	case field == fieldURI && !strings.Contains(n.Value, ":"):
		p.errorf(n, "uri: got %s, want a URI such as spiffe://cluster.local/ns/shop/sa/envoy", limitsfile.Printable(n.Value))
	}
	return n.Value
}

// parseMapping returns the values of n by name, or nil if n is no mapping.
func (p *parser) parseMapping(n *yaml.Node, level string, names []string) map[string]*yaml.Node {
	if n.Kind != yaml.MappingNode {
		p.errorf(n, "%s: want a mapping with %s", level, strings.Join(names, ", "))
		return nil
	}
	m := map[string]*yaml.Node{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key := resolveAlias(n.Content[i])
		switch {
		case !slices.Contains(names, key.Value):
			p.errorf(key, "unknown key %s in %s; want %s", limitsfile.Printable(key.Value), level, limitsfile.OneOf(key.Value, names))
		case m[key.Value] != nil:
			p.errorf(key, "%s is given twice; remove one", key.Value)
		default:
			m[key.Value] = resolveAlias(n.Content[i+1])
		}
	}
	return m
}

func resolveAlias(n *yaml.Node) *yaml.Node {
	for n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	return n
}

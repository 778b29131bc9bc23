package admin

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync/atomic"

	"go.yaml.in/yaml/v3"
)

// TokenFile has callers with tokens. It is safe for concurrent use.
type TokenFile struct {
	byHash atomic.Pointer[map[tokenHash]Caller]
}

// tokenHash is the SHA-256 of a token. The time of a lookup by hash reveals nothing about a
// token.
type tokenHash = [sha256.Size]byte

// Bounds of a file of tokens.
const (
	maxTokens      = 10_000
	minTokenLength = 16
)

// tokenEntry is a caller as the file states it.
type tokenEntry struct {
	Name    string   `yaml:"name"`
	Token   string   `yaml:"token"`
	Hash    string   `yaml:"token_sha256"`
	Access  string   `yaml:"access"`
	Domains []string `yaml:"domains"`
}

// Set replaces all callers with those of a file in YAML. If the file is invalid, it returns all
// mistakes, and the former callers stay.
func (f *TokenFile) Set(data []byte) error {
	var nodes []yaml.Node
	d := yaml.NewDecoder(bytes.NewReader(data))
	if err := d.Decode(&nodes); err != nil && !errors.Is(err, io.EOF) {
		const want = "want a list with items such as {name: alice, token: SECRET, access: read, domains: [shop]}"
		if typeErr := (*yaml.TypeError)(nil); errors.As(err, &typeErr) { // its text can have a token
			return errors.New("tokens: got no list; " + want)
		}
		if strings.Contains(err.Error(), "unknown anchor") { // so can the name of the anchor
			return errors.New("tokens: got a text that starts with *, want quotes around it")
		}
		return fmt.Errorf("tokens: %w; %s", err, want)
	}
	if len(nodes) > maxTokens {
		return fmt.Errorf("tokens: got %d items, want at most %d", len(nodes), maxTokens)
	}
	callers, names := map[tokenHash]Caller{}, map[string]int{}
	var mistakes []error
	for i := range nodes {
		line := nodes[i].Line
		reject := func(format string, args ...any) {
			mistakes = append(mistakes, fmt.Errorf("line %d: "+format, append([]any{line}, args...)...))
		}
		e, err := readTokenEntry(&nodes[i])
		if err != nil {
			reject("%w", err)
			continue
		}
		hash, err := e.hash()
		if err != nil {
			reject("%w", err)
		}
		switch {
		case e.Name == "":
			reject("name is missing")
		case names[e.Name] > 0:
			reject("name %q is already in line %d", e.Name, names[e.Name])
		}
		if other, ok := callers[hash]; ok && err == nil {
			reject("the token is also that of %q", other.Name)
		}
		if e.Access != "" && e.Access != "read" && e.Access != "write" {
			reject("access: got %q, want read or write", e.Access)
		}
		names[e.Name] = line
		callers[hash] = Caller{Name: e.Name, ReadOnly: e.Access == "read", Domains: e.Domains}
	}
	if len(mistakes) > 0 {
		return errors.Join(mistakes...)
	}
	f.byHash.Store(&callers)
	return nil
}

// readTokenEntry reads an item of the file. It rejects unknown fields, because a misspelt
// access must not give more rights.
func readTokenEntry(n *yaml.Node) (tokenEntry, error) {
	const fields = "name, token, token_sha256, access or domains"
	var e tokenEntry
	if n.Kind != yaml.MappingNode {
		return e, errors.New("want a mapping with " + fields)
	}
	for i := 0; i < len(n.Content); i += 2 {
		switch key := n.Content[i]; key.Value {
		case "name", "token", "token_sha256", "access":
		case "domains":
			if list := n.Content[i+1]; list.Kind != yaml.SequenceNode || len(list.Content) == 0 {
				return e, errors.New("domains: want a list of domains; leave the field out for all domains")
			}
		default:
			return e, fmt.Errorf("unknown field%s; want %s", fieldText(key.Value), fields)
		}
	}
	if n.Decode(&e) != nil { // the text of the error can have a token
		return e, errors.New("a field has the wrong type; want text for each, and a list of texts for domains")
	}
	return e, nil
}

// fieldText returns the name of an unknown field in quotes. It is empty if the name can have a
// token, as in {token:SECRET}.
func fieldText(name string) string {
	if len(name) >= minTokenLength || strings.Contains(name, ":") {
		return ""
	}
	return fmt.Sprintf(" %q", name)
}

// hashOfNoToken is the hash of an empty text.
var hashOfNoToken = sha256.Sum256(nil)

// hash returns the hash of the token.
func (e *tokenEntry) hash() (h tokenHash, err error) {
	switch {
	case (e.Token == "") == (e.Hash == ""):
		return h, errors.New("want token or token_sha256")
	case e.Hash != "":
		decoded, err := hex.DecodeString(strings.TrimSpace(e.Hash))
		if err != nil || len(decoded) != len(h) {
			return h, fmt.Errorf("token_sha256: want %d hexadecimal digits, as sha256sum prints them", 2*len(h))
		}
		if tokenHash(decoded) == hashOfNoToken {
			return h, errors.New("token_sha256: got the hash of an empty text, want the hash of a token")
		}
		return tokenHash(decoded), nil
	case len(e.Token) < minTokenLength:
		return h, fmt.Errorf("token: got %d bytes, want at least %d", len(e.Token), minTokenLength)
	}
	return sha256.Sum256([]byte(e.Token)), nil
}

// caller returns the caller whose token has that hash.
func (f *TokenFile) caller(hash tokenHash) (Caller, bool) {
	if f == nil || f.byHash.Load() == nil {
		return Caller{}, false
	}
	c, ok := (*f.byHash.Load())[hash]
	return c, ok
}

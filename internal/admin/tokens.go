package admin

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"

	"go.yaml.in/yaml/v3"

	"github.com/seed-81f232ab/rls/internal/base/fields"
)

// TokenFile has callers with tokens. It is safe for concurrent use.
type TokenFile struct {
	byHash atomic.Pointer[map[tokenHash]Caller]
}

// tokenHash is the SHA-256 of a token. The time of a lookup by hash reveals nothing about a token.
type tokenHash = [sha256.Size]byte

// Bounds of a file of tokens.
const (
	maxTokens      = 10_000
	minTokenLength = 16
	maxTokenBytes  = 16 << 20
)

var tokenFields = []fields.Field{
	{Name: "name", Kind: fields.Word, Remedy: "want the name of the caller"},
	{Name: "token", Kind: fields.Word},
	{Name: "token_sha256", Kind: fields.Word},
	{Name: "access", Kind: fields.Choice, Choices: []string{"read", "write"}},
	{Name: "domains", Kind: fields.List, Min: 1, Want: "a list of domains, or no field domains for all"},
}

// Set replaces all callers with those of a file in YAML. If the file is invalid, it returns all
// mistakes, and the former callers stay.
func (f *TokenFile) Set(data []byte) error {
	callers, lines := map[tokenHash]Caller{}, map[string]int{}
	file := fields.File{Name: "tokens", Data: data, MaxBytes: maxTokenBytes, Things: "tokens", IsSecret: true}
	err := file.Read(func(r *fields.Reader, root *yaml.Node) {
		list := fields.Field{
			Name: "file", Kind: fields.List, Want: "a list with items such as {name: alice, token: SECRET, access: read, domains: [shop]}",
		}
		items := r.List(root, list)
		if len(items) > maxTokens {
			r.Errorf(root, "got %d items, want at most %d", len(items), maxTokens)
			return
		}
		for _, item := range items {
			caller, hash := readToken(r, item)
			if other, ok := callers[hash]; ok && hash != (tokenHash{}) {
				r.Errorf(item, "the token is also that of %q", other.Name)
			}
			if line := lines[caller.Name]; line > 0 && caller.Name != "" {
				r.Errorf(item, "name %q is already in line %d", caller.Name, line)
			}
			callers[hash], lines[caller.Name] = caller, item.Line
		}
	})
	if err == nil {
		f.byHash.Store(&callers)
	}
	return err
}

// readToken reads an item of the file. The hash is zero after a mistake.
func readToken(r *fields.Reader, n *yaml.Node) (Caller, tokenHash) {
	values := r.Object(n, "item", tokenFields)
	if values == nil {
		return Caller{}, tokenHash{}
	}
	c := Caller{Name: values["name"].Text, ReadOnly: values["access"].Text == "read"}
	for _, item := range r.Items(values["domains"]) {
		c.Domains = append(c.Domains, r.Read(item, fields.Field{Name: "item of domains", Kind: fields.Word}).Text)
	}
	hash, err := hashOfToken(values["token"], values["token_sha256"])
	if err != nil {
		r.Errorf(n, "%v", err)
	}
	return c, hash
}

var hashOfNoToken = sha256.Sum256(nil)

func hashOfToken(token, hashed fields.Given) (h tokenHash, err error) {
	switch {
	case token.Is() == hashed.Is():
		return h, errors.New("want token or token_sha256")
	case hashed.Is():
		decoded, err := hex.DecodeString(strings.TrimSpace(hashed.Text))
		if err != nil || len(decoded) != len(h) {
			return h, fmt.Errorf("token_sha256: want %d hexadecimal digits, as sha256sum prints them", 2*len(h))
		}
		if tokenHash(decoded) == hashOfNoToken {
			return h, errors.New("token_sha256: got the hash of an empty text, want the hash of a token")
		}
		return tokenHash(decoded), nil
	case len(token.Text) < minTokenLength:
		return h, fmt.Errorf("token: got %d bytes, want at least %d", len(token.Text), minTokenLength)
	}
	return sha256.Sum256([]byte(token.Text)), nil
}

// caller returns the caller whose token has that hash.
func (f *TokenFile) caller(hash tokenHash) (Caller, bool) {
	if f == nil || f.byHash.Load() == nil {
		return Caller{}, false
	}
	c, ok := (*f.byHash.Load())[hash]
	return c, ok
}

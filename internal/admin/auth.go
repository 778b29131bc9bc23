package admin

import (
	"cmp"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync/atomic"

	"go.yaml.in/yaml/v3"

	"github.com/seed-81f232ab/rls/descriptors/override"
	"github.com/seed-81f232ab/rls/internal/base/fields"
)

// Caller is a client that may use the API.
type Caller struct {
	Name     string   // the name in the audit, in the history, and in the overrides that the caller has set
	ReadOnly bool     // the caller may change nothing
	Domains  []string // the only domains that the caller may use; if Domains is empty, the caller may use all domains
}

func (c *Caller) mayUseField(field string) bool {
	if len(c.Domains) == 0 {
		return true
	}
	_, target := override.SplitField(field)
	escapedDomain, _, _ := strings.Cut(target, "|")
	domain, err := url.PathUnescape(escapedDomain)
	return err == nil && domain != "" && slices.Contains(c.Domains, domain)
}

// Callers has the callers that may use the API.
type Callers struct {
	Tokens map[string]string // the key is the name of the caller; an empty token authorizes nobody
	File   *TokenFile        // more callers, which can change at any time; may be nil

	// If ClientCerts is true, each client whose certificate TLS has verified is a caller. certName returns the caller's name.
	ClientCerts bool
}

// CanAuthorize reports whether any caller can be authorized.
func (c *Callers) CanAuthorize() bool { return len(c.Tokens) > 0 || c.File != nil || c.ClientCerts }

// Authorize returns the caller of a request. ok is false if the request has no valid token or certificate.
func (c *Callers) Authorize(r *http.Request) (caller Caller, ok bool) {
	if scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " "); strings.EqualFold(scheme, "Bearer") {
		caller, ok = c.callerOfToken(strings.TrimSpace(token))
	}
	if !ok && c.ClientCerts && r.TLS != nil && len(r.TLS.VerifiedChains) > 0 {
		return Caller{Name: certName(r.TLS.VerifiedChains[0][0])}, true
	}
	return caller, ok
}

// MayReadPages reports whether the caller, or a browser, may read pages. Pages show all domains.
//
// Browsers can send a token only as the password of basic authentication. A browser adds the password to each
// request, even if a page of another site makes the request. So a password allows only reading.
func (c *Callers) MayReadPages(r *http.Request) bool {
	isRead := r.Method == http.MethodGet || r.Method == http.MethodHead
	caller, ok := c.Authorize(r)
	if _, token, isBasic := r.BasicAuth(); isBasic {
		caller, ok = c.callerOfToken(token)
	}
	return ok && isRead && len(caller.Domains) == 0
}

// MayReadDomain reports whether the caller may read about the domain that the parameter domain of the query names. It is
// for pages that show only this domain.
func (c *Callers) MayReadDomain(r *http.Request) bool {
	caller, ok := c.Authorize(r)
	query, err := url.ParseQuery(r.URL.RawQuery)
	domains := query["domain"]
	return ok && err == nil && r.Method == http.MethodGet && len(domains) == 1 && slices.Contains(caller.Domains, domains[0])
}

// callerOfToken returns the caller with this token. It compares hashes, because the time of such a comparison reveals
// nothing about a token.
func (c *Callers) callerOfToken(token string) (caller Caller, ok bool) {
	hash := sha256.Sum256([]byte(token))
	for _, name := range slices.Sorted(maps.Keys(c.Tokens)) {
		if knownToken := c.Tokens[name]; knownToken != "" && hash == sha256.Sum256([]byte(knownToken)) {
			return Caller{Name: name}, true
		}
	}
	return c.File.caller(hash)
}

// DuplicateTokens returns the tokens that both Tokens and File have. It maps the name in Tokens to the name in File.
func (c *Callers) DuplicateTokens() map[string]string {
	names := map[string]string{}
	for name, token := range c.Tokens {
		if fileCaller, ok := c.File.caller(sha256.Sum256([]byte(token))); ok {
			names[name] = fileCaller.Name
		}
	}
	return names
}

func certName(cert *x509.Certificate) string {
	names := append([]string{cert.Subject.CommonName}, cert.DNSNames...)
	for _, uri := range cert.URIs {
		names = append(names, uri.String())
	}
	return cmp.Or(append(names, "certificate "+cert.SerialNumber.String())...)
}

// answerUnauthorized answers 401. All unauthorized calls get the same answer.
func (h *handler) answerUnauthorized(w http.ResponseWriter, r *http.Request) {
	if h.unauthorizedLogs.Allow() {
		h.options.Log.Warn("admin call unauthorized", "from", r.RemoteAddr, "method", truncate(r.Method), "path", truncate(r.URL.Path))
	}
	w.Header().Set("WWW-Authenticate", `Bearer realm="rls admin"`)
	advice := "unauthorized: send a token of ADMIN_TOKEN or ADMIN_TOKENS_FILE as Authorization: Bearer TOKEN"
	if h.options.ClientCerts {
		advice += ", or use a client certificate"
	}
	respond(w, problem(http.StatusUnauthorized, "%s", advice))
}

// audit logs a change. attrs are keys and values; long values are cut.
func (h *handler) audit(call *call, action string, attrs ...string) {
	logAttrs := []any{"action", action, "by", call.caller.Name, "from", call.RemoteAddr}
	if call.kind != override.KindOverride {
		logAttrs = append(logAttrs, "kind", string(call.kind))
	}
	logAttrs = append(logAttrs, "target", truncate(call.target()))
	for _, text := range attrs {
		logAttrs = append(logAttrs, truncate(text))
	}
	h.options.Log.Info("audit", logAttrs...)
}

// TokenFile has callers with tokens. It is safe for concurrent use.
type TokenFile struct {
	callersByHash atomic.Pointer[map[tokenHash]Caller]
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
	{Name: "name", Kind: fields.NonEmpty, Remedy: "want the name of the caller"},
	{Name: "token", Kind: fields.NonEmpty},
	{Name: "token_sha256", Kind: fields.NonEmpty},
	{Name: "access", Kind: fields.Choice, Choices: []string{"read", "write"}},
	{Name: "domains", Kind: fields.List, Min: 1, Want: "a list of domains, or no field domains for all"},
}

// Set replaces all callers with the callers of a file in YAML. If the file is invalid, Set returns all
// mistakes, and the former callers stay.
func (f *TokenFile) Set(data []byte) error {
	callers, lines := map[tokenHash]Caller{}, map[string]int{}
	file := fields.File{Name: "tokens", Data: data, MaxBytes: maxTokenBytes, ItemsName: "tokens", IsSecret: true}
	err := file.Read(func(reader *fields.Reader, root *yaml.Node) {
		listOfTokens := fields.Field{
			Name: "file", Kind: fields.List, Want: "a list with items such as {name: alice, token: SECRET, access: read, domains: [shop]}",
		}
		items := reader.List(root, listOfTokens)
		if len(items) > maxTokens {
			reader.Errorf(root, "got %d items, want at most %d", len(items), maxTokens)
			return
		}
		for _, item := range items {
			caller, hash := readToken(reader, item)
			if otherCaller, ok := callers[hash]; ok && hash != (tokenHash{}) {
				reader.Errorf(item, "the token is also the token of %q", otherCaller.Name)
			}
			if line := lines[caller.Name]; line > 0 && caller.Name != "" {
				reader.Errorf(item, "name %q is already in line %d", caller.Name, line)
			}
			callers[hash], lines[caller.Name] = caller, item.Line
		}
	})
	if err == nil {
		f.callersByHash.Store(&callers)
	}
	return err
}

// CheckTokenFile returns the mistakes of a file for TokenFile.Set.
func CheckTokenFile(path string) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return new(TokenFile).Set(data)
}

// readToken reads an item of the file. The hash is zero after a mistake.
func readToken(reader *fields.Reader, item *yaml.Node) (Caller, tokenHash) {
	values := reader.Object(item, "item", tokenFields)
	if values == nil {
		return Caller{}, tokenHash{}
	}
	caller := Caller{Name: values["name"].Text, ReadOnly: values["access"].Text == "read"}
	for _, item := range reader.Items(values["domains"]) {
		caller.Domains = append(caller.Domains, reader.Read(item, fields.Field{Name: "item of domains", Kind: fields.NonEmpty}).Text)
	}
	hash, err := hashOfToken(values["token"], values["token_sha256"])
	if err != nil {
		reader.Errorf(item, "%v", err)
	}
	return caller, hash
}

func hashOfToken(token, hashText fields.FieldValue) (hash tokenHash, err error) {
	switch {
	case token.IsPresent() == hashText.IsPresent():
		return hash, errors.New("want token or token_sha256")
	case hashText.IsPresent():
		hashBytes, err := hex.DecodeString(strings.TrimSpace(hashText.Text))
		if err != nil || len(hashBytes) != len(hash) {
			return hash, fmt.Errorf("token_sha256: want %d hexadecimal digits, as sha256sum prints them", 2*len(hash))
		}
		if tokenHash(hashBytes) == sha256.Sum256(nil) {
			return hash, errors.New("token_sha256: got the hash of an empty text, want the hash of a token")
		}
		return tokenHash(hashBytes), nil
	case len(token.Text) < minTokenLength:
		return hash, fmt.Errorf("token: got %d bytes, want at least %d", len(token.Text), minTokenLength)
	}
	return sha256.Sum256([]byte(token.Text)), nil
}

func (f *TokenFile) caller(hash tokenHash) (Caller, bool) {
	if f == nil || f.callersByHash.Load() == nil {
		return Caller{}, false
	}
	c, ok := (*f.callersByHash.Load())[hash]
	return c, ok
}

package admin

import (
	"cmp"
	"crypto/sha256"
	"crypto/x509"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/seed-81f232ab/rls/descriptors/override"
)

// Caller is a client that may use the API.
type Caller struct {
	Name     string   // in the audit, in the history and beside what the caller has set
	ReadOnly bool     // the caller may change nothing
	Domains  []string // the only domains that the caller may use; all if empty
}

func (c *Caller) mayUseField(field string) bool {
	if len(c.Domains) == 0 {
		return true
	}
	_, target := override.SplitField(field)
	escaped, _, _ := strings.Cut(target, "|")
	domain, err := url.PathUnescape(escaped)
	return err == nil && domain != "" && slices.Contains(c.Domains, domain)
}

// Callers are the callers that are authorized.
type Callers struct {
	Tokens map[string]string // by name; an empty token authorizes nobody
	File   *TokenFile        // more callers, which can change at any time; may be nil

	// ClientCerts also authorizes callers whose certificate TLS has verified. Their name is
	// the common name of the certificate, or else its first DNS name or URI.
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
// Browsers can send a token only as the password of basic authentication. They add it to each
// request, also for pages of other sites. So it authorizes nothing but reading.
func (c *Callers) MayReadPages(r *http.Request) bool {
	isRead := r.Method == http.MethodGet || r.Method == http.MethodHead
	caller, ok := c.Authorize(r)
	if _, token, isBasic := r.BasicAuth(); isBasic {
		caller, ok = c.callerOfToken(token)
	}
	return ok && isRead && len(caller.Domains) == 0
}

// callerOfToken returns the caller with that token. It compares hashes, whose time reveals nothing about a token.
func (c *Callers) callerOfToken(token string) (caller Caller, ok bool) {
	hash := sha256.Sum256([]byte(token))
	for _, name := range slices.Sorted(maps.Keys(c.Tokens)) {
		if known := c.Tokens[name]; known != "" && hash == sha256.Sum256([]byte(known)) {
			return Caller{Name: name}, true
		}
	}
	return c.File.caller(hash)
}

func certName(c *x509.Certificate) string {
	names := append([]string{c.Subject.CommonName}, c.DNSNames...)
	for _, uri := range c.URIs {
		names = append(names, uri.String())
	}
	return cmp.Or(append(names, "certificate "+c.SerialNumber.String())...)
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
func (h *handler) audit(c *call, action string, attrs ...string) {
	logAttrs := []any{"action", action, "by", c.caller.Name, "from", c.RemoteAddr}
	if c.kind != override.KindOverride {
		logAttrs = append(logAttrs, "kind", string(c.kind))
	}
	logAttrs = append(logAttrs, "target", truncate(c.target()))
	for _, text := range attrs {
		logAttrs = append(logAttrs, truncate(text))
	}
	h.options.Log.Info("audit", logAttrs...)
}

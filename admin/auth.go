package admin

import (
	"cmp"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/x509"
	"maps"
	"net/http"
	"slices"
	"strings"
)

// Callers are the callers that are authorized.
type Callers struct {
	// Tokens are the tokens of callers by name. An empty token authorizes nobody.
	Tokens map[string]string

	// ClientCerts also authorizes callers whose certificate TLS has verified. Their name is
	// the common name of the certificate, or else its first DNS name or URI.
	ClientCerts bool
}

// Name returns the name of an authorized caller.
func (c *Callers) Name(r *http.Request) (name string, ok bool) {
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if strings.EqualFold(scheme, "Bearer") {
		if name, ok := c.ofToken(strings.TrimSpace(token)); ok {
			return name, true
		}
	}
	if c.ClientCerts && r.TLS != nil && len(r.TLS.VerifiedChains) > 0 {
		return subject(r.TLS.VerifiedChains[0][0]), true
	}
	return "", false
}

// Reader returns the name of an authorized caller, or of a browser that reads a page. Browsers
// can send a token only as the password of basic authentication. They add it to each request,
// also for pages of other sites. So it authorizes nothing but reading.
func (c *Callers) Reader(r *http.Request) (name string, ok bool) {
	if _, token, isBasic := r.BasicAuth(); isBasic && (r.Method == http.MethodGet || r.Method == http.MethodHead) {
		return c.ofToken(token)
	}
	return c.Name(r)
}

// ofToken returns the name of the caller with that token. Hashes have the same length, so the
// time of a comparison does not depend on the token.
func (c *Callers) ofToken(token string) (name string, ok bool) {
	hash := sha256.Sum256([]byte(token))
	for _, name := range slices.Sorted(maps.Keys(c.Tokens)) {
		allowed := sha256.Sum256([]byte(c.Tokens[name]))
		if c.Tokens[name] != "" && subtle.ConstantTimeCompare(hash[:], allowed[:]) == 1 {
			return name, true
		}
	}
	return "", false
}

// subject returns the name in a certificate.
func subject(c *x509.Certificate) string {
	names := append([]string{c.Subject.CommonName}, c.DNSNames...)
	for _, uri := range c.URIs {
		names = append(names, uri.String())
	}
	return cmp.Or(append(names, "certificate "+c.SerialNumber.String())...)
}

// unauthorized answers 401. All unauthorized calls get the same answer.
func (h *handler) unauthorized(w http.ResponseWriter, r *http.Request) {
	if h.unauthorizedLogs.Allow() {
		h.o.Log.Warn("admin call unauthorized", "from", r.RemoteAddr, "method", truncate(r.Method), "path", truncate(r.URL.Path))
	}
	w.Header().Set("WWW-Authenticate", `Bearer realm="rls admin"`)
	advice := "unauthorized: send a token of ADMIN_TOKEN as Authorization: Bearer TOKEN"
	if h.o.ClientCerts {
		advice += ", or use a client certificate"
	}
	respond(w, problem(http.StatusUnauthorized, "%s", advice))
}

// audit logs a change. attrs are keys and values; long values are cut.
func (h *handler) audit(c *call, action string, attrs ...string) {
	all := []any{"action", action, "by", c.by, "from", c.RemoteAddr, "target", truncate(c.target())}
	for _, text := range attrs {
		all = append(all, truncate(text))
	}
	h.o.Log.Info("audit", all...)
}

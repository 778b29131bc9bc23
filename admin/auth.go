package admin

import (
	"crypto/sha256"
	"crypto/subtle"
	"crypto/x509"
	"maps"
	"net/http"
	"slices"
	"strings"
)

// keyring is the set of tokens that may call.
type keyring []key

// key is the name and the hash of a token. Hashes have the same length, so that all
// comparisons take the same time.
type key struct {
	name string
	hash [sha256.Size]byte
}

func newKeyring(tokens map[string]string) keyring {
	var ks keyring
	for _, name := range slices.Sorted(maps.Keys(tokens)) {
		if token := tokens[name]; token != "" {
			ks = append(ks, key{name, sha256.Sum256([]byte(token))})
		}
	}
	return ks
}

// find returns the name of a token. The time it takes does not depend on the token.
func (ks keyring) find(token string) (name string, ok bool) {
	hash := sha256.Sum256([]byte(token))
	for i := range ks {
		if subtle.ConstantTimeCompare(hash[:], ks[i].hash[:]) == 1 && !ok {
			name, ok = ks[i].name, true
		}
	}
	return name, ok
}

// caller returns the name of an authorized caller.
func (h *handler) caller(r *http.Request) (name string, ok bool) {
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if strings.EqualFold(scheme, "Bearer") {
		if name, ok = h.keys.find(strings.TrimSpace(token)); ok {
			return name, true
		}
	}
	if h.o.ClientCerts && r.TLS != nil && len(r.TLS.VerifiedChains) > 0 {
		return subject(r.TLS.VerifiedChains[0][0]), true
	}
	return "", false
}

// subject returns the name in a certificate.
func subject(c *x509.Certificate) string {
	switch {
	case c.Subject.CommonName != "":
		return c.Subject.CommonName
	case len(c.DNSNames) > 0:
		return c.DNSNames[0]
	case len(c.URIs) > 0:
		return c.URIs[0].String()
	}
	return "certificate " + c.SerialNumber.String()
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
	code, answer := problem(http.StatusUnauthorized, "%s", advice)
	respond(w, code, answer)
}

// audit logs a change. attrs are keys and values; long values are cut.
func (h *handler) audit(c *call, action string, attrs ...string) {
	all := []any{"action", action, "by", c.by, "from", c.RemoteAddr, "target", truncate(c.target())}
	for _, text := range attrs {
		all = append(all, truncate(text))
	}
	h.o.Log.Info("audit", all...)
}

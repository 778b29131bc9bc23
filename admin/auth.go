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

// keyring is the tokens that open.
type keyring []key

// key is a token's name and hash. The hash makes all of one length, so that
// comparing takes the same time for all.
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

// find returns the name of a token. It takes as long for one as for another.
func (ks keyring) find(token string) (name string, ok bool) {
	hash := sha256.Sum256([]byte(token))
	for i := range ks {
		if subtle.ConstantTimeCompare(hash[:], ks[i].hash[:]) == 1 && !ok {
			name, ok = ks[i].name, true
		}
	}
	return name, ok
}

// caller names who calls; not ok if nobody that may.
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

// subject is the name in a certificate.
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

// refuse answers who may not call, whatever it was for.
func (h *handler) refuse(w http.ResponseWriter, r *http.Request) {
	if h.refusals.Allow() {
		h.o.Log.Warn("admin call refused: no token or certificate that may", "from", r.RemoteAddr, "method", cut(r.Method), "path", cut(r.URL.Path))
	}
	w.Header().Set("WWW-Authenticate", `Bearer realm="rls admin"`)
	advice := "a token of ADMIN_TOKEN is needed, as Authorization: Bearer TOKEN"
	if h.o.ClientCerts {
		advice += ", or a client certificate"
	}
	code, answer := problem(http.StatusUnauthorized, "%s", advice)
	respond(w, code, answer)
}

// audit tells of a change that was made. Texts that are long are cut.
func (h *handler) audit(c *call, action string, what ...string) {
	told := []any{"action", action, "by", c.by, "from", c.RemoteAddr, "target", cut(c.target())}
	for _, text := range what {
		told = append(told, cut(text))
	}
	h.o.Log.Info("audit", told...)
}

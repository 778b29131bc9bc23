// Package certtest makes certificates for tests, as PEM files that the test removes.
package certtest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Authority is a certificate authority. Programs that read File trust the certificates of
// this authority.
type Authority struct {
	File string // the authority's own certificate

	tb   testing.TB
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// Pair is a certificate and its key, as paths.
type Pair struct{ CertFile, KeyFile string }

// New returns a new authority.
func New(tb testing.TB) *Authority {
	tb.Helper()
	a := &Authority{tb: tb}
	a.cert, a.key = a.sign(&x509.Certificate{
		Subject:               pkix.Name{CommonName: "test authority"},
		IsCA:                  true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageCertSign,
	})
	a.File = a.write(tb.TempDir(), "ca.crt", "CERTIFICATE", a.cert.Raw)
	return a
}

// Issue returns a pair for any number of DNS names. Servers and clients can use the pair.
func (a *Authority) Issue(names ...string) Pair {
	a.tb.Helper()
	return a.issue(&x509.Certificate{DNSNames: names})
}

// IssueURI returns a pair with a URI, such as a SPIFFE ID.
func (a *Authority) IssueURI(uri string) Pair {
	a.tb.Helper()
	u, err := url.Parse(uri)
	require.NoError(a.tb, err)
	return a.issue(&x509.Certificate{URIs: []*url.URL{u}})
}

// IssueNamed returns a pair with a common name, for 127.0.0.1 and for DNS names.
func (a *Authority) IssueNamed(commonName string, names ...string) Pair {
	a.tb.Helper()
	return a.issue(&x509.Certificate{
		Subject: pkix.Name{CommonName: commonName}, DNSNames: names, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	})
}

func (a *Authority) issue(template *x509.Certificate) Pair {
	a.tb.Helper()
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	cert, key := a.sign(template)
	der, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(a.tb, err)
	dir := a.tb.TempDir()
	return Pair{
		CertFile: a.write(dir, "tls.crt", "CERTIFICATE", cert.Raw),
		KeyFile:  a.write(dir, "tls.key", "PRIVATE KEY", der),
	}
}

// Pool returns a pool that contains only a.
func (a *Authority) Pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	return pool
}

// sign completes and signs template. A new authority signs its own certificate.
func (a *Authority) sign(template *x509.Certificate) (*x509.Certificate, *ecdsa.PrivateKey) {
	a.tb.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(a.tb, err)
	template.SerialNumber, err = rand.Int(rand.Reader, big.NewInt(1<<62))
	require.NoError(a.tb, err)
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	require.NoError(a.tb, err)
	cert, err := x509.ParseCertificate(der)
	require.NoError(a.tb, err)
	return cert, key
}

func (a *Authority) write(dir, name, kind string, der []byte) string {
	a.tb.Helper()
	path := filepath.Join(dir, name)
	require.NoError(a.tb, os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600))
	return path
}

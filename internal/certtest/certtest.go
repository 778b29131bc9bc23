// Package certtest makes certificates for tests, as PEM files that end with the test.
package certtest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Authority issues certificates. Only who is given its File trusts them.
type Authority struct {
	// File holds its own certificate.
	File string

	tb   testing.TB
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// Pair is a certificate and its key.
type Pair struct{ CertFile, KeyFile string }

// New makes an authority.
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

// Issue makes a pair for the given DNS names, or for none; good for servers and
// clients.
func (a *Authority) Issue(names ...string) Pair {
	a.tb.Helper()
	cert, key := a.sign(&x509.Certificate{
		DNSNames:    names,
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	})
	der, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(a.tb, err)
	dir := a.tb.TempDir()
	return Pair{
		CertFile: a.write(dir, "tls.crt", "CERTIFICATE", cert.Raw),
		KeyFile:  a.write(dir, "tls.key", "PRIVATE KEY", der),
	}
}

// Pool trusts a alone.
func (a *Authority) Pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	return pool
}

// sign completes and signs c; an authority that is being made signs itself.
func (a *Authority) sign(c *x509.Certificate) (*x509.Certificate, *ecdsa.PrivateKey) {
	a.tb.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(a.tb, err)
	c.SerialNumber, err = rand.Int(rand.Reader, big.NewInt(1<<62))
	require.NoError(a.tb, err)
	c.NotBefore, c.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = c, key
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, signer)
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

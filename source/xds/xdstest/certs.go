package xdstest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
)

// Authority issues certificates.
type Authority struct {
	// File holds its own certificate.
	File string

	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// Pair is a certificate and its key.
type Pair struct{ CertFile, KeyFile string }

// NewAuthority makes an authority that nobody trusts.
func NewAuthority(t *testing.T) *Authority {
	t.Helper()
	a := &Authority{t: t}
	var der []byte
	der, a.key = a.sign(&x509.Certificate{
		SerialNumber:          big.NewInt(1),
		Subject:               pkix.Name{CommonName: "test authority"},
		IsCA:                  true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageCertSign,
	})
	var err error
	a.cert, err = x509.ParseCertificate(der)
	require.NoError(t, err)
	a.File = a.write(t.TempDir(), "ca.crt", "CERTIFICATE", der)
	return a
}

// Issue makes a pair for a DNS name, good for servers and clients.
func (a *Authority) Issue(name string) Pair {
	a.t.Helper()
	der, key := a.sign(&x509.Certificate{
		SerialNumber: big.NewInt(2),
		Subject:      pkix.Name{CommonName: name},
		DNSNames:     []string{name},
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	})
	keyDER, err := x509.MarshalECPrivateKey(key)
	require.NoError(a.t, err)
	dir := a.t.TempDir()
	return Pair{
		CertFile: a.write(dir, "tls.crt", "CERTIFICATE", der),
		KeyFile:  a.write(dir, "tls.key", "EC PRIVATE KEY", keyDER),
	}
}

// sign signs c, with the new key of c itself if a has none yet.
func (a *Authority) sign(c *x509.Certificate) ([]byte, *ecdsa.PrivateKey) {
	a.t.Helper()
	c.NotBefore, c.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(a.t, err)
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = c, key
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, signer)
	require.NoError(a.t, err)
	return der, key
}

func (a *Authority) write(dir, name, kind string, der []byte) string {
	a.t.Helper()
	path := filepath.Join(dir, name)
	require.NoError(a.t, os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600))
	return path
}

// MutualTLS makes a server present p and require of clients a certificate of a.
func (a *Authority) MutualTLS(p Pair) grpc.ServerOption {
	a.t.Helper()
	pair, err := tls.LoadX509KeyPair(p.CertFile, p.KeyFile)
	require.NoError(a.t, err)
	clients := x509.NewCertPool()
	clients.AddCert(a.cert)
	return grpc.Creds(credentials.NewTLS(&tls.Config{
		MinVersion:   tls.VersionTLS12,
		Certificates: []tls.Certificate{pair},
		ClientAuth:   tls.RequireAndVerifyClientCert,
		ClientCAs:    clients,
	}))
}

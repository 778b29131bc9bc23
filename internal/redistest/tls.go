package redistest

import (
	"context"
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
	"strconv"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
)

// Certs are PEM files of a certificate authority and of what it has signed.
type Certs struct {
	CA                    string
	ServerCert, ServerKey string
	ClientCert, ClientKey string
}

// NewCerts makes certificates; the server's is for the given names or addresses.
func NewCerts(tb testing.TB, names ...string) Certs {
	tb.Helper()
	dir := tb.TempDir()
	ca, caKey := newCert(tb, nil, nil, "authority")
	c := Certs{CA: filepath.Join(dir, "ca.crt")}
	writePEM(tb, c.CA, "CERTIFICATE", ca.Raw)
	pair := func(name string, hosts ...string) (cert, key string) {
		signed, private := newCert(tb, ca, caKey, name, hosts...)
		der, err := x509.MarshalECPrivateKey(private)
		if err != nil {
			tb.Fatal(err)
		}
		cert, key = filepath.Join(dir, name+".crt"), filepath.Join(dir, name+".key")
		writePEM(tb, cert, "CERTIFICATE", signed.Raw)
		writePEM(tb, key, "EC PRIVATE KEY", der)
		return cert, key
	}
	c.ServerCert, c.ServerKey = pair("server", names...)
	c.ClientCert, c.ClientKey = pair("client")
	return c
}

func newCert(tb testing.TB, parent *x509.Certificate, parentKey *ecdsa.PrivateKey, name string, hosts ...string) (*x509.Certificate, *ecdsa.PrivateKey) {
	tb.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	t := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()),
		Subject:      pkix.Name{CommonName: name},
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(time.Hour),
		DNSNames:     hosts,
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	if parent == nil {
		t.IsCA, t.BasicConstraintsValid, t.KeyUsage, t.ExtKeyUsage = true, true, x509.KeyUsageCertSign, nil
		parent, parentKey = t, key
	}
	der, err := x509.CreateCertificate(rand.Reader, t, parent, &key.PublicKey, parentKey)
	if err != nil {
		tb.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		tb.Fatal(err)
	}
	return cert, key
}

func writePEM(tb testing.TB, file, kind string, der []byte) {
	tb.Helper()
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		tb.Fatal(err)
	}
}

// StartTLS runs a redis-server that speaks only TLS, and demands a certificate of
// its clients.
func StartTLS(tb testing.TB, c Certs) *Server {
	tb.Helper()
	pair, err := tls.LoadX509KeyPair(c.ClientCert, c.ClientKey)
	if err != nil {
		tb.Fatal(err)
	}
	s, err := anywhere(func(port int) (*Server, error) {
		ping := func(ctx context.Context) error {
			client := goredis.NewClient(&goredis.Options{
				Addr: "127.0.0.1:" + strconv.Itoa(port), MaxRetries: -1,
				TLSConfig: &tls.Config{Certificates: []tls.Certificate{pair}, InsecureSkipVerify: true},
			})
			defer client.Close()
			return client.Ping(ctx).Err()
		}
		return run("redis-server", port, ping, "--port", "0", "--tls-port", strconv.Itoa(port),
			"--tls-cert-file", c.ServerCert, "--tls-key-file", c.ServerKey, "--tls-ca-cert-file", c.CA)
	})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(s.Kill)
	return s
}

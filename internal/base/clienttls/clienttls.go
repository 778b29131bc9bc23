// Package clienttls makes the TLS configuration of a client from files.
package clienttls

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
)

// Files are paths of PEM files. All are optional.
type Files struct {
	CA        string // certificates of authorities; the client also trusts the authorities of the system
	Cert, Key string // the certificate and the key of the client; both or none

	// SkipHostname accepts any name in the certificate of the server. The client still verifies the chain.
	SkipHostname bool

	// ServerName is the name in the certificate of the server; empty means the name of the host.
	ServerName string
}

// Credentials reads the files and returns the credentials of a gRPC client. A nil f means plain text.
func (f *Files) Credentials() (credentials.TransportCredentials, error) {
	if f == nil {
		return insecure.NewCredentials(), nil
	}
	c, err := f.Config()
	if err != nil {
		return nil, err
	}
	return credentials.NewTLS(c), nil
}

// Config reads the files and returns a configuration for TLS 1.2 or later.
func (f Files) Config() (*tls.Config, error) {
	roots, err := x509.SystemCertPool()
	if err != nil {
		roots = x509.NewCertPool()
	}
	if f.CA != "" {
		pem, err := os.ReadFile(f.CA)
		if err != nil {
			return nil, fmt.Errorf("CA file: %w", err)
		}
		if !roots.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("CA file %s contains no PEM certificate", f.CA)
		}
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots, ServerName: f.ServerName}
	if f.SkipHostname {
		c.InsecureSkipVerify = true // skips only the name, because VerifyConnection verifies the chain
		c.VerifyConnection = func(s tls.ConnectionState) error { return verifyChain(s.PeerCertificates, roots) }
	}
	switch {
	case f.Cert == "" && f.Key == "":
		return c, nil
	case f.Cert == "" || f.Key == "":
		return nil, errors.New("client certificate and key: got only one, want both or none")
	}
	pair, err := tls.LoadX509KeyPair(f.Cert, f.Key)
	if err != nil {
		return nil, fmt.Errorf("client certificate %s and key %s: %w", f.Cert, f.Key, err)
	}
	c.Certificates = []tls.Certificate{pair}
	return c, nil
}

func verifyChain(chain []*x509.Certificate, roots *x509.CertPool) error {
	intermediates := x509.NewCertPool()
	for _, c := range chain[1:] {
		intermediates.AddCert(c)
	}
	_, err := chain[0].Verify(x509.VerifyOptions{Roots: roots, Intermediates: intermediates})
	return err
}

package xds

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
)

// TLS secures the connection by TLS 1.2 or later. The files are PEM, and are read
// anew for each connection.
type TLS struct {
	// CertFile and KeyFile are the client's certificate and key; both or none.
	CertFile, KeyFile string

	// CAFile adds authorities to the system's.
	CAFile string

	// ServerName is the name to verify, instead of the host connected to.
	ServerName string
}

// credentials reads the files; a nil t means plain text.
func (t *TLS) credentials() (credentials.TransportCredentials, error) {
	if t == nil {
		return insecure.NewCredentials(), nil
	}
	roots, err := x509.SystemCertPool()
	if err != nil {
		roots = x509.NewCertPool()
	}
	if t.CAFile != "" {
		pem, err := os.ReadFile(t.CAFile)
		if err != nil {
			return nil, fmt.Errorf("xDS TLS: the CA file: %w", err)
		}
		if !roots.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("xDS TLS: the CA file %s holds no certificate in PEM", t.CAFile)
		}
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots, ServerName: t.ServerName}
	switch {
	case t.CertFile != "" && t.KeyFile != "":
		pair, err := tls.LoadX509KeyPair(t.CertFile, t.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("xDS TLS: the client certificate %s and key %s: %w", t.CertFile, t.KeyFile, err)
		}
		c.Certificates = []tls.Certificate{pair}
	case t.CertFile != "" || t.KeyFile != "":
		return nil, errors.New("xDS TLS: the client certificate and its key must be given together")
	}
	return credentials.NewTLS(c), nil
}

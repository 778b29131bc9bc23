// Package clienttls makes the TLS of a client from files.
package clienttls

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
)

// Files are PEM files. All are optional.
type Files struct {
	CA        string // authorities to trust besides the system's
	Cert, Key string // the client's own certificate and its key; both or none
}

// Config reads the files, for TLS 1.2 or later. The error names what it can't take.
func (f Files) Config() (*tls.Config, error) {
	roots, err := x509.SystemCertPool()
	if err != nil {
		roots = x509.NewCertPool()
	}
	if f.CA != "" {
		pem, err := os.ReadFile(f.CA)
		if err != nil {
			return nil, fmt.Errorf("the CA file: %w", err)
		}
		if !roots.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("the CA file %s holds no certificate in PEM", f.CA)
		}
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots}
	switch {
	case f.Cert == "" && f.Key == "":
		return c, nil
	case f.Cert == "" || f.Key == "":
		return nil, errors.New("the client certificate and its key must be given together")
	}
	pair, err := tls.LoadX509KeyPair(f.Cert, f.Key)
	if err != nil {
		return nil, fmt.Errorf("the client certificate %s and key %s: %w", f.Cert, f.Key, err)
	}
	c.Certificates = []tls.Certificate{pair}
	return c, nil
}

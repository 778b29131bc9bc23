package xds

import (
	"fmt"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/seed-81f232ab/rls/internal/clienttls"
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
	c, err := clienttls.Files{CA: t.CAFile, Cert: t.CertFile, Key: t.KeyFile}.Config()
	if err != nil {
		return nil, fmt.Errorf("xDS TLS: %w", err)
	}
	c.ServerName = t.ServerName
	return credentials.NewTLS(c), nil
}

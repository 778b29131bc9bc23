package xds

import (
	"fmt"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/seed-81f232ab/rls/internal/clienttls"
)

// TLS configures TLS 1.2 or later. The files are PEM and are read for each connection, so
// that renewed certificates take effect.
type TLS struct {
	// CertFile and KeyFile are the certificate and key of the client; both or none.
	CertFile, KeyFile string

	// CAFile has authorities besides those of the system.
	CAFile string

	// ServerName is the name in the server's certificate, if it isn't the host.
	ServerName string
}

// credentials reads the files. If t is nil, they stand for plain text.
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

package xds

import (
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/internal/base/clienttls"
	"github.com/seed-81f232ab/rls/internal/base/wait"
	"github.com/seed-81f232ab/rls/internal/testkit/xdstest"
)

func TestMutualTLSNeedsTrustOnBothSides(t *testing.T) {
	t.Parallel()
	ca, otherCA := xdstest.NewAuthority(t), xdstest.NewAuthority(t)
	client := ca.Issue("envoy-ratelimit")
	server := xdstest.Serve(t, "127.0.0.1:0", ca.MutualTLS(ca.Issue("envoy-gateway")))
	server.Set("1", xdstest.Config("a", 1))
	for name, test := range map[string]struct {
		tls  *clienttls.Files
		want string // the domains in force, or a part of the error
	}{
		"both sides trust each other":       {&clienttls.Files{Cert: client.CertFile, Key: client.KeyFile, CA: ca.File, ServerName: "envoy-gateway"}, "a"},
		"the server has another name":       {&clienttls.Files{Cert: client.CertFile, Key: client.KeyFile, CA: ca.File, ServerName: ""}, "certificate"},
		"the server's authority is unknown": {&clienttls.Files{Cert: client.CertFile, Key: client.KeyFile, CA: "", ServerName: "envoy-gateway"}, "unknown authority"},
		"the client has no certificate":     {&clienttls.Files{Cert: "", Key: "", CA: ca.File, ServerName: "envoy-gateway"}, "code = Unavailable"},
		"the client uses plain text":        {nil, "code = Unavailable"},
	} {
		t.Run(name, func(t *testing.T) {
			s := runClient(t, server.Addr, Options{TLS: test.tls})
			if test.want == "a" {
				assert.Equal(t, "a", s.nextUpdate())
				return
			}
			assert.Contains(t, s.awaitLines(2, "retry_in")[1], test.want)
			assert.Nil(t, s.store.Load())
		})
	}
	_, err := New(Options{
		Server: server.Addr, Backoff: wait.Backoff{Initial: 1, Max: 1},
		TLS: &clienttls.Files{Cert: client.CertFile, Key: otherCA.Issue("x").KeyFile, CA: ca.File, ServerName: ""},
	})
	assert.ErrorContains(t, err, client.CertFile)
	_, err = New(Options{Server: server.Addr, Backoff: wait.Backoff{Initial: 1, Max: 1}, TLS: &clienttls.Files{CA: client.KeyFile}})
	assert.ErrorContains(t, err, "contains no PEM certificate")
}

func TestCertificatesAreReloadedForEachConnection(t *testing.T) {
	t.Parallel()
	ca, otherCA := xdstest.NewAuthority(t), xdstest.NewAuthority(t)
	server := xdstest.Serve(t, "127.0.0.1:0", ca.MutualTLS(ca.Issue("envoy-gateway")))
	server.Set("1", xdstest.Config("a", 1))
	rejectedPair, acceptedPair := otherCA.Issue("envoy-ratelimit"), ca.Issue("envoy-ratelimit")
	client := runClient(t, server.Addr, Options{TLS: &clienttls.Files{Cert: rejectedPair.CertFile, Key: rejectedPair.KeyFile, CA: ca.File, ServerName: "envoy-gateway"}})
	client.awaitLines(1, "retry_in")
	for newFile, file := range map[string]string{acceptedPair.CertFile: rejectedPair.CertFile, acceptedPair.KeyFile: rejectedPair.KeyFile} {
		require.NoError(t, os.Rename(newFile, file))
	}
	assert.Equal(t, "a", client.nextUpdate())
}

package callers

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
)

const nodeHeader = "x-envoy-node"

// callContext returns the context of a call over gRPC. cert can be nil, and name can be empty.
func callContext(address string, cert *x509.Certificate, name string) context.Context {
	p := &peer.Peer{Addr: &net.TCPAddr{IP: net.ParseIP(address), Port: 4711}}
	if cert != nil {
		p.AuthInfo = credentials.TLSInfo{State: tls.ConnectionState{VerifiedChains: [][]*x509.Certificate{{cert}}}}
	}
	ctx := peer.NewContext(context.Background(), p)
	if name != "" {
		ctx = metadata.NewIncomingContext(ctx, metadata.Pairs(nodeHeader, name))
	}
	return ctx
}

func TestCallerHasAddressAndNames(t *testing.T) {
	uriCertificate := &x509.Certificate{URIs: []*url.URL{{Scheme: "spiffe", Host: "shop", Path: "/envoy"}}, DNSNames: []string{"no"}}
	unverifiedTLS := credentials.TLSInfo{State: tls.ConnectionState{PeerCertificates: []*x509.Certificate{uriCertificate}}}
	httpRequest := httptest.NewRequest(http.MethodPost, "/json", nil)
	httpRequest.RemoteAddr = "[::ffff:10.0.0.9]:4711"
	httpRequest.Header.Set("X-Envoy-Node", "batch job")
	for name, c := range map[string]struct {
		ctx              context.Context
		want, wantInRate string
	}{
		"URI":                      {callContext("10.0.0.1", uriCertificate, ""), "10.0.0.1 spiffe://shop/envoy", "spiffe://shop/envoy"},
		"DNS name":                 {callContext("10.0.0.1", &x509.Certificate{DNSNames: []string{"envoy.shop"}}, ""), "10.0.0.1 envoy.shop", "envoy.shop"},
		"common name":              {callContext("fd00::1", &x509.Certificate{Subject: pkix.Name{CommonName: "envoy"}}, ""), "fd00::1 envoy", "envoy"},
		"certificate and name":     {callContext("10.0.0.1", uriCertificate, "front-1"), "10.0.0.1 spiffe://shop/envoy front-1", "front-1"},
		"certificate without name": {callContext("10.0.0.1", &x509.Certificate{}, ""), "10.0.0.1 ", "10.0.0.1"},
		"unverified certificate":   {peer.NewContext(t.Context(), &peer.Peer{Addr: &net.TCPAddr{IP: net.ParseIP("10.0.0.1")}, AuthInfo: unverifiedTLS}), "10.0.0.1", "10.0.0.1"},
		"sent name":                {callContext("10.0.0.1", nil, "front-1"), "10.0.0.1 front-1", "front-1"},
		"long name":                {callContext("10.0.0.1", nil, strings.Repeat("x", 300)), "10.0.0.1 " + strings.Repeat("x", maxSentNameBytes), strings.Repeat("x", maxSentNameBytes)},
		"address":                  {callContext("::ffff:10.0.0.3", nil, ""), "10.0.0.3", "10.0.0.3"},
		"Unix socket":              {peer.NewContext(t.Context(), &peer.Peer{Addr: &net.UnixAddr{Name: "@"}}), "Unix socket", "Unix socket"},
		"HTTP":                     {HTTPContext(httpRequest, nodeHeader), "10.0.0.9 batch job", "batch job"},
		"HTTP without a header":    {HTTPContext(httpRequest, ""), "10.0.0.9", "10.0.0.9"},
		"no network":               {t.Context(), "", ""},
	} {
		assert.Equal(t, c.want, string(AppendCaller(nil, c.ctx, nodeHeader)), name)
		assert.Equal(t, c.wantInRate, string(appendCallerName(nil, c.ctx, nodeHeader)), name)
	}
	assert.Equal(t, "10.0.0.1", string(AppendCaller(nil, callContext("10.0.0.1", nil, "front-1"), "")), "callers send no name")
}

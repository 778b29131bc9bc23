package callers

import (
	"context"
	"crypto/x509"
	"net"
	"net/http"
	"net/netip"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
)

// maxSentNameBytes bounds the name that a caller sends. The rest is cut off.
const maxSentNameBytes = 256

// AppendCaller appends the address of the caller of ctx without the port, the name in its client certificate, and the name
// that it sends in header. Spaces separate these parts. header is a key of gRPC metadata, or empty if callers send no name.
// If no client sent the call, AppendCaller appends nothing.
func AppendCaller(b []byte, ctx context.Context, header string) []byte {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return b
	}
	b = appendAddress(b, p)
	if cert := certificateOf(p); cert != nil {
		b = appendCertificateName(append(b, ' '), cert)
	}
	if name := sentName(ctx, header); name != "" {
		b = append(append(b, ' '), name...)
	}
	return b
}

// appendCallerName appends the name that the caller of ctx sends in header. If it sends no name, appendCallerName appends
// the name in its client certificate, or else its address.
func appendCallerName(b []byte, ctx context.Context, header string) []byte {
	if name := sentName(ctx, header); name != "" {
		return append(b, name...)
	}
	p, ok := peer.FromContext(ctx)
	if !ok {
		return b
	}
	if cert := certificateOf(p); cert != nil {
		if bytesWithName := appendCertificateName(b, cert); len(bytesWithName) > len(b) {
			return bytesWithName
		}
	}
	return appendAddress(b, p)
}

// HTTPContext returns the context of a call over HTTP. It has the address of the caller and the name that the caller sends
// in header, like the context of a call over gRPC.
func HTTPContext(r *http.Request, header string) context.Context {
	ctx := r.Context()
	if address, err := netip.ParseAddrPort(r.RemoteAddr); err == nil {
		ctx = peer.NewContext(ctx, &peer.Peer{Addr: net.TCPAddrFromAddrPort(address)})
	}
	if name := r.Header.Get(header); name != "" {
		ctx = metadata.NewIncomingContext(ctx, metadata.Pairs(header, name))
	}
	return ctx
}

func sentName(ctx context.Context, header string) string {
	if header == "" {
		return ""
	}
	names := metadata.ValueFromIncomingContext(ctx, header)
	if len(names) == 0 {
		return ""
	}
	return names[0][:min(len(names[0]), maxSentNameBytes)]
}

func appendAddress(b []byte, p *peer.Peer) []byte {
	if tcp, ok := p.Addr.(*net.TCPAddr); ok {
		return tcp.AddrPort().Addr().Unmap().AppendTo(b)
	}
	return append(b, "Unix socket"...)
}

// certificateOf returns the verified client certificate of p, or nil.
func certificateOf(p *peer.Peer) *x509.Certificate {
	if tls, ok := p.AuthInfo.(credentials.TLSInfo); ok && len(tls.State.VerifiedChains) > 0 {
		return tls.State.VerifiedChains[0][0]
	}
	return nil
}

// appendCertificateName appends the first URI of cert, or else its first DNS name, or else its common name.
func appendCertificateName(b []byte, cert *x509.Certificate) []byte {
	switch {
	case len(cert.URIs) > 0: // a SPIFFE ID, such as spiffe://example.org/shop
		uri := cert.URIs[0]
		return append(append(append(append(b, uri.Scheme...), "://"...), uri.Host...), uri.Path...)
	case len(cert.DNSNames) > 0:
		return append(b, cert.DNSNames[0]...)
	}
	return append(b, cert.Subject.CommonName...)
}

package faults

import (
	"context"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/dns/dnsmessage"
)

// dnsServer answers every name with one address.
type dnsServer struct{ address atomic.Pointer[netip.Addr] }

// dnsAddress is the address of the dnsServer in use, nil for the DNS of the system.
var dnsAddress atomic.Pointer[string]

// useDNSAddress makes net.DefaultResolver ask dnsAddress. TestMain calls it before any goroutine can
// read net.DefaultResolver.
func useDNSAddress() {
	net.DefaultResolver = &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
		if server := dnsAddress.Load(); server != nil {
			network, address = "udp", *server
		}
		return new(net.Dialer).DialContext(ctx, network, address)
	}}
}

// startDNS makes a new dnsServer the resolver of this process until the test ends.
func startDNS(t *testing.T, address string) *dnsServer {
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	require.NoError(t, err)
	s := &dnsServer{}
	s.setAddress(address)
	done := make(chan struct{})
	go func() { s.serve(conn); close(done) }()
	server := conn.LocalAddr().String()
	dnsAddress.Store(&server)
	t.Cleanup(func() {
		dnsAddress.Store(nil)
		conn.Close()
		<-done
	})
	return s
}

// setAddress changes the address of all later answers.
func (s *dnsServer) setAddress(address string) {
	a := netip.MustParseAddr(address)
	s.address.Store(&a)
}

func (s *dnsServer) serve(conn net.PacketConn) {
	buf := make([]byte, 1500)
	for {
		size, client, err := conn.ReadFrom(buf)
		if err != nil {
			return
		}
		var message dnsmessage.Message
		if message.Unpack(buf[:size]) != nil || len(message.Questions) != 1 {
			continue
		}
		message.Response, message.Authoritative, message.Additionals = true, true, nil
		if q := message.Questions[0]; q.Type == dnsmessage.TypeA {
			message.Answers = []dnsmessage.Resource{{
				Header: dnsmessage.ResourceHeader{Name: q.Name, Class: q.Class, TTL: 1},
				Body:   &dnsmessage.AResource{A: s.address.Load().As4()},
			}}
		}
		if answer, err := message.Pack(); err == nil {
			_, _ = conn.WriteTo(answer, client)
		}
	}
}

package server

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"strconv"
	"syscall"
	"time"
)

// Addr is a TCP address to listen on.
type Addr struct {
	Host string // a name or an IPv4 or IPv6 address; empty means all addresses
	Port int    // with 0 the kernel chooses; Server.GRPCAddr and its siblings return it

	Setting string // names the setting of the port in errors; may be empty
}

func (a Addr) String() string {
	return net.JoinHostPort(a.Host, strconv.Itoa(a.Port))
}

// ParseAddr parses "host:port" as net.Listen does. The port may be the name of a service.
func ParseAddr(text string) (Addr, error) {
	host, service, err := net.SplitHostPort(text)
	if err == nil && service != "" {
		if port, err := net.LookupPort("tcp", service); err == nil {
			return Addr{Host: host, Port: port}, nil
		}
	}
	return Addr{}, fmt.Errorf("%q is not host:port with a port from 0 to 65535; for example :9090", text)
}

// listenTCP listens on a. The error has advice if the address is in use.
func listenTCP(a Addr) (net.Listener, error) {
	l, err := net.Listen("tcp", a.String())
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, fmt.Errorf("%w; end the program that uses it (lsof -i :%d shows it), or change %s", err, a.Port, cmp.Or(a.Setting, "the port"))
	}
	return l, err
}

// listenGRPC listens on the address or the socket file of o. Closing the listener removes the file.
func listenGRPC(o *GRPC) (net.Listener, error) {
	if o.UDS == "" {
		return listenTCP(o.Addr)
	}
	if err := removeStaleSocket(o.UDS); err != nil {
		return nil, err
	}
	return net.Listen("unix", o.UDS)
}

// removeStaleSocket removes a socket that a killed process left behind. A socket in use, and any other kind of
// file, is an error.
func removeStaleSocket(path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case info.Mode().Type() != fs.ModeSocket:
		return fmt.Errorf("%s exists and is not a socket (%s)", path, info.Mode())
	}
	conn, err := net.DialTimeout("unix", path, time.Second)
	switch {
	case err == nil:
		_ = conn.Close()
		return fmt.Errorf("%s is in use by another process", path)
	case !errors.Is(err, syscall.ECONNREFUSED):
		// The backlog may be full or a permission may be missing.
		return fmt.Errorf("%s exists and may be in use: %w", path, err)
	}
	return os.Remove(path)
}

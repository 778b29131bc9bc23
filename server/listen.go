package server

import (
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
	Host string // name or address, also IPv6 such as "::"; empty: every address
	Port int    // 0: the kernel chooses, see Server.GRPCAddr and its siblings
}

func (a Addr) String() string {
	return net.JoinHostPort(a.Host, strconv.Itoa(a.Port))
}

// ParseAddr reads "host:port", the form of net.Listen: ":9090",
// "127.0.0.1:9090", "[::1]:9090". The port may be the name of a service.
func ParseAddr(text string) (Addr, error) {
	host, service, err := net.SplitHostPort(text)
	if err == nil && service != "" {
		if port, err := net.LookupPort("tcp", service); err == nil {
			return Addr{Host: host, Port: port}, nil
		}
	}
	return Addr{}, fmt.Errorf("%q is not host:port with a port from 0 to 65535; for example :9090", text)
}

func listenGRPC(o *GRPC) (net.Listener, error) {
	if o.UDS != "" {
		return listenUnix(o.UDS)
	}
	return listenTCP(o.Addr)
}

func listenTCP(a Addr) (net.Listener, error) {
	return net.Listen("tcp", a.String())
}

// listenUnix listens on a socket file. A socket that a killed process left
// behind is replaced; one that somebody answers on, and any other kind of
// file, is an error. Closing the listener removes the file.
func listenUnix(path string) (net.Listener, error) {
	if err := removeStaleSocket(path); err != nil {
		return nil, err
	}
	return net.Listen("unix", path)
}

func removeStaleSocket(path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if info.Mode().Type() != fs.ModeSocket {
		return fmt.Errorf("%s exists and is not a socket (%s)", path, info.Mode())
	}

	conn, err := net.DialTimeout("unix", path, time.Second)
	switch {
	case err == nil:
		_ = conn.Close()
		return fmt.Errorf("%s is in use: another process answers on it", path)
	case !errors.Is(err, syscall.ECONNREFUSED):
		// Full backlog, no permission and the like: somebody may be there.
		return fmt.Errorf("%s exists and may be in use: %w", path, err)
	}
	return os.Remove(path)
}

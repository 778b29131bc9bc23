package redis

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
)

// Kind is the kind of a Redis deployment.
type Kind string

// The kinds of deployments.
const (
	Single   Kind = "single"
	Sentinel Kind = "sentinel"
	Cluster  Kind = "cluster"
)

// Server is the address of a Redis with its credentials.
type Server struct {
	Kind Kind // default Single

	// URL is the address:
	//
	//	single    host:port, /path/of/socket, redis://, rediss:// or unix://
	//	sentinel  master,host:port,host:port… (of the sentinels)
	//	cluster   host:port,host:port… (some of the nodes)
	//
	// Each host:port may also be redis://user:password@host:port, or rediss://… for
	// TLS. /db may follow the address of a single Redis. The first node's user and
	// password apply to all nodes. In a URL of sentinels, they are for the sentinels only.
	URL string

	// SocketType is "tcp", or "unix" if the URL of a single Redis is a path.
	SocketType string

	// Auth is "password" or "user:password", split at the first colon. It overrides the user and password of the URL.
	Auth string

	// AuthFile, if not empty, is a file with the Auth. rls reads the file for each new connection. If rls can't
	// read the file, it uses the last login.
	AuthFile string

	// SentinelAuth is the Auth of sentinels.
	SentinelAuth string

	// TLS, if not nil, secures the connections.
	TLS *tls.Config

	// PoolSize is the maximum number of connections to a node. The default is enough for all batches that can be
	// in flight. A Cluster has at least one connection for each partition.
	PoolSize int
}

// Check returns an error if s is not valid. The error holds no secret of URL or Auth.
func (s Server) Check() error {
	_, err := parse(s)
	return err
}

// address is a checked Server.
type address struct {
	kind          Kind
	network       string // tcp or unix
	nodes         []string
	master        string // the name of the master in Sentinel
	db            int
	login         login
	sentinelLogin login
	authFile      string
	tls           *tls.Config
	poolSize      int
}

type login struct{ user, password string }

// name returns the address for errors, without secrets.
func (a address) name() string {
	name := strings.Join(a.nodes, ",")
	if a.kind == Sentinel {
		name = a.master + "," + name
	}
	return name
}

// parse parses s. Its errors hold no secret of URL or Auth.
func parse(s Server) (address, error) {
	a := address{kind: cmp.Or(s.Kind, Single), network: "tcp", authFile: s.AuthFile, tls: s.TLS, poolSize: s.PoolSize}
	if s.SocketType == "unix" && a.kind == Single {
		a.network = "unix"
	}
	if s.URL == "" {
		return a, errors.New("URL: got none, want for example 127.0.0.1:6379")
	}
	parts := []string{s.URL}
	if a.kind != Single {
		parts = strings.Split(s.URL, ",")
	}
	if a.kind == Sentinel {
		a.master, parts = strings.TrimSpace(parts[0]), parts[1:]
		if a.master == "" || len(parts) == 0 {
			return a, errors.New("URL of sentinels: got no master's name or no sentinel, want both: mymaster,host:26379,host:26379")
		}
		if strings.ContainsAny(a.master, ":/@?") {
			return a, errors.New("URL of sentinels: got a URL as the master's name, want mymaster,host:26379,host:26379")
		}
	}
	for i, part := range parts {
		partName := "URL"
		if len(parts) > 1 {
			partName = fmt.Sprintf("node %d of the URL", i+1)
		}
		if err := a.addNode(strings.TrimSpace(part), i == 0); err != nil {
			return a, fmt.Errorf("%s: %w", partName, err)
		}
	}
	if a.kind == Sentinel {
		a.sentinelLogin, a.login = a.login, login{}
		a.sentinelLogin.override(s.SentinelAuth)
	}
	a.login.override(s.Auth)
	return a, nil
}

// addNode parses one node of the URL, and adds its address. The login comes from the first node.
func (a *address) addNode(node string, isFirst bool) error {
	scheme, _, hasScheme := strings.Cut(node, "://")
	switch {
	case !hasScheme && strings.Contains(node, "?"):
		return errors.New("got a ? without redis:// or unix://, want redis://host:port?password=…, or the password in its own setting")
	case strings.HasPrefix(node, "//"):
		return errors.New("got // without redis: in front, want redis://host:port")
	case !hasScheme && (a.network == "unix" || a.kind == Single && strings.HasPrefix(node, "/")):
		a.network, a.nodes = "unix", append(a.nodes, node)
		return nil
	case !hasScheme:
		return a.addHost(node)
	}
	u, err := url.Parse(node)
	if err != nil { // err would quote the URL with its password
		return errors.New("got an invalid URL; escape @ : / # % in a password, such as %40 for @")
	}
	query := u.Query()
	if isFirst {
		password, _ := u.User.Password()
		a.login = login{cmp.Or(query.Get("username"), u.User.Username()), cmp.Or(query.Get("password"), password)}
	}
	switch scheme {
	case "unix":
		if a.kind != Single {
			return fmt.Errorf("got unix://, which needs type %s", Single)
		}
		a.network, a.nodes = "unix", append(a.nodes, u.Path)
		return a.setDB(query.Get("db"))
	case "rediss":
		a.tls = cmp.Or(a.tls, &tls.Config{MinVersion: tls.VersionTLS12})
	case "redis":
	default:
		return fmt.Errorf("got %q, want redis://, rediss:// or unix://", scheme+"://")
	}
	if err := a.setDB(cmp.Or(strings.Trim(u.Path, "/"), query.Get("db"))); err != nil {
		return err
	}
	if u.Port() == "" && u.Hostname() != "" {
		u.Host = net.JoinHostPort(u.Hostname(), "6379")
	}
	return a.addHost(u.Host)
}

func (a *address) addHost(host string) error {
	if strings.Contains(host, "@") {
		return errors.New("got an @ without redis://, want redis://user:password@host:port, or the password in its own setting")
	}
	_, port, err := net.SplitHostPort(host)
	if err != nil {
		return fmt.Errorf("got %q, want host:port", host)
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return fmt.Errorf("got %q, want a port from 1 to 65535", host)
	}
	a.nodes = append(a.nodes, host)
	return nil
}

func (a *address) setDB(db string) error {
	if db == "" {
		return nil
	}
	n, err := strconv.Atoi(db)
	if err != nil || n < 0 {
		return errors.New("got a database that is not a number; escape / in a password as %2F") // an error with db could quote the password
	}
	if n > 0 && a.kind != Single {
		return fmt.Errorf("got database %d, which needs type %s", n, Single)
	}
	a.db = n
	return nil
}

// override replaces the user and the password, if auth has them.
func (l *login) override(auth string) {
	user, password, hasUser := strings.Cut(auth, ":")
	if !hasUser {
		user, password = "", auth
	}
	*l = login{cmp.Or(user, l.user), cmp.Or(password, l.password)}
}

package redis

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"syscall"

	goredis "github.com/redis/go-redis/v9"

	"github.com/seed-81f232ab/rls/backend"
)

// ErrorKind is the kind of a failure of Redis, a label of a metric.
type ErrorKind uint8

// The kinds of failures.
const (
	KindOther       ErrorKind = iota
	KindTimeout               // no answer in time
	KindRefused               // connection refused
	KindReset                 // connection broken
	KindMaxClients            // Redis accepts no more connections
	KindUnreachable           // no address, or no route to it
	KindTLS                   // no secure connection
	KindAuth                  // wrong user or wrong password
	KindNoPerm                // the user has no right for a command or a key
	KindCluster               // a hash slot is being moved, or has no master
	KindLoading               // Redis reads its data, or has no link to its master
	KindReadOnly              // the server is a replica, which rejects writes
	KindOOM                   // out of memory
	KindMisconf               // Redis can't save its data, and rejects writes
	KindNoReplicas            // the master has too few Redis replicas, and rejects writes
	KindNoScript              // Redis does not have the script; rls sends the text
	KindWrongType             // the key has a value of another type
	KindProtocol              // a reply that rls can't read
)

var errorKinds = [...]string{
	"other", "timeout", "refused", "reset", "maxclients", "unreachable", "tls", "auth", "noperm", "cluster", "loading", "readonly",
	"oom", "misconf", "noreplicas", "noscript", "wrongtype", "protocol",
}

// ErrorKinds lists the names of all kinds, in the order of the constants.
func ErrorKinds() []string { return errorKinds[:] }

// String returns the name used in metrics and logs.
func (k ErrorKind) String() string { return errorKinds[k] }

var kindByCode = map[string]ErrorKind{
	"NOAUTH": KindAuth, "WRONGPASS": KindAuth, "NOPERM": KindNoPerm,
	"MOVED": KindCluster, "ASK": KindCluster, "TRYAGAIN": KindCluster, "CROSSSLOT": KindCluster, "CLUSTERDOWN": KindCluster,
	"LOADING": KindLoading, "MASTERDOWN": KindLoading, "READONLY": KindReadOnly, "OOM": KindOOM, "MISCONF": KindMisconf,
	"NOREPLICAS": KindNoReplicas, "NOSCRIPT": KindNoScript, "WRONGTYPE": KindWrongType,
}

// KindOf returns the kind of an error that a Limiter of this package returned.
func KindOf(err error) ErrorKind {
	if code := errorCode(err); code != "" {
		return kindByCode[code] // KindOther if the code is not listed
	}
	if err == nil {
		return KindOther
	}
	var netErr net.Error
	var dnsErr *net.DNSError
	text := err.Error()
	switch {
	case errors.Is(err, errMaxClients):
		return KindMaxClients
	case errors.Is(err, errBadReply), strings.Contains(text, "redis: can't parse"):
		return KindProtocol
	case strings.Contains(text, "tls: "), strings.Contains(text, "x509: "):
		return KindTLS
	case errors.Is(err, syscall.ECONNREFUSED):
		return KindRefused
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE), errors.Is(err, net.ErrClosed):
		return KindReset
	case backend.ReasonOf(err) == backend.ReasonLate, errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, goredis.ErrPoolTimeout):
		return KindTimeout
	case errors.As(err, &dnsErr), errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH), errors.Is(err, os.ErrNotExist):
		return KindUnreachable
	case errors.As(err, &netErr) && netErr.Timeout():
		return KindTimeout
	}
	return KindOther
}

// isNoPerm reports whether err says that the user has no right to run a command, or to use a key.
func isNoPerm(err error) bool { return err != nil && err != goredis.Nil && KindOf(err) == KindNoPerm } //nolint:errorlint // faster; the error of a reply is never wrapped

// isAboutKey reports whether err says that the user has no right to use a key or a channel. err must satisfy isNoPerm.
func isAboutKey(err error) bool { return strings.Contains(err.Error(), "access") }

type replyOutcome int

const (
	outcomeExecuted      replyOutcome = iota
	outcomeUnanswered                 // Redis may have executed the command
	outcomeUnknownScript              // Redis needs the text of the script
	outcomeRedirect                   // another server has the key
	outcomeTryLater                   // Redis can't execute the command now, but may execute it in a moment
	outcomeOnlyThisFails              // Redis refuses this command, and can execute others
	outcomeFailed                     // Redis refuses the command, and would refuse it again
)

func outcomeOf(err error) replyOutcome {
	if err == nil {
		return outcomeExecuted
	}
	switch errorCode(err) {
	case "":
		return outcomeUnanswered
	case "NOSCRIPT":
		return outcomeUnknownScript
	case "TRYAGAIN", "ASK", "MOVED":
		return outcomeRedirect
	case "CLUSTERDOWN", "LOADING", "MASTERDOWN", "READONLY":
		return outcomeTryLater
	case "WRONGTYPE", "ERR", "OOM":
		return outcomeOnlyThisFails
	}
	return outcomeFailed
}

// errorCode returns the first word of an error with which Redis refused a command, such as "WRONGTYPE". It returns "" if
// Redis may have executed the command.
func errorCode(err error) string {
	var reply goredis.Error
	if !errors.As(err, &reply) {
		return ""
	}
	if strings.Contains(reply.Error(), "non local key") {
		return "TRYAGAIN" // the hash slot is being moved, and a key has expired after Redis checked that it has all keys
	}
	code, _, _ := strings.Cut(reply.Error(), " ")
	return code
}

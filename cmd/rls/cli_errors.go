package main

import (
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/seed-81f232ab/rls/internal/base/fields"
)

// connectionProblems explain the errors of connections. The first row whose text is in the error applies. grpcStep and
// adminStep say what the user can do. If grpcStep is empty, the row never applies to the gRPC listener. If adminStep is
// empty, the row never applies to the debug listener. The rows have texts, because gRPC keeps only the text of a cause.
var connectionProblems = []struct{ text, problem, grpcStep, adminStep string }{
	{"connection refused", "connection refused", "set --addr to the gRPC listener of the service (GRPC_PORT), and check that the service runs", "set --admin to the debug listener of the service (DEBUG_PORT), and check that the service runs"},
	{"no such file or directory", "the socket does not exist", "set --addr to the socket of the service (GRPC_UDS)", ""},
	{"no such host", "no such host", "check --addr", "check --admin"},
	{"produced zero addresses", "no such host", "check --addr", "check --admin"},
	{"invalid port", "the port must be from 1 to 65535", "check --addr", "check --admin"},
	{"certificate signed by unknown authority", "the authority of the server's certificate is unknown", "give its file with --ca", "give its file with --ca"},
	{"unknown certificate authority", "the server does not trust the authority of the certificate", "give another --cert", "give another --cert"},
	{"certificate required", "the server wants a certificate", "give --cert and --key", "give --cert and --key"},
	{"certificate is valid for", "the certificate of the server has another name", "give this name with --server-name", "write this name in --admin"},
	{"first record does not look like a TLS handshake", "the listener has no TLS", "leave out --tls, or check --addr", ""},
	{"server gave HTTP response to HTTPS client", "the listener has no TLS", "", "write --admin http://host:port"},
	{"malformed HTTP", "the listener is not the debug listener", "", "set --admin to the debug listener of the service (DEBUG_PORT)"},
	{"readLoopPeekFail", "the listener is not the debug listener", "", "set --admin to the debug listener of the service (DEBUG_PORT)"}, // the listener has sent something before the request
	{"unexpected HTTP status", "the listener is not the gRPC listener", "set --addr to the gRPC listener of the service (GRPC_PORT)", ""},
	{"error reading server preface", "the listener does not answer gRPC without TLS", "give --tls, or set --addr to the gRPC listener of the service (GRPC_PORT)", ""},
	{"EOF", "the listener closed the connection without an answer", "give --tls if it has TLS", "write --admin https://host:port if it has TLS"},
	{"deadline exceeded", "no answer within --timeout", "check --addr, or give a longer --timeout", "check --admin, or give a longer --timeout"},
}

// connectionError explains an error of a call to addr, and names the next step. isGRPC is true for the gRPC listener,
// and false for the debug listener.
func connectionError(addr string, isGRPC bool, err error) error {
	if urlErr, isURLError := errors.AsType[*url.Error](err); isURLError {
		err = urlErr.Err
	}
	text := err.Error()
	if s, isStatus := status.FromError(err); isStatus {
		text = s.Code().String() + ": " + s.Message()
		if s.Code() != codes.Unavailable && s.Code() != codes.DeadlineExceeded && !strings.Contains(text, "unexpected HTTP status") {
			return fmt.Errorf("%s: %s", addr, printable(text)) // the service sent this error
		}
	}
	for _, p := range connectionProblems {
		step := p.adminStep
		if isGRPC {
			step = p.grpcStep
		}
		if step != "" && strings.Contains(text, p.text) {
			return fmt.Errorf("%s: %s; %s", addr, p.problem, step)
		}
	}
	return fmt.Errorf("%s: %s", addr, printable(text))
}

func flagError(cmd *cobra.Command, err error) error {
	if invalidValue, isInvalid := errors.AsType[*pflag.InvalidValueError](err); isInvalid {
		flag, want := invalidValue.GetFlag(), map[string]string{
			"duration": "a duration such as 90s or 1h", "int": "a whole number", "int64": "a whole number",
			"float64": "a number", "bool": "true or false",
		}
		if text := want[flag.Value.Type()]; text != "" {
			return fmt.Errorf("--%s: got %q, want %s", flag.Name, invalidValue.GetValue(), text)
		}
	}
	unknownFlag, isUnknown := errors.AsType[*pflag.NotExistError](err)
	if !isUnknown {
		return err
	}
	var names []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
	if nearestName := fields.Nearest(unknownFlag.GetSpecifiedName(), names); nearestName != "" && unknownFlag.GetSpecifiedShortnames() == "" {
		return fmt.Errorf("%w; did you mean --%s?", err, nearestName)
	}
	return fmt.Errorf("%w; %s --help lists the flags", err, cmd.CommandPath())
}

// argCount returns a check of the number of arguments. The error shows how to use the command.
func argCount(minCount, maxCount int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) < minCount || len(args) > maxCount {
			return fmt.Errorf("got %d arguments, want %s", len(args), strings.TrimSuffix(cmd.UseLine(), " [flags]"))
		}
		return nil
	}
}

// noArgs refuses arguments. hint says which flag the user probably means.
func noArgs(hint string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) > 0 {
			return fmt.Errorf("%s: got %q, want no argument; %s", cmd.Name(), args[0], hint)
		}
		return nil
	}
}

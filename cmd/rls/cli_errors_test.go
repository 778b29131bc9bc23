package main

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// TestErrorsNameTheNextStep gives commands the address of another listener, no address of a listener, and bad flags.
func TestErrorsNameTheNextStep(t *testing.T) {
	t.Parallel()
	service := start(t, nil, "--limits", writeFile(t, "limits.yaml", threePerYear))
	for name, test := range map[string]struct {
		args []string
		want string
	}{
		"gRPC to the debug listener":  {[]string{"hit", "-a", service.debug, "-d", "shop", "a=b"}, service.debug + ": the listener does not answer gRPC without TLS; give --tls, or set --addr to the gRPC listener of the service (GRPC_PORT)"},
		"TLS without need":            {[]string{"hit", "-a", service.grpc, "--tls", "-d", "shop", "a=b"}, service.grpc + ": the listener has no TLS; leave out --tls, or check --addr"},
		"no such socket":              {[]string{"hit", "-a", "unix:///no/such.sock", "-d", "shop", "a=b"}, "unix:///no/such.sock: the socket does not exist; set --addr to the socket of the service (GRPC_UDS)"},
		"service sends the error":     {[]string{"hit", "-a", service.grpc, "-d", "", "a=b"}, "domain"},
		"HTTP to the gRPC listener":   {[]string{"top", "--admin", service.grpc}, service.grpc + ": the listener is not the debug listener; set --admin to the debug listener of the service (DEBUG_PORT)"},
		"stream of the gRPC listener": {[]string{"tail", "--admin", service.grpc}, service.grpc + ": the listener is not the debug listener; set --admin"},
		"stream of the HTTP listener": {[]string{"tail", "--admin", service.http}, service.http + ": got no stream of decisions; check that --admin is the debug listener"},
		"wrong duration":              {[]string{"limits", "off", "--all", "--for", "1x"}, `--for: got "1x", want a duration such as 90s or 1h`},
		"wrong number":                {[]string{"hit", "-n", "x", "-d", "shop", "a=b"}, `--times: got "x", want a whole number`},
		"misspelled flag":             {[]string{"hit", "--timout", "1s"}, "unknown flag: --timout; did you mean --timeout?"},
		"file without its flag":       {[]string{"serve", "limits.yaml"}, `serve: got "limits.yaml", want no argument; --limits PATH (or LIMITS_PATH) names the limits file`},
		"doctor of a file":            {[]string{"doctor", "limits.yaml"}, `doctor: got "limits.yaml", want no argument; --limits PATH`},
		"misspelled command":          {[]string{"explan"}, "Did you mean this?\n\tplan\n\texplain"},
		"misspelled subcommand":       {[]string{"limits", "shwo"}, "did you mean show?"},
	} {
		t.Run(name, func(t *testing.T) {
			out, errOut, code := rls(t, test.args...)
			assert.Equal(t, 1, code)
			assert.Contains(t, out+errOut, test.want)
			assert.NotRegexp(t, "dial tcp|context deadline|strconv|desc =|json:", out+errOut)
		})
	}
}

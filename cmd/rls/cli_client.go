package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/seed-81f232ab/rls/cmd/rls/env"
	"github.com/seed-81f232ab/rls/descriptors"
	"github.com/seed-81f232ab/rls/internal/admin"
	"github.com/seed-81f232ab/rls/internal/base/clienttls"
	"github.com/seed-81f232ab/rls/internal/base/entrytext"
)

// adminClient calls the debug listener of a running service. Flags set its fields.
type adminClient struct {
	addr, token string
	tls         clienttls.Files
	timeout     time.Duration
	asJSON      bool
	header      http.Header // the header of each request; may be nil
}

func (c *adminClient) addFlags(fs *pflag.FlagSet) {
	fs.StringVar(&c.addr, "admin", "localhost:"+cmp.Or(os.Getenv("DEBUG_PORT"), "6070"), "debug listener of the service (DEBUG_PORT): host:port, http://host:port or https://host:port")
	fs.StringVar(&c.token, "token", "", "token to send (default: the first token of ADMIN_TOKEN)")
	addTLSFlags(fs, &c.tls, "https")
}

func (c *adminClient) addAnswerFlags(fs *pflag.FlagSet) {
	fs.DurationVar(&c.timeout, "timeout", 5*time.Second, "how long to wait for the answer")
	fs.BoolVar(&c.asJSON, "json", false, "print the answer of the API as JSON")
}

// addTLSFlags adds flags that set files. The help shows condition, such as "with --tls", behind each flag.
func addTLSFlags(fs *pflag.FlagSet, files *clienttls.Files, condition string) {
	fs.StringVar(&files.CA, "ca", "", "PEM file of more authorities to trust, besides the authorities of the system ("+condition+")")
	fs.StringVar(&files.Cert, "cert", "", "PEM file of the client's certificate ("+condition+")")
	fs.StringVar(&files.Key, "key", "", "PEM file of the key of --cert ("+condition+")")
}

// baseURL returns the address as a URL, and the TLS configuration to connect.
func (c *adminClient) baseURL() (*url.URL, *tls.Config, error) {
	addr, scheme, wantsTLS := c.addr, "http://", c.tls != clienttls.Files{}
	if wantsTLS {
		scheme = "https://"
	}
	if !strings.Contains(addr, "://") {
		addr = scheme + addr
	}
	address, err := url.Parse(addr)
	isBaseURL := err == nil && slices.Contains([]string{"http", "https"}, address.Scheme) && address.Host != "" && address.User == nil &&
		strings.Trim(address.Path, "/") == "" && address.RawQuery == ""
	if !isBaseURL {
		return nil, nil, errors.New("--admin must be http://host:port, https://host:port or host:port")
	}
	if address.Scheme == "http" && wantsTLS {
		return nil, nil, errors.New("--ca, --cert and --key need https; write --admin https://host:port")
	}
	tlsConfig, err := c.tls.Config()
	return address, tlsConfig, err
}

func (c *adminClient) run(cmd *cobra.Command, method, path string, query url.Values, body []byte, answer any, template string) error {
	if err := c.call(cmd.Context(), method, admin.Prefix+path, query, body, answer); err != nil {
		return err
	}
	return printAnswer(cmd.OutOrStdout(), c.asJSON, answer, template)
}

// call sends a call to a path of the debug listener and decodes the answer. The error has the
// problems that the service reports, one on each line.
func (c *adminClient) call(ctx context.Context, method, path string, query url.Values, body []byte, answer any) error {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	resp, err := c.open(ctx, method, path, query, body)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	const maxBytes = 64 << 20
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxBytes))
	if err != nil {
		return connectionError(resp.Request.URL.Host, false, err)
	}
	return decodeAnswer(resp, text, answer)
}

// open sends a request to a path of the debug listener. The caller must close the body of
// the answer. Each request has a connection of its own.
func (c *adminClient) open(ctx context.Context, method, path string, query url.Values, body []byte) (*http.Response, error) {
	baseURL, tlsConfig, err := c.baseURL()
	if err != nil {
		return nil, err
	}
	baseURL.Path, baseURL.RawQuery = path, query.Encode()
	req, err := http.NewRequestWithContext(ctx, method, baseURL.String(), bytes.NewReader(body))
	if err != nil {
		return nil, errors.New("invalid request") // err could contain the token
	}
	maps.Copy(req.Header, c.header)
	if token := cmp.Or(c.token, env.AdminToken()); token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	// Only this address gets the token. The client uses no proxy and follows no redirect.
	client := http.Client{
		Transport:     &http.Transport{TLSClientConfig: tlsConfig, DisableKeepAlives: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, connectionError(baseURL.Host, false, err)
	}
	return resp, nil
}

func decodeAnswer(resp *http.Response, text []byte, answer any) error {
	host := resp.Request.URL.Host
	switch contentType := resp.Header.Get("Content-Type"); {
	case resp.StatusCode == http.StatusUnauthorized:
		return errors.New("unauthorized: set --token or ADMIN_TOKEN to a token that the service knows, or --cert and --key")
	case resp.StatusCode == http.StatusForbidden && contentType != "application/json":
		return fmt.Errorf("%s: %s", host, printable(strings.TrimSpace(string(text))))
	case contentType != "application/json":
		return fmt.Errorf("%s: got %s, want an answer of the admin API; check that --admin is the debug listener, that the service has ADMIN_TOKEN, and that http or https is right", host, resp.Status)
	case resp.StatusCode == http.StatusOK:
		if err := json.Unmarshal(text, answer); err != nil {
			return fmt.Errorf("%s: invalid answer; check that rls and the service have the same version (rls --version)", host)
		}
		return nil
	}
	var problems admin.Problems
	if err := json.Unmarshal(text, &problems); err != nil || len(problems.Problems) == 0 {
		return fmt.Errorf("%s: %s", host, resp.Status)
	}
	for i, line := range problems.Problems {
		problems.Problems[i] = printable(line)
	}
	return errors.New(strings.Join(problems.Problems, "\n"))
}

const descriptorHelp = "A descriptor is one or more entries KEY=VALUE, separated by commas. Write \\, for a comma,\n" +
	"\\= for a = in a key, and \\\\ for a \\. Quote the argument, because shells remove a \\."

// parseTarget parses a descriptor of limits. A key without = matches any value.
func parseTarget(domain, text string) (descriptors.Target, error) {
	entries, hasValue, err := entrytext.Parse(text)
	for i, e := range entries {
		// An empty value is most likely an empty shell variable. It must not become an override for all values.
		if err == nil && hasValue[i] && e.Key != "" && e.Value == "" {
			err = fmt.Errorf("the value of %s is empty; write %s without = for any value", printable(e.Key), printable(e.Key))
		}
	}
	return newTarget(domain, text, entries, err)
}

// parseRequest parses a descriptor of a request. Each entry must have a value, which can be empty.
func parseRequest(domain, text string) (descriptors.Target, error) {
	entries, err := entrytext.ParseRequest(text)
	if err != nil {
		return descriptors.Target{}, err
	}
	return newTarget(domain, text, entries, nil)
}

func newTarget(domain, text string, entries []*ratelimitv3.RateLimitDescriptor_Entry, err error) (descriptors.Target, error) {
	t := descriptors.Target{Domain: domain, Entries: entries}
	if err == nil {
		err = t.Check()
	}
	if err != nil {
		return t, fmt.Errorf("%q is not a descriptor: %w", text, err)
	}
	return t, nil
}

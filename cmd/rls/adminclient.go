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
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/seed-81f232ab/rls/admin"
	"github.com/seed-81f232ab/rls/cmd/rls/env"
	"github.com/seed-81f232ab/rls/internal/clienttls"
)

// maxAnswer bounds what is read of an answer, in bytes.
const maxAnswer = 64 << 20

// adminClient calls the admin API of a running service. Its fields are flags.
type adminClient struct {
	addr, token   string
	ca, cert, key string
	timeout       time.Duration
	asJSON        bool
}

// flags adds the flags that all commands have.
func (c *adminClient) flags(cmd *cobra.Command) {
	fs := cmd.PersistentFlags()
	fs.StringVarP(&c.addr, "addr", "a", "localhost:6070", "the service's debug listener (DEBUG_PORT): host:port, http://host:port or https://host:port")
	fs.StringVar(&c.token, "token", "", "a token that may call (default: the first one of ADMIN_TOKEN)")
	fs.StringVar(&c.ca, "ca", "", "PEM file of authorities to trust besides the system's (https)")
	fs.StringVar(&c.cert, "cert", "", "PEM file of the client's certificate (https)")
	fs.StringVar(&c.key, "key", "", "PEM file of its key (https)")
	fs.DurationVar(&c.timeout, "timeout", 5*time.Second, "how long to wait for the answer")
	fs.BoolVar(&c.asJSON, "json", false, "print the service's answer, as the API gives it")
}

// print prints an answer: for scripts, or with show for people.
func (c *adminClient) print(out io.Writer, answer any, show func()) error {
	if !c.asJSON {
		show()
		return nil
	}
	e := json.NewEncoder(out)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(answer)
}

// base is the address as a URL, and the TLS to reach it.
func (c *adminClient) base() (*url.URL, *tls.Config, error) {
	secured := c.ca != "" || c.cert != "" || c.key != ""
	addr := c.addr
	switch {
	case strings.Contains(addr, "://"):
	case secured:
		addr = "https://" + addr
	default:
		addr = "http://" + addr
	}
	u, err := url.Parse(addr)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" {
		return nil, nil, errors.New("--addr must be http://host:port, https://host:port or host:port")
	}
	if u.Scheme == "http" && secured {
		return nil, nil, errors.New("--ca, --cert and --key are for https; write --addr https://host:port")
	}
	t, err := clienttls.Files{CA: c.ca, Cert: c.cert, Key: c.key}.Config()
	return u, t, err
}

// bearer is the token to show: empty if there is none.
func (c *adminClient) bearer() string {
	if c.token != "" {
		return c.token
	}
	return env.AdminToken()
}

// call asks for a path below /admin/ and decodes the answer. The error says what the
// service found wrong, one problem a line, or why it can't be asked.
func (c *adminClient) call(ctx context.Context, method, path string, query url.Values, body []byte, answer any) error {
	u, secure, err := c.base()
	if err != nil {
		return err
	}
	u.Path, u.RawQuery = admin.Prefix+path, query.Encode()
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, u.String(), bytes.NewReader(body))
	if err != nil {
		return errors.New("the request can't be made") // the reason could show it
	}
	if token := c.bearer(); token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	// A token goes to this address only: not to a proxy, nor where that one points to.
	transport := &http.Transport{TLSClientConfig: secure}
	defer transport.CloseIdleConnections()
	client := http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	resp, err := client.Do(req)
	if err != nil {
		return unreached(u, err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return unreached(u, err)
	}
	return understand(u, resp, text, answer)
}

// unreached says why u can't be asked.
func unreached(u *url.URL, err error) error {
	if failed := (*url.Error)(nil); errors.As(err, &failed) {
		err = failed.Err
	}
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("nobody listens at %s; --addr must be the service's debug listener, whose port is DEBUG_PORT", u.Host)
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("%s doesn't answer in time (--timeout)", u.Host)
	}
	return fmt.Errorf("%s can't be asked: %w", u.Host, err)
}

// understand reads an answer.
func understand(u *url.URL, resp *http.Response, text []byte, answer any) error {
	switch kind := resp.Header.Get("Content-Type"); {
	case resp.StatusCode == http.StatusUnauthorized:
		return errors.New("the service lets nobody in without a token that it knows: set ADMIN_TOKEN or --token (or --cert and --key, where it takes certificates)")
	case kind != "application/json":
		return fmt.Errorf("%s does not answer as the admin API does (%s); it should be the debug listener of a service with ADMIN_TOKEN, and https where that has TLS", u.Host, resp.Status)
	case resp.StatusCode == http.StatusOK:
		if err := json.Unmarshal(text, answer); err != nil {
			return fmt.Errorf("%s gives an answer that can't be read: %w", u.Host, err)
		}
		return nil
	}
	var p admin.Problems
	if err := json.Unmarshal(text, &p); err != nil || len(p.Problems) == 0 {
		return fmt.Errorf("%s: %s", u.Host, resp.Status)
	}
	for i, line := range p.Problems {
		p.Problems[i] = printable(line)
	}
	return errors.New(strings.Join(p.Problems, "\n"))
}

// group makes cmd one that only holds others: alone it tells which.
func group(cmd *cobra.Command) *cobra.Command {
	cmd.Args = cobra.NoArgs
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	return cmd
}

// table prints rows in columns. A row of one cell is printed as it is.
func table(out io.Writer, rows [][]string) {
	var widths []int
	for _, row := range rows {
		for i, cell := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			if len(row) > 1 {
				widths[i] = max(widths[i], utf8.RuneCountInString(cell))
			}
		}
	}
	for _, row := range rows {
		var line strings.Builder
		for i, cell := range row {
			fmt.Fprintf(&line, "%-*s  ", widths[i], cell)
		}
		fmt.Fprintln(out, strings.TrimRight(line.String(), " "))
	}
}

// inWords is a time that is d away: "in 59m", "12s ago".
func inWords(d time.Duration) string {
	text := roughly(d.Abs())
	if d < 0 {
		return text + " ago"
	}
	return "in " + text
}

// roughly is d in its two largest units: "3d4h", "59m".
func roughly(d time.Duration) string {
	const day = 24 * time.Hour
	two := func(large, small time.Duration, names ...string) string {
		d = d.Round(small)
		text := strconv.FormatInt(int64(d/large), 10) + names[0]
		if rest := d % large / small; rest > 0 {
			text += strconv.FormatInt(int64(rest), 10) + names[1]
		}
		return text
	}
	switch {
	case d.Round(time.Minute) >= day:
		return two(day, time.Hour, "d", "h")
	case d.Round(time.Minute) >= time.Hour:
		return two(time.Hour, time.Minute, "h", "m")
	case d.Round(time.Second) >= time.Minute:
		return two(time.Minute, time.Minute, "m")
	}
	return two(time.Second, time.Second, "s")
}

// printable is s, quoted if a terminal would not show it as it is.
func printable(s string) string {
	for _, r := range s {
		if !strconv.IsPrint(r) || r == utf8.RuneError {
			return strconv.Quote(s)
		}
	}
	return s
}

// orDash is s, or a dash if there is nothing.
func orDash(s string) string { return cmp.Or(printable(s), "-") }

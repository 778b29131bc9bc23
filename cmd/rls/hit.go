package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/spf13/cobra"
	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/seed-81f232ab/rls/internal/clienttls"
)

// exitOverLimit is the exit code of rls hit when a call was over its limit.
const exitOverLimit exitCode = 2

// hitFlags are the flags of rls hit.
type hitFlags struct {
	addr, domain string
	hits         int64
	times        int
	rate         float64
	timeout      time.Duration
	quiet        bool

	tls                   bool
	ca, cert, key, server string
}

func newHit() *cobra.Command {
	var f hitFlags
	cmd := &cobra.Command{
		Use:   "hit -d DOMAIN KEY=VALUE[,KEY=VALUE…] [KEY=VALUE[,KEY=VALUE…] …]",
		Short: "Ask a running service whether a request may pass",
		Long: "Sends a request with one descriptor for each argument and prints the decisions.\n" +
			descriptorHelp + "\n\n" +
			"Exit code: 0 if every call was OK, 2 if one was over its limit, 1 on errors.",
		Example: "  rls hit -d shop remote_address=10.0.0.1 -n 6\n" +
			"  rls hit -d shop service=checkout,path=/orders tenant=acme --rate 50",
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if f.times < 0 || !(f.rate >= 0) {
				return errors.New("-n and --rate can't be below 0")
			}
			req, err := f.request(args)
			if err != nil {
				return err
			}
			return f.run(cmd.Context(), cmd.OutOrStdout(), req)
		},
	}
	fs := cmd.Flags()
	fs.StringVarP(&f.addr, "addr", "a", "localhost:8081", "the service's gRPC address, host:port or unix:///path")
	fs.StringVarP(&f.domain, "domain", "d", "", "the domain of the limits (required)")
	fs.Int64Var(&f.hits, "hits", 1, "hits_addend of each descriptor: 0 peeks, negative gives back")
	fs.IntVarP(&f.times, "times", "n", 0, "how many calls (default 1, or with --rate until interrupted)")
	fs.Float64Var(&f.rate, "rate", 0, "calls per second; 0: as fast as they are answered")
	fs.DurationVar(&f.timeout, "timeout", time.Second, "how long to wait for each answer")
	fs.BoolVarP(&f.quiet, "quiet", "q", false, "print the summary only")
	fs.BoolVar(&f.tls, "tls", false, "use TLS")
	fs.StringVar(&f.ca, "ca", "", "PEM file of authorities to trust besides the system's (with --tls)")
	fs.StringVar(&f.cert, "cert", "", "PEM file of the client's certificate (with --tls)")
	fs.StringVar(&f.key, "key", "", "PEM file of its key (with --tls)")
	fs.StringVar(&f.server, "server-name", "", "name to verify the server's certificate against (with --tls)")
	_ = cmd.MarkFlagRequired("domain")
	return cmd
}

// request makes the request of the command line.
func (f *hitFlags) request(args []string) (*rlsv3.RateLimitRequest, error) {
	req := &rlsv3.RateLimitRequest{Domain: f.domain}
	for _, arg := range args {
		t, err := readRequest(f.domain, arg)
		if err != nil {
			return nil, err
		}
		d := &ratelimitv3.RateLimitDescriptor{Entries: t.Entries}
		if f.hits != 1 {
			d.HitsAddend = wrapperspb.UInt64(uint64(max(f.hits, -f.hits)))
			d.IsNegativeHits = f.hits < 0
		}
		req.Descriptors = append(req.Descriptors, d)
	}
	return req, nil
}

func (f *hitFlags) run(ctx context.Context, out io.Writer, req *rlsv3.RateLimitRequest) error {
	creds, err := f.credentials()
	if err != nil {
		return err
	}
	conn, err := grpc.NewClient(f.addr, grpc.WithTransportCredentials(creds))
	if err != nil {
		return fmt.Errorf("%s: %w", f.addr, err)
	}
	defer conn.Close()
	client := rlsv3.NewRateLimitServiceClient(conn)

	times := f.times
	if times == 0 && f.rate == 0 {
		times = 1
	}
	pace := rate.NewLimiter(rate.Inf, 1)
	if f.rate > 0 {
		pace = rate.NewLimiter(rate.Limit(f.rate), 1)
	}
	var t tally
	for i := 1; times == 0 || i <= times; i++ {
		if pace.Wait(ctx) != nil {
			break // interrupted: the summary is still wanted
		}
		start := time.Now()
		callCtx, cancel := context.WithTimeout(ctx, f.timeout)
		resp, err := client.ShouldRateLimit(callCtx, req)
		cancel()
		if ctx.Err() != nil {
			break
		}
		t.add(resp, err, time.Since(start))
		if !f.quiet {
			printCall(out, i, req, resp, err)
		}
	}
	if err := t.print(out); err != nil {
		return err
	}
	switch {
	case t.failed > 0:
		return exitCode(1)
	case t.over > 0:
		return exitOverLimit
	}
	return nil
}

func (f *hitFlags) credentials() (credentials.TransportCredentials, error) {
	if !f.tls {
		return insecure.NewCredentials(), nil
	}
	c, err := clienttls.Files{CA: f.ca, Cert: f.cert, Key: f.key}.Config()
	if err != nil {
		return nil, err
	}
	c.ServerName = f.server
	return credentials.NewTLS(c), nil
}

// printCall prints a call: its overall code, and for each descriptor the limit
// that decided, what remains of it and when it resets.
func printCall(out io.Writer, i int, req *rlsv3.RateLimitRequest, resp *rlsv3.RateLimitResponse, err error) {
	if err != nil {
		s := status.Convert(err)
		fmt.Fprintf(out, "%4d  ERROR       %s: %s\n", i, s.Code(), s.Message())
		return
	}
	fmt.Fprintf(out, "%4d  %-10s", i, resp.OverallCode)
	for j, st := range resp.Statuses {
		if j > 0 {
			fmt.Fprintf(out, "\n      %-10s", "")
		}
		fmt.Fprintf(out, "  %s: ", asWritten(req.Descriptors[j]))
		l := st.CurrentLimit
		switch {
		case l != nil:
			fmt.Fprintf(out, "%s %s, remaining %d, reset %s", st.Code, ruleText(l), st.LimitRemaining, st.DurationUntilReset.AsDuration())
		case st.LimitRemaining > 0:
			fmt.Fprint(out, "OK, unlimited")
		default:
			fmt.Fprint(out, "OK, no limit")
		}
	}
	for _, h := range resp.ResponseHeadersToAdd {
		fmt.Fprintf(out, "  %s: %s", h.Key, h.Value)
	}
	fmt.Fprintln(out)
}

// ruleText is a limit as it reads: `10 per 15 minutes "name"`.
func ruleText(l *rlsv3.RateLimitResponse_RateLimit) string {
	text := fmt.Sprintf("%d per %s", l.RequestsPerUnit, strings.ToLower(l.Unit.String()))
	if m := l.UnitMultiplier.GetValue(); m > 1 {
		text = fmt.Sprintf("%d per %d %ss", l.RequestsPerUnit, m, strings.ToLower(l.Unit.String()))
	}
	if l.Name != "" {
		text += " " + strconv.Quote(l.Name)
	}
	return text
}

// tally sums up calls.
type tally struct {
	ok, over, failed int
	took             []time.Duration
	lastErr          error
}

func (t *tally) add(resp *rlsv3.RateLimitResponse, err error, took time.Duration) {
	t.took = append(t.took, took)
	switch {
	case err != nil:
		t.failed++
		t.lastErr = err
	case resp.OverallCode == rlsv3.RateLimitResponse_OVER_LIMIT:
		t.over++
	default:
		t.ok++
	}
}

func (t *tally) print(out io.Writer) error {
	if len(t.took) == 0 {
		return errors.New("interrupted before the first call")
	}
	slices.Sort(t.took)
	quantile := func(q float64) time.Duration {
		return t.took[int(q*float64(len(t.took)-1))].Round(time.Microsecond)
	}
	fmt.Fprintf(out, "%d calls: %d OK, %d OVER_LIMIT, %d errors; p50 %s, p99 %s, max %s\n",
		len(t.took), t.ok, t.over, t.failed, quantile(0.5), quantile(0.99), quantile(1))
	if t.lastErr != nil {
		fmt.Fprintf(out, "last error: %v\n", t.lastErr)
	}
	return nil
}

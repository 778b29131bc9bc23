package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/spf13/cobra"
	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/seed-81f232ab/rls/internal/admin/page"
	"github.com/seed-81f232ab/rls/internal/base/clienttls"
	"github.com/seed-81f232ab/rls/internal/base/entrytext"
	"github.com/seed-81f232ab/rls/service"
)

const exitOverLimit exitCode = 2

type hitFlags struct {
	grpcFlags
	hits    int64
	calls   int
	rate    float64
	timeout time.Duration
	isQuiet bool
	asJSON  bool
}

// grpcFlags are the flags of a connection to the gRPC listener, and the domain of the limits.
type grpcFlags struct {
	addr, domain string
	useTLS       bool
	tls          clienttls.Files
}

func (f *grpcFlags) add(cmd *cobra.Command) {
	fs := cmd.Flags()
	fs.StringVarP(&f.addr, "addr", "a", "localhost:"+cmp.Or(os.Getenv("GRPC_PORT"), "8081"), "gRPC listener of the service (GRPC_PORT): host:port or unix:///path")
	addDomainFlag(cmd, &f.domain)
	cmd.ValidArgsFunction = completeDescriptor
	fs.BoolVar(&f.useTLS, "tls", false, "use TLS")
	addTLSFlags(fs, &f.tls, "with --tls")
	fs.StringVar(&f.tls.ServerName, "server-name", "", "name that the certificate of the server must have (with --tls)")
}

func newHit() *cobra.Command {
	var flags hitFlags
	cmd := &cobra.Command{
		Use:   "hit -d DOMAIN KEY=VALUE[,KEY=VALUE…] [KEY=VALUE[,KEY=VALUE…] …]",
		Short: "Send requests to a running service",
		Long: "Sends a request with one descriptor for each argument and prints the decisions.\n" +
			descriptorHelp + "\n\n" +
			"Exit code: 0 if every call was OK, 2 if a call was over its limit, 1 on errors.",
		Example: "  rls hit -d shop remote_address=10.0.0.1 -n 6\n" +
			"  rls hit -d shop service=checkout,path=/orders tenant=acme --rate 50",
		Args: argCount(1, math.MaxInt),
		RunE: func(cmd *cobra.Command, args []string) error {
			if flags.calls < 0 || !(flags.rate >= 0) { // NaN is not >= 0
				return errors.New("-n and --rate must be at least 0")
			}
			req, err := flags.request(args)
			if err != nil {
				return err
			}
			out := cmd.OutOrStdout()
			if !flags.asJSON {
				out = newColourWriter(out)
			}
			return flags.run(cmd.Context(), out, req)
		},
	}
	fs := cmd.Flags()
	flags.add(cmd)
	fs.Int64Var(&flags.hits, "hits", 1, "hits_addend of each descriptor; 0 charges nothing, a negative number refunds hits")
	fs.IntVarP(&flags.calls, "times", "n", 0, "number of calls (default 1, or with --rate until interrupted)")
	fs.Float64Var(&flags.rate, "rate", 0, "calls per second; if 0, each call is sent after the previous answer")
	fs.DurationVar(&flags.timeout, "timeout", time.Second, "how long to wait for an answer")
	fs.BoolVar(&flags.asJSON, "json", false, "print each answer as a line of JSON, and no summary")
	fs.BoolVarP(&flags.isQuiet, "quiet", "q", false, "print the summary only")
	_ = cmd.MarkFlagRequired("domain")
	return cmd
}

func (f *hitFlags) request(args []string) (*rlsv3.RateLimitRequest, error) {
	req := &rlsv3.RateLimitRequest{Domain: f.domain}
	for _, arg := range args {
		t, err := parseRequest(f.domain, arg)
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
	var files *clienttls.Files // nil means plain text
	if f.useTLS {
		files = &f.tls
	}
	creds, err := files.Credentials()
	if err != nil {
		return err
	}
	conn, err := grpc.NewClient(f.addr, grpc.WithTransportCredentials(creds))
	if err != nil {
		return fmt.Errorf("%s: %w", f.addr, err)
	}
	defer conn.Close()
	client := rlsv3.NewRateLimitServiceClient(conn)

	calls, limiter := f.calls, rate.NewLimiter(rate.Limit(f.rate), 1)
	if f.rate == 0 {
		calls = max(calls, 1)
		limiter.SetLimit(rate.Inf)
	}
	var stats callStats
	hasUnmatchedDescriptor, answersOut := false, out
	if f.isQuiet {
		answersOut = io.Discard
	}
	for i := 1; calls == 0 || i <= calls; i++ {
		if limiter.Wait(ctx) != nil {
			break // interrupted; the summary follows
		}
		start := time.Now()
		callCtx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(ctx, service.AskSwitchesKey, "1"), f.timeout)
		var trailer metadata.MD
		resp, err := client.ShouldRateLimit(callCtx, req, grpc.Trailer(&trailer))
		cancel()
		if ctx.Err() != nil {
			break
		}
		if err != nil {
			err = connectionError(f.addr, true, err)
		}
		stats.add(resp, err, time.Since(start))
		if f.asJSON {
			fmt.Fprintf(out, "%s\n", callJSON(resp, err))
			continue
		}
		hasUnmatchedDescriptor = printCall(answersOut, i, req, resp, readSwitches(trailer), err) || hasUnmatchedDescriptor
	}
	if f.asJSON {
		out = io.Discard // the answers are enough for a program
	}
	if err := stats.print(out); err != nil {
		return err
	}
	if f.isQuiet && stats.lastErr != nil {
		fmt.Fprintf(out, "last error: %v\n", stats.lastErr)
	}
	if hasUnmatchedDescriptor {
		fmt.Fprint(out, "to see which rule has no limit, or why no rule matches: rls explain -d ", page.ShellWord(req.Domain))
		for _, d := range req.Descriptors {
			fmt.Fprint(out, " ", page.ShellWord(entrytext.Format(d.Entries)))
		}
		fmt.Fprintln(out)
	}
	switch {
	case stats.failureCount > 0:
		return exitCode(1)
	case stats.overLimitCount > 0:
		return exitOverLimit
	}
	return nil
}

// callJSON returns the answer to a call in the JSON of the protocol, or its error.
func callJSON(resp *rlsv3.RateLimitResponse, err error) []byte {
	text, _ := protojson.Marshal(resp)
	if err != nil {
		text, _ = json.Marshal(map[string]string{"error": err.Error()})
	}
	return text
}

// printCall prints the answer to a call: the overall code, and for each descriptor the limit that
// decided, with the remaining hits and the reset time. It reports whether no rule matched a descriptor.
func printCall(out io.Writer, callNumber int, req *rlsv3.RateLimitRequest, resp *rlsv3.RateLimitResponse, switches map[int]*service.Switch, err error) (hasUnmatchedDescriptor bool) {
	if err != nil {
		fmt.Fprintf(out, "%4d  ERROR       %v\n", callNumber, err)
		return false
	}
	fmt.Fprintf(out, "%4d  %-10s", callNumber, resp.OverallCode)
	for descriptorIndex, status := range resp.Statuses {
		if descriptorIndex > 0 {
			fmt.Fprintf(out, "\n      %-10s", "")
		}
		text := "OK, no rule limits the descriptor"
		switch limit := status.CurrentLimit; {
		case limit != nil:
			text = fmt.Sprintf("%s %s, remaining %d, reset %s", status.Code, limitText(limit), status.LimitRemaining, status.DurationUntilReset.AsDuration())
		case status.LimitRemaining > 0: // without a rule, LimitRemaining is 0
			text = "OK, unlimited"
		case switches[descriptorIndex] != nil:
			text = "OK, " + offText(switches[descriptorIndex], time.Now())
		default:
			hasUnmatchedDescriptor = true
			if len(req.Descriptors) > 1 { // only a limit of another descriptor can replace the limits of this descriptor
				text += ", or other limits of the request replace its limits"
			}
		}
		fmt.Fprintf(out, "  %s: %s", entrytext.Format(req.Descriptors[descriptorIndex].GetEntries()), text)
	}
	for _, h := range resp.ResponseHeadersToAdd {
		fmt.Fprintf(out, "  %s: %s", h.Key, h.Value)
	}
	fmt.Fprintln(out)
	return hasUnmatchedDescriptor
}

// readSwitches returns the switches in the trailer of an answer. The key is the index of the descriptor. A service of an
// earlier version sends no switches.
func readSwitches(trailer metadata.MD) map[int]*service.Switch {
	switches := map[int]*service.Switch{}
	for _, text := range trailer.Get(service.SwitchesTrailerKey) {
		var parsedSwitches []*service.Switch
		if json.Unmarshal([]byte(text), &parsedSwitches) == nil {
			for _, s := range parsedSwitches {
				switches[s.Descriptor] = s
			}
		}
	}
	return switches
}

func limitText(limit *rlsv3.RateLimitResponse_RateLimit) string {
	unit := "per " + strings.ToLower(limit.Unit.String())
	switch multiplier := limit.UnitMultiplier; {
	case limit.Unit == rlsv3.RateLimitResponse_RateLimit_UNKNOWN && multiplier == nil: // a concurrency limit; a limit with a window of milliseconds has a multiplier
		unit = "at a time"
	case limit.Unit == rlsv3.RateLimitResponse_RateLimit_UNKNOWN: // Envoy has no unit for milliseconds
		unit = "per window"
	case multiplier.GetValue() > 1:
		unit = fmt.Sprintf("per %d %ss", multiplier.GetValue(), strings.ToLower(limit.Unit.String()))
	}
	text := fmt.Sprintf("%d %s", limit.RequestsPerUnit, unit)
	if limit.Name != "" {
		text += " " + strconv.Quote(limit.Name)
	}
	return text
}

type callStats struct {
	overLimitCount, failureCount int
	durations                    []time.Duration
	lastErr                      error
}

func (s *callStats) add(resp *rlsv3.RateLimitResponse, err error, duration time.Duration) {
	s.durations = append(s.durations, duration)
	if err != nil {
		s.failureCount++
		s.lastErr = err
	} else if resp.OverallCode == rlsv3.RateLimitResponse_OVER_LIMIT {
		s.overLimitCount++
	}
}

func (s *callStats) print(out io.Writer) error {
	if len(s.durations) == 0 {
		return errors.New("interrupted before the first call")
	}
	slices.Sort(s.durations)
	quantile := func(q float64) time.Duration {
		return s.durations[int(q*float64(len(s.durations)-1))].Round(time.Microsecond)
	}
	fmt.Fprintf(out, "%d calls: %d OK, %d OVER_LIMIT, %d errors; p50 %s, p99 %s, max %s\n",
		len(s.durations), len(s.durations)-s.overLimitCount-s.failureCount, s.overLimitCount, s.failureCount, quantile(0.5), quantile(0.99), quantile(1))
	return nil
}

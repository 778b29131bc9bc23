package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/seed-81f232ab/rls/internal/base/wait"
	"github.com/seed-81f232ab/rls/internal/observe/decisionlog"
)

const decisionsPath = "/decisions"

// errRefused means that the service refused the stream, so another attempt would not help.
var errRefused = errors.New("stream refused")

func newTail() *cobra.Command {
	tailCommand := &tail{reconnectPauses: wait.Backoff{Initial: 500 * time.Millisecond, Max: 5 * time.Second}}
	var domain, rule, code, source string
	var entries []string
	cmd := &cobra.Command{
		Use:   "tail",
		Short: "Print the decisions of a running service",
		Long: "Prints each decision of a running service on a line, at once, until you interrupt the\n" +
			"command. All filters must match. If the connection is lost, rls tail connects again.\n" +
			"If the reader is too slow, the service drops decisions, and rls tail prints how many.\n" +
			"Lines are in colour on a terminal, unless NO_COLOR is set.",
		Example: "  rls tail --code OVER_LIMIT\n" +
			"  rls tail --admin https://rls:6070 --rule 'shop > tenant' --entry tenant=acme --json",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			tailCommand.query = url.Values{"domain": {domain}, "rule": {rule}, "code": {code}, "source": {source}, "entry": entries}
			if _, err := decisionlog.ParseFilter(tailCommand.query); err != nil {
				return err
			}
			tailCommand.out, tailCommand.errOut = cmd.OutOrStdout(), cmd.ErrOrStderr()
			tailCommand.hasColours = isColourTerminal(tailCommand.out)
			return tailCommand.run(cmd.Context())
		},
	}
	fs := cmd.Flags()
	tailCommand.addFlags(fs)
	addDomainFlag(cmd, &domain)
	cmd.Flag("domain").Usage = "only this domain"
	fs.StringVar(&rule, "rule", "", "only rules whose path contains this text, such as 'shop > tenant'")
	_ = cmd.RegisterFlagCompletionFunc("rule", completeRule)
	fs.StringVar(&code, "code", "", "only this code: OK, OVER_LIMIT or ERROR")
	fs.StringVar(&source, "source", "", "only decisions of this source, such as deny_cache or fallback")
	fs.StringArrayVar(&entries, "entry", nil, "only descriptors with this entry, KEY or KEY=VALUE; can be given more than once")
	fs.BoolVar(&tailCommand.asJSON, "json", false, "print the lines of the stream as JSON")
	return cmd
}

type tail struct {
	adminClient
	query           url.Values // the filters; see decisionlog.ParseFilter
	out, errOut     io.Writer
	hasColours      bool
	reconnectPauses wait.Backoff
}

// run prints decisions until ctx is done. It returns an error if the first connection fails, or if
// the service refuses the stream.
func (t *tail) run(ctx context.Context) error {
	pauses := t.reconnectPauses.Start()
	for isFirst := true; ; isFirst = false {
		wasConnected, err := t.stream(ctx, isFirst)
		switch {
		case ctx.Err() != nil:
			return nil
		case isFirst && !wasConnected || errors.Is(err, errRefused):
			return err
		case wasConnected:
			pauses.Reset()
			fmt.Fprintf(t.errOut, "rls: %v; connecting again\n", err)
		}
		if !wait.Sleep(ctx, pauses.NextBackOff()) {
			return nil
		}
	}
}

// stream prints the lines of one connection. wasConnected reports whether the stream had begun.
func (t *tail) stream(ctx context.Context, isFirst bool) (wasConnected bool, err error) {
	// A connection without decisions and heartbeats is lost.
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	silenceTimer := time.AfterFunc(3*decisionlog.HeartbeatPause, func() { cancel(errors.New("no data from the service")) })
	defer silenceTimer.Stop()

	resp, err := t.open(ctx, http.MethodGet, decisionsPath, t.query, nil)
	if err != nil {
		return false, err
	}
	defer resp.Body.Close()
	host := resp.Request.URL.Host
	isFound, isStream := resp.StatusCode != http.StatusNotFound, resp.Header.Get("Content-Type") == decisionlog.ContentType
	if isFound && resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<10))
		return false, fmt.Errorf("%w: %s: %s", errRefused, host, printable(strings.TrimSpace(string(text))))
	}
	if !isFound || !isStream {
		return false, fmt.Errorf("%w: %s: got no stream of decisions; check that --admin is the debug listener of an rls with %s", errRefused, host, decisionsPath)
	}
	if !isFirst {
		fmt.Fprintln(t.errOut, "rls: connected again")
	}
	scanner := bufio.NewScanner(resp.Body)
	scanner.Buffer(nil, 1<<20)
	for scanner.Scan() {
		silenceTimer.Reset(3 * decisionlog.HeartbeatPause)
		if err := t.printLine(scanner.Bytes()); err != nil {
			return true, fmt.Errorf("%w: %w", errRefused, err)
		}
	}
	err = scanner.Err()
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err == nil {
		err = errors.New("stream ended by the service")
	}
	return true, fmt.Errorf("%s: %w", host, err)
}

// printLine prints a line of the stream. It returns an error if the line is invalid, or if the write fails.
func (t *tail) printLine(line []byte) error {
	if len(line) == 0 { // a heartbeat
		return nil
	}
	var parsedLine decisionlog.Line
	if err := json.Unmarshal(line, &parsedLine); err != nil {
		return errors.New("invalid line; check that rls and the service have the same version (rls --version)")
	}
	var err error
	switch {
	case t.asJSON && parsedLine.Dropped > 0:
		_, err = t.out.Write(decisionlog.EncodeLine(decisionlog.Drops{Time: parsedLine.Time, Dropped: parsedLine.Dropped, Reason: parsedLine.Reason}))
	case t.asJSON:
		_, err = t.out.Write(decisionlog.EncodeLine(parsedLine.Record))
	case parsedLine.Dropped > 0:
		_, err = fmt.Fprintf(t.out, "%s  %d decisions dropped: %s\n", formatTime(parsedLine.Time), parsedLine.Dropped, printable(parsedLine.Reason))
	default:
		_, err = io.WriteString(t.out, t.lineText(&parsedLine.Record))
	}
	return err
}

func (t *tail) lineText(record *decisionlog.Record) string {
	colour := green
	switch {
	case record.Code == decisionlog.Failed:
		colour = magenta
	case record.Code == decisionlog.OverLimit && record.Shadow:
		colour = yellow
	case record.Code == decisionlog.OverLimit:
		colour = red
	}
	code := addColour(t.hasColours, colour, fmt.Sprintf("%-10s", printable(string(record.Code))))
	var line strings.Builder
	line.WriteString(addColour(t.hasColours, dim, formatTime(record.Time)) + "  " + code + "  ")
	_ = answers.ExecuteTemplate(&line, "decision", record) // ExecuteTemplate fails only if the template does not fit Record
	return line.String()
}

func formatTime(moment time.Time) string { return moment.Local().Format("15:04:05.000") }

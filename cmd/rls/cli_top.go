package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/seed-81f232ab/rls/internal/observe/live"
)

// newTop returns the command rls top.
func newTop() *cobra.Command {
	t := &top{now: time.Now}
	var once bool
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Show the state and the traffic of a running service",
		Long: "Shows the state of a running service, its traffic, its busiest rules and keys, and its last\n" +
			"changes. The screen changes each second. The key q ends the command. With --once, or if the\n" +
			"output is not a terminal, rls top prints one screen.\n" +
			"The screen is in colour, unless NO_COLOR is set.",
		Example: "  rls top\n" +
			"  rls top --admin https://rls:6070 --once",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			out := cmd.OutOrStdout()
			switch {
			case t.asJSON:
				return t.printJSON(cmd.Context(), out)
			case once || !isScreen(out):
				return t.printOnce(cmd.Context(), out)
			}
			t.colour = isColourTerminal(out)
			return t.run(cmd.Context(), os.Stdin, out.(*os.File))
		},
	}
	fs := cmd.Flags()
	t.debugConnection.addFlags(fs, "admin")
	fs.DurationVar(&t.timeout, "timeout", 5*time.Second, "how long to wait for an answer")
	fs.BoolVar(&t.asJSON, "json", false, "print one snapshot as JSON")
	fs.BoolVar(&once, "once", false, "print one screen as plain text")
	return cmd
}

// isScreen reports whether out is a terminal that can move its cursor.
func isScreen(out io.Writer) bool {
	f, ok := out.(*os.File)
	return ok && os.Getenv("TERM") != "dumb" && term.IsTerminal(int(f.Fd()))
}

// top shows snapshots of a service.
type top struct {
	adminClient
	colour bool
	now    func() time.Time
}

// fetch returns the snapshot of this moment.
func (t *top) fetch(ctx context.Context) (*live.Snapshot, error) {
	s := &live.Snapshot{}
	if err := t.callPath(ctx, http.MethodGet, live.SnapshotPath, nil, nil, s); err != nil {
		return nil, err
	}
	return s, nil
}

func (t *top) printJSON(ctx context.Context, out io.Writer) error {
	var text json.RawMessage
	if err := t.callPath(ctx, http.MethodGet, live.SnapshotPath, nil, nil, &text); err != nil {
		return err
	}
	var indented bytes.Buffer
	if err := json.Indent(&indented, text, "", "  "); err != nil {
		return err
	}
	indented.WriteByte('\n')
	_, err := indented.WriteTo(out)
	return err
}

// onceWidth is the width of a screen that goes to a file or a pipe.
const onceWidth = 120

func (t *top) printOnce(ctx context.Context, out io.Writer) error {
	s, err := t.fetch(ctx)
	if err != nil {
		return err
	}
	screen := topScreen{width: onceWidth, location: time.Local}
	_, err = io.WriteString(out, strings.Join(screen.lines(s, ""), "\n")+"\n")
	return err
}

// Control sequences of terminals.
const (
	openScreen  = "\x1b[?1049h\x1b[?25l" // alternate screen, no cursor
	closeScreen = "\x1b[?25h\x1b[?1049l"
	cursorHome  = "\x1b[H"
	clearLine   = "\x1b[K"
	clearBelow  = "\x1b[J"
)

// Pauses of rls top.
const (
	fetchPause = time.Second
	sizePause  = 200 * time.Millisecond // how often the size of the terminal is read
)

// run shows snapshots until ctx is done or a key quits. It returns an error if there is no
// first snapshot.
func (t *top) run(ctx context.Context, in, out *os.File) error {
	first, err := t.fetch(ctx)
	if err != nil {
		return err
	}
	if state, err := term.MakeRaw(int(in.Fd())); err == nil { // else keys need a newline
		defer func() { _ = term.Restore(int(in.Fd()), state) }()
	}
	_, _ = io.WriteString(out, openScreen)
	defer func() { _, _ = io.WriteString(out, closeScreen) }()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go quitOnKey(in, cancel)

	size := func() (width, height int) {
		width, height, err := term.GetSize(int(out.Fd()))
		if err != nil || width <= 0 || height <= 0 {
			return 80, 24
		}
		return width, height
	}
	return t.showScreens(ctx, first, size, out)
}

// fetched is the result of fetch.
type fetched struct {
	snapshot *live.Snapshot
	err      error
}

// showScreens draws first and each further snapshot until ctx is done.
func (t *top) showScreens(ctx context.Context, first *live.Snapshot, size func() (width, height int), out io.Writer) error {
	results := make(chan fetched)
	done := make(chan struct{})
	defer func() { <-done }()
	go func() {
		defer close(done)
		t.pollSnapshots(ctx, results)
	}()
	screen := topScreen{hasColours: t.colour, location: time.Local}
	snapshot, problem := first, ""
	sizes := time.NewTicker(sizePause)
	defer sizes.Stop()
	draw := func() error { return screen.draw(out, snapshot, problem) }
	screen.width, screen.height = size()
	for err := draw(); ; {
		if err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case r := <-results:
			if r.err != nil {
				problem = r.err.Error()
			} else {
				snapshot, problem = r.snapshot, ""
			}
			err = draw()
		case <-sizes.C:
			if width, height := size(); width != screen.width || height != screen.height {
				screen.width, screen.height = width, height
				err = draw()
			}
		}
	}
}

// pollSnapshots sends a snapshot each second until ctx is done.
func (t *top) pollSnapshots(ctx context.Context, results chan<- fetched) {
	ticker := time.NewTicker(fetchPause)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		s, err := t.fetch(ctx)
		select {
		case <-ctx.Done():
			return
		case results <- fetched{s, err}:
		}
	}
}

// quitOnKey calls quit when q, Ctrl-C or Ctrl-D is read from in, or when in ends with an
// error other than its end.
func quitOnKey(in io.Reader, quit func()) {
	key := make([]byte, 1)
	for {
		_, err := in.Read(key)
		if errors.Is(err, io.EOF) {
			return // there is no keyboard
		}
		if err != nil || strings.ContainsRune("qQ\x03\x04", rune(key[0])) {
			quit()
			return
		}
	}
}

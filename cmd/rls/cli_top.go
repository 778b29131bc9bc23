package main

import (
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

	"github.com/seed-81f232ab/rls/internal/base/wait"
	"github.com/seed-81f232ab/rls/internal/observe/live"
	"github.com/seed-81f232ab/rls/internal/whatif/explain"
)

// newTop returns the command rls top.
func newTop() *cobra.Command {
	t := &top{}
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
	t.addFlags(fs, "admin")
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
}

// fetch returns the snapshot of this moment.
func (t *top) fetch(ctx context.Context) (*live.Snapshot, error) {
	s := &live.Snapshot{}
	return s, t.call(ctx, http.MethodGet, live.SnapshotPath, nil, nil, s)
}

func (t *top) printJSON(ctx context.Context, out io.Writer) error {
	var snapshot json.RawMessage
	if err := t.call(ctx, http.MethodGet, live.SnapshotPath, nil, nil, &snapshot); err != nil {
		return err
	}
	return explain.EncodeJSON(out, snapshot)
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

// fetchPause is the pause between two snapshots.
const fetchPause = time.Second

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

// showScreens draws s and further snapshots until ctx is done.
func (t *top) showScreens(ctx context.Context, s *live.Snapshot, size func() (width, height int), out io.Writer) error {
	screen := topScreen{hasColours: t.colour, location: time.Local}
	problem := ""
	for {
		screen.width, screen.height = size()
		if err := screen.draw(out, s, problem); err != nil {
			return err
		}
		if !wait.Sleep(ctx, fetchPause) {
			return nil
		}
		newer, err := t.fetch(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			problem = err.Error()
		default:
			s, problem = newer, ""
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

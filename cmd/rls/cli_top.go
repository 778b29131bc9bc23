package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/seed-81f232ab/rls/internal/base/wait"
	"github.com/seed-81f232ab/rls/internal/observe/live"
)

func newTop() *cobra.Command {
	t := &top{}
	var printsOnce bool
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Show the state and the traffic of a running service",
		Long: "Shows the state of a running service, its traffic, its busiest rules and keys, and its last\n" +
			"changes. The screen changes each second. The key q ends the command. With --once, or if the\n" +
			"output is not a terminal, rls top prints one screen.\n" +
			"The table REPLICAS lists all replicas if OVERRIDES_ENABLED is set and rls can read Redis. With\n" +
			"several addresses in --admin, the table lists the replicas at these addresses. All other parts of\n" +
			"the screen come from the first replica that answers.\n" +
			"The screen is in colour, unless NO_COLOR is set.",
		Example: "  rls top\n" +
			"  rls top --admin https://rls:6070 --once\n" +
			"  rls top --admin 10.0.0.1:6070,10.0.0.2:6070",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			out := cmd.OutOrStdout()
			if t.asJSON || printsOnce || !isScreen(out) {
				s, err := t.fetch(cmd.Context())
				if err != nil {
					return err
				}
				return printAs(out, t.asJSON, s, func(out io.Writer) error { return printAnswer(out, false, newTopView(s), "top") })
			}
			return t.run(cmd.Context(), os.Stdin, out.(*os.File))
		},
	}
	fs := cmd.Flags()
	t.addFlags(fs)
	t.addAnswerFlags(fs)
	fs.Lookup("admin").Usage = fmt.Sprintf("debug listeners of up to %d replicas, separated by commas: host:port, http://host:port or https://host:port", maxTopReplicas)
	fs.BoolVar(&printsOnce, "once", false, "print one screen as plain text")
	return cmd
}

// isScreen reports whether out is a terminal that can move its cursor.
func isScreen(out io.Writer) bool {
	f, ok := out.(*os.File)
	return ok && os.Getenv("TERM") != "dumb" && term.IsTerminal(int(f.Fd()))
}

type top struct{ adminClient }

const maxTopReplicas = 50

// fetch asks all addresses at once, and returns the snapshot of the first replica that answers. If there are several
// addresses, the fleet of the snapshot is the replicas at these addresses.
func (t *top) fetch(ctx context.Context) (*live.Snapshot, error) {
	addrs := strings.Split(t.addr, ",")
	if len(addrs) > maxTopReplicas {
		return nil, fmt.Errorf("--admin: got %d addresses, want at most %d", len(addrs), maxTopReplicas)
	}
	snapshots, errs := make([]live.Snapshot, len(addrs)), make([]error, len(addrs))
	var calls sync.WaitGroup
	for i := range addrs {
		client := t.adminClient
		client.addr = strings.TrimSpace(addrs[i])
		calls.Go(func() { errs[i] = client.call(ctx, http.MethodGet, live.SnapshotPath, nil, nil, &snapshots[i]) })
	}
	calls.Wait()
	firstAnswer := slices.Index(errs, nil)
	if firstAnswer < 0 {
		return nil, errs[0]
	}
	snapshot := &snapshots[firstAnswer]
	if len(addrs) > 1 {
		var replicas []live.Replica
		var problems []string
		for i := range snapshots {
			if errs[i] != nil {
				problems = append(problems, "No answer from "+addrs[i]+": "+strings.TrimPrefix(errs[i].Error(), addrs[i]+": "))
			} else if f := &snapshots[i].Fleet; len(f.Replicas) > 0 {
				replicas = append(replicas, f.Replicas[0])
			}
		}
		snapshot.SetFleet(live.NewFleet(replicas, 0, problems...))
	}
	return snapshot, nil
}

const (
	openScreen  = "\x1b[?1049h\x1b[?25l\x1b[?7l" // shows the alternate screen, hides the cursor, and breaks no line
	closeScreen = "\x1b[?7h\x1b[?25h\x1b[?1049l"
	cursorHome  = "\x1b[H"
	clearLine   = "\x1b[K"
	clearBelow  = "\x1b[J"
)

// run shows snapshots until ctx is done or the user quits with a key. It returns an error if it gets no first snapshot.
func (t *top) run(ctx context.Context, keyboard, out *os.File) error {
	firstSnapshot, err := t.fetch(ctx)
	if err != nil {
		return err
	}
	if state, err := term.MakeRaw(int(keyboard.Fd())); err == nil { // in raw mode, a key works without Enter
		defer func() { _ = term.Restore(int(keyboard.Fd()), state) }()
	}
	_, _ = io.WriteString(out, openScreen)
	defer func() { _, _ = io.WriteString(out, closeScreen) }()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go quitOnKey(keyboard, cancel)

	size := func() (width, height int) {
		width, height, err := term.GetSize(int(out.Fd()))
		if err != nil || width <= 0 || height <= 0 {
			return 80, 24
		}
		return width, height
	}
	return t.showScreens(ctx, firstSnapshot, size, newColourWriter(out))
}

func (t *top) showScreens(ctx context.Context, snapshot *live.Snapshot, size func() (width, height int), out io.Writer) error {
	view := newTopView(snapshot)
	for {
		width, height := size()
		if err := view.draw(out, width, height); err != nil {
			return err
		}
		if !wait.Sleep(ctx, time.Second) {
			return nil
		}
		newSnapshot, err := t.fetch(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			view.Problem = err.Error()
		default:
			view = newTopView(newSnapshot)
		}
	}
}

// quitOnKey calls quit when it reads q, Ctrl-C or Ctrl-D, or when a read fails. If keyboard is at its end,
// because there is no keyboard, it returns and does not call quit.
func quitOnKey(keyboard io.Reader, quit func()) {
	key := make([]byte, 1)
	for {
		_, err := keyboard.Read(key)
		if errors.Is(err, io.EOF) {
			return // there is no keyboard
		}
		if err != nil || strings.ContainsRune("qQ\x03\x04", rune(key[0])) {
			quit()
			return
		}
	}
}

type topView struct {
	*live.Snapshot
	Problem string // the reason why the snapshot is old, or empty
	MaxRows int    // bounds the rows of each list
}

func newTopView(s *live.Snapshot) *topView { return &topView{Snapshot: s, MaxRows: math.MaxInt} }

// Age returns the time since the start of the process.
func (v *topView) Age() time.Duration { return v.Time.Sub(v.Started).Round(time.Second) }

// draw overwrites the previous screen. It cuts lines that are wider than the screen.
func (v *topView) draw(out io.Writer, width, height int) error {
	const fixedLines, lists = 7, 5
	v.MaxRows = max((height-fixedLines)/lists-1, 1)
	var text, screen bytes.Buffer
	if err := printAnswer(&text, false, v, "top"); err != nil {
		return err
	}
	lines := strings.FieldsFunc(text.String(), func(r rune) bool { return r == '\n' }) // has no empty lines
	screen.WriteString(cursorHome)
	for i, line := range lines[:min(len(lines), height)] {
		if i > 0 {
			screen.WriteString("\r\n")
		}
		runes := []rune(line)
		screen.WriteString(string(runes[:min(len(runes), width)]) + clearLine)
	}
	screen.WriteString(clearBelow)
	_, err := out.Write(screen.Bytes())
	return err
}

var levelMarks = map[live.Level]string{live.Well: "✓", live.Warning: "▲", live.Trouble: "✗"}

// keysNote returns the end of the title of a list of keys. It says that the keys are hashed or not recorded.
func keysNote(keys live.TopKeys) string {
	switch {
	case keys.Mode == live.KeysOff:
		return " (off: TOP_KEYS)"
	case keys.Hidden:
		return " (hashed; --token shows them)"
	case keys.Mode == live.KeysHashed:
		return " (hashed)"
	}
	return ""
}

// sparkline draws the points of the last five minutes as bars, one bar in each column. A bar of unknown points is a space.
func sparkline(points []live.Value, columns int) string {
	levels := []rune("▁▂▃▄▅▆▇█")
	const maxPoints = 60 // five minutes have a point for each five seconds
	pointsPerColumn := maxPoints / columns
	maxValue := max(highestPoint(points), math.SmallestNonzeroFloat64)
	text := make([]rune, columns)
	for i := range text {
		end := max(len(points)-(columns-1-i)*pointsPerColumn, 0)
		text[i] = ' '
		if value := highestPoint(points[max(end-pointsPerColumn, 0):end]); value >= 0 {
			text[i] = levels[min(int(value/maxValue*float64(len(levels))), len(levels)-1)]
		}
	}
	return string(text)
}

// highestPoint returns the highest known point, or -1 if no point is known.
func highestPoint(points []live.Value) float64 {
	value := -1.0
	for _, p := range points {
		if p.IsKnown() {
			value = max(value, float64(p))
		}
	}
	return value
}

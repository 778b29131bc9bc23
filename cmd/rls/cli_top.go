package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/mattn/go-runewidth"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/seed-81f232ab/rls/internal/admin/page"
	"github.com/seed-81f232ab/rls/internal/base/wait"
	"github.com/seed-81f232ab/rls/internal/observe/live"
	"github.com/seed-81f232ab/rls/internal/observe/timeline"
	"github.com/seed-81f232ab/rls/internal/whatif/reports"
)

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
	t.addFlags(fs)
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
	return reports.JSON(out, snapshot)
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

// topScreen draws snapshots as text.
type topScreen struct {
	width      int
	height     int // in lines; 0 means no limit
	hasColours bool
	location   *time.Location
}

// draw writes a screen. It overwrites the previous screen line by line.
func (t *topScreen) draw(out io.Writer, s *live.Snapshot, problem string) error {
	var b strings.Builder
	b.WriteString(cursorHome)
	for i, line := range t.lines(s, problem) {
		if i > 0 {
			b.WriteString("\r\n")
		}
		b.WriteString(line + clearLine)
	}
	b.WriteString(clearBelow)
	_, err := io.WriteString(out, b.String())
	return err
}

// lines returns the lines of a screen. problem is the reason why s is old, or empty.
func (t *topScreen) lines(s *live.Snapshot, problem string) []string {
	lines := append(t.headLines(s, problem), "")
	rules := t.ruleLines(&s.Rules)
	keys := t.keyLines(&s.Keys)
	changes := t.changeLines(s.Events)
	if t.height > 0 {
		// The changes get a quarter of the remaining lines, and the keys get a third. The rules
		// get all others.
		rest := max(t.height-len(lines)-2, 0)
		changes = changes[:min(len(changes), max(rest/4, 2))]
		keys = keys[:min(len(keys), max(rest/3, 2))]
		rules = rules[:min(len(rules), max(rest-len(keys)-len(changes), 2))]
	}
	lines = slices.Concat(lines, rules, []string{""}, keys, []string{""}, changes)
	if t.height > 0 {
		lines = lines[:min(len(lines), t.height)]
	}
	return lines
}

// levelMarks show the level of the state.
var levelMarks = map[live.Level]struct{ symbol, colour string }{
	live.Well: {"✓", green}, live.Warning: {"▲", yellow}, live.Trouble: {"✗", red},
}

// headLines describes the state and the figures.
func (t *topScreen) headLines(s *live.Snapshot, problem string) []string {
	title := fmt.Sprintf("rls %s · %s · up %s", s.Version, s.Instance, s.Time.Sub(s.Started).Round(time.Second))
	clock := s.Time.In(t.location).Format("15:04:05")
	lines := []string{t.inColour(dim, pad(title, t.width-len(clock)-1)+" "+clock)}
	if problem != "" {
		lines = append(lines, t.inColour(red, truncate("figures of "+clock+", trying again: "+problem, t.width)))
	}
	mark := levelMarks[s.State.Level]
	lines = append(lines, t.inColour(mark.colour, truncate(mark.symbol+" "+s.State.Headline, t.width)))
	for _, detail := range s.State.Details[:min(len(s.State.Details), 3)] {
		lines = append(lines, truncate("  "+detail, t.width))
	}
	f := &s.Figures
	spark := func(x live.Series) string { return sparkline(x.Points, 20) }
	lines = append(lines, "",
		truncate(fmt.Sprintf("Calls   %8s/s  %s   p50 %8s  p99 %8s", rateText(f.Calls.Now), spark(f.Calls), durationText(f.P50.Now), durationText(f.P99.Now)), t.width),
		truncate(fmt.Sprintf("Denied  %8s    %s   errors %s/s", percentText(f.DeniedShare.Now), spark(f.DeniedShare), rateText(f.Errors.Now)), t.width))
	if r := s.State.Redis; r != nil {
		p50 := durationText(f.RedisP50.Now)
		if !r.Up {
			p50 = "away"
		}
		lines = append(lines, truncate(fmt.Sprintf("Redis   %8s    %s   p99 %8s  without Redis %s/s",
			p50, spark(f.RedisP50), durationText(f.RedisP99.Now), rateText(f.WithoutRedis.Now)), t.width))
	}
	if s.Figures.Unmatched.HadTraffic() {
		lines = append(lines, truncate(fmt.Sprintf("No rule %8s/s  %s   %s", rateText(f.Unmatched.Now), spark(f.Unmatched), unmatchedText(&s.Keys)), t.width))
	}
	return lines
}

// unmatchedText returns examples of descriptors that no rule limits.
func unmatchedText(keys *live.TopKeys) string {
	var examples []string
	for _, k := range keys.Unmatched {
		text := k.Key
		if keys.Mode == live.KeysHashed {
			text = k.Rule + " " + k.Key
		}
		examples = append(examples, text+" ("+k.Limit+")")
	}
	return strings.Join(examples, ", ")
}

// ruleLines describes the busiest rules.
func (t *topScreen) ruleLines(list *live.RuleList) []string {
	const numbersWidth = 56 // of the columns behind the limit
	limitWidth := min(max(t.width/5, 12), 28)
	pathWidth := max(t.width-limitWidth-numbersWidth-2, 16)
	row := func(path, limit, ok, denied, shadow, use, marks string) string {
		return truncate(fmt.Sprintf("%s %s %8s %8s %8s %5s %s", padEnd(path, pathWidth), pad(limit, limitWidth), ok, denied, shadow, use, marks), t.width)
	}
	lines := []string{t.inColour(dim, row("RULE", "LIMIT", "OK/s", "DENIED/s", "SHADOW/s", "USE", ""))}
	for i := range list.Shown {
		r := &list.Shown[i]
		var limits []string
		for _, l := range r.Limits {
			limits = append(limits, l.Text)
		}
		marks := strings.Join(r.Marks, " ")
		if r.Override != nil && r.Override.ExpiresAt != nil {
			marks += " until " + r.Override.ExpiresAt.In(t.location).Format("15:04")
		}
		line := row(r.Path, strings.Join(limits, " and "), rateText(r.OK), rateText(r.Denied), rateText(r.Shadow), percentText(r.Use), marks)
		switch {
		case r.Denied > 0:
			line = t.inColour(red, line)
		case r.Shadow > 0:
			line = t.inColour(yellow, line)
		}
		lines = append(lines, line)
	}
	var more []string
	if list.More > 0 {
		more = append(more, live.Count(list.More, "more rule")+" with traffic")
	}
	if list.Quiet > 0 {
		more = append(more, live.Count(list.Quiet, "quiet rule"))
	}
	if len(more) > 0 {
		lines = append(lines, t.inColour(dim, truncate(strings.Join(more, ", "), t.width)))
	}
	return lines
}

// narrowWidth is the width below which two lists don't fit side by side.
const narrowWidth = 100

// keyLines describes the hottest and the most denied keys, side by side. A narrow screen has only
// one list: the most denied keys, or the hottest keys if no key is denied.
func (t *topScreen) keyLines(keys *live.TopKeys) []string {
	half := (t.width - 2) / 2
	if t.width < narrowWidth {
		half = t.width
	}
	hottest := t.keyListLines("HOTTEST KEYS", "HITS/s", keys.Mode, keys.Hottest, half, func(k *live.Key) live.Value { return k.Rate })
	denied := t.keyListLines("MOST DENIED KEYS", "DENIED/s", keys.Mode, keys.Denied, half, func(k *live.Key) live.Value { return k.DeniedRate })
	if t.width < narrowWidth {
		list := denied
		if len(keys.Denied) == 0 {
			list = hottest
		}
		list[0] = t.inColour(dim, list[0])
		return list
	}
	var lines []string
	for i := range max(len(hottest), len(denied)) {
		left, right := "", ""
		if i < len(hottest) {
			left = hottest[i]
		}
		if i < len(denied) {
			right = denied[i]
		}
		line := pad(left, half) + "  " + pad(right, half)
		if i == 0 {
			line = t.inColour(dim, line)
		}
		lines = append(lines, strings.TrimRight(line, " "))
	}
	return lines
}

func (t *topScreen) keyListLines(title, rateName string, mode live.KeyMode, keys []live.Key, columns int, keyRate func(*live.Key) live.Value) []string {
	switch mode {
	case live.KeysOff:
		return []string{title + " (off: TOP_KEYS)"}
	case live.KeysHashed:
		title += " (hashed)"
	}
	row := func(key, perSecond, share, used string) string {
		return fmt.Sprintf("%s %9s %6s %11s", pad(key, max(columns-29, 8)), perSecond, share, used)
	}
	lines := []string{row(title, rateName, "SHARE", "USED")}
	for i := range keys {
		k := &keys[i]
		used := "–"
		if k.Spent != nil && k.Capacity != nil {
			used = strconv.FormatInt(*k.Spent, 10) + "/" + strconv.FormatInt(*k.Capacity, 10)
		}
		lines = append(lines, row(k.Key, rateText(keyRate(k)), percentText(k.Share), used))
	}
	if len(keys) == 0 {
		lines = append(lines, "none in the last minutes")
	}
	return lines
}

// changeLines describes the last events, one a line.
func (t *topScreen) changeLines(events []timeline.Event) []string {
	lines := []string{t.inColour(dim, "CHANGES")}
	for i := range events {
		e := &events[i]
		text := e.Time.In(t.location).Format("15:04:05") + " " + e.Text
		for _, a := range e.Attrs {
			text += " · " + a.Name + " " + strings.ReplaceAll(a.Value, "\n", "; ")
		}
		line := truncate(text, t.width)
		if e.Failed {
			line = t.inColour(red, line)
		}
		lines = append(lines, line)
	}
	return lines
}

// inColour returns text in a colour.
func (t *topScreen) inColour(colour, text string) string { return inColour(t.hasColours, colour, text) }

// cells measures text in columns of a terminal, in the same way in all locales.
var cells = &runewidth.Condition{StrictEmojiNeutral: true}

// pad cuts text or adds spaces, so that the text takes as many columns as given.
func pad(text string, columns int) string { return cells.FillRight(truncate(text, columns), columns) }

// padEnd does the same as pad, but it cuts the start of text. The end of a rule's path matters
// most.
func padEnd(text string, columns int) string {
	return cells.FillRight(cells.TruncatePrefix(replaceControls(text), columns, "…"), columns)
}

// truncate shortens text to at most the given columns. It also replaces runes that could control the
// terminal.
func truncate(text string, columns int) string {
	return cells.Truncate(replaceControls(text), columns, "…")
}

// replaceControls replaces each rune that could control a terminal or change the order of other
// runes.
func replaceControls(text string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsGraphic(r) || unicode.Is(unicode.Bidi_Control, r) {
			return unicode.ReplacementChar
		}
		return r
	}, text)
}

// sparkline draws the last points with one bar a column. Unknown points are spaces.
func sparkline(points []live.Value, columns int) string {
	levels := []rune("▁▂▃▄▅▆▇█")
	pointsPerColumn := 60 / columns
	highest := math.SmallestNonzeroFloat64
	for _, p := range points {
		if p.Known() {
			highest = max(highest, float64(p))
		}
	}
	text := make([]rune, columns)
	for i := range text {
		end := max(len(points)-(columns-1-i)*pointsPerColumn, 0)
		value := -1.0 // unknown
		for _, p := range points[max(end-pointsPerColumn, 0):end] {
			if p.Known() {
				value = max(value, float64(p))
			}
		}
		text[i] = ' '
		if value >= 0 {
			text[i] = levels[min(int(value/highest*float64(len(levels))), len(levels)-1)]
		}
	}
	return string(text)
}

// The texts of figures have the digits of the live page. Their units follow without a space.

func rateText(v live.Value) string     { return page.FormatRate(v) }
func percentText(v live.Value) string  { return withoutSpace(page.FormatShare(v)) }
func durationText(v live.Value) string { return withoutSpace(page.FormatDuration(v)) }

func withoutSpace(text string) string {
	return strings.Join(strings.FieldsFunc(text, unicode.IsSpace), "")
}

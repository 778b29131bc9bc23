package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"text/template"
	"time"
	"unicode"

	"github.com/mattn/go-runewidth"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/seed-81f232ab/rls/internal/admin/page"
	"github.com/seed-81f232ab/rls/internal/base/wait"
	"github.com/seed-81f232ab/rls/internal/observe/live"
	"github.com/seed-81f232ab/rls/internal/whatif/reports"
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
			"If OVERRIDES_ENABLED is set and Redis can be read, REPLICAS lists all replicas. With several\n" +
			"addresses in --admin, REPLICAS lists the replicas at these addresses. All other parts of\n" +
			"the screen come from the first replica that answers.\n" +
			"The screen is in colour, unless NO_COLOR is set.",
		Example: "  rls top\n" +
			"  rls top --admin https://rls:6070 --once\n" +
			"  rls top --admin 10.0.0.1:6070,10.0.0.2:6070",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			out := cmd.OutOrStdout()
			if t.asJSON || printsOnce || !isScreen(out) {
				return t.printOnce(cmd.Context(), out)
			}
			t.hasColours = isColourTerminal(out)
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

type top struct {
	adminClient
	hasColours bool
}

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

func (t *top) printOnce(ctx context.Context, out io.Writer) error {
	s, err := t.fetch(ctx)
	if err != nil {
		return err
	}
	return printAs(out, t.asJSON, s, func(out io.Writer) error {
		screen := topScreen{width: onceWidth(out), location: time.Local}
		_, err := io.WriteString(out, strings.Join(screen.lines(s, ""), "\n")+"\n")
		return err
	})
}

// onceWidth returns the width of a screen that is printed once: COLUMNS, the width of the terminal, or 120.
func onceWidth(out io.Writer) int {
	if columns, err := strconv.Atoi(os.Getenv("COLUMNS")); err == nil && columns > 0 {
		return columns
	}
	if f, ok := out.(*os.File); ok {
		if columns, _, err := term.GetSize(int(f.Fd())); err == nil && columns > 0 {
			return columns
		}
	}
	return 120
}

const (
	openScreen  = "\x1b[?1049h\x1b[?25l" // shows the alternate screen and hides the cursor
	closeScreen = "\x1b[?25h\x1b[?1049l"
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
	return t.showScreens(ctx, firstSnapshot, size, out)
}

// showScreens draws snapshot and further snapshots until ctx is done.
func (t *top) showScreens(ctx context.Context, snapshot *live.Snapshot, size func() (width, height int), out io.Writer) error {
	screen := topScreen{hasColours: t.hasColours, location: time.Local}
	problem := ""
	for {
		screen.width, screen.height = size()
		if err := screen.draw(out, snapshot, problem); err != nil {
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
			problem = err.Error()
		default:
			snapshot, problem = newSnapshot, ""
		}
	}
}

// quitOnKey calls quit when it reads q, Ctrl-C or Ctrl-D, or when a read fails. It returns at the end of keyboard.
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

//go:embed top.tmpl
var topTemplate string

// sections has a template for each section of a screen, except the lists of keys, which keyLines makes.
var sections = template.Must(template.New("").Funcs(template.FuncMap{
	"red":       func() string { return red },
	"yellow":    func() string { return yellow },
	"dim":       func() string { return dim },
	"mark":      func(level live.Level) string { return levelMarks[level] },
	"clean":     replaceControls,
	"pad":       pad,
	"rate":      rateText,
	"share":     percentText,
	"duration":  durationText,
	"spark":     func(x live.Series) string { return sparkline(x.Points, 20) },
	"counted":   live.Count[int],
	"megabytes": func(bytes int64) float64 { return float64(bytes) / 1e6 },
	"perSecond": func(x float64) string { return rateText(live.Value(x)) },
	"join":      strings.Join,
	"keysTitle": keysTitle,
	"limits": func(limits []live.Limit) string {
		var texts []string
		for _, l := range limits {
			texts = append(texts, l.Text)
		}
		return strings.Join(texts, " and ")
	},
}).Parse(topTemplate))

var levelMarks = map[live.Level]string{live.Well: green + "✓", live.Warning: yellow + "▲", live.Trouble: red + "✗"}

type topScreen struct {
	width      int
	height     int // in lines; 0 means no limit
	hasColours bool
	location   *time.Location
}

// topView has the values that the templates show.
type topView struct {
	topScreen
	*live.Snapshot
	Problem string // the reason why the snapshot is old, or empty
}

// Age returns the time since the start of the process.
func (v topView) Age() time.Duration { return v.Time.Sub(v.Started).Round(time.Second) }

// TitleWidth returns the width of the title. The clock takes the other columns of the line.
func (v topView) TitleWidth() int { return v.width - len(v.Clock(v.Time)) - 1 }

// Clock returns a time of day.
func (v topView) Clock(moment time.Time) string { return moment.In(v.location).Format("15:04:05") }

// RuleRow returns the line of a rule in the table of rules.
func (v topView) RuleRow(path, limit, ok, denied, shadow, use string) string {
	const numbersWidth = 56 // the width of all columns after the limit
	limitWidth := min(max(v.width/5, 12), 28)
	pathWidth := max(v.width-limitWidth-numbersWidth-2, 16)
	return fmt.Sprintf("%s %s %8s %8s %8s %5s", padEnd(path, pathWidth), pad(limit, limitWidth), ok, denied, shadow, use)
}

// ReplicaRow returns the line of a replica in the table of replicas.
func (v topView) ReplicaRow(name, calls, denied, cpu, memory, blips, version, limits, lastSeen string) string {
	const othersWidth = 84 // the width of all other columns
	return fmt.Sprintf("%s %8s %8s %6s %8s %6s %s %s %s", pad(name, max(v.width-othersWidth, 16)), calls, denied, cpu, memory, blips, pad(version, 16), pad(limits, 9), lastSeen)
}

// KeyRow returns the line of a key in a list that is as wide as the screen.
func (v topView) KeyRow(key, perSecond, share, lastColumn string) string {
	return keyRow(v.width, key, perSecond, share, lastColumn)
}

// section returns the lines of a template. fit cuts or breaks a line that is wider than the screen.
func (v topView) section(name string, fit func(line string, columns int) []string) []string {
	var text strings.Builder
	_ = reports.Text(&text, sections.Lookup(name), v) // Text fails only if the template does not fit topView
	var lines []string
	for line := range strings.Lines(text.String()) {
		line, colour := strings.TrimSuffix(line, "\n"), ""
		if end := strings.IndexByte(line, 'm') + 1; strings.HasPrefix(line, "\x1b[") {
			colour, line = line[:end], line[end:]
		}
		for _, part := range fit(line, v.width) {
			lines = append(lines, addColour(v.hasColours && colour != "", colour, part))
		}
	}
	return lines
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

// lines returns the lines of a screen. problem is the reason why the snapshot is old, or empty.
func (t *topScreen) lines(snapshot *live.Snapshot, problem string) []string {
	view := topView{*t, snapshot, problem}
	state, fitChanges := view.section("state", wrap), wrap
	if t.height > 0 {
		state, fitChanges = state[:min(len(state), max(t.height/2, 2))], cut
	}
	lines := slices.Concat(state, []string{""}, view.section("figures", cut), []string{""})
	rules, callers, keys, changes := view.section("rules", cut), view.section("callers", cut), t.keyLines(&snapshot.Keys), view.section("changes", fitChanges)
	const minReplicasHeight = 32 // on a lower screen, only the state tells how replicas differ
	hasSpace := t.height == 0 || t.height >= minReplicasHeight
	if f := &snapshot.Fleet; hasSpace && (len(f.Replicas) > 1 || f.UnknownSince != nil) {
		replicas := view.section("replicas", cut)
		if t.height > 0 {
			replicas = replicas[:min(len(replicas), max(t.height/4, 2))]
		}
		lines = slices.Concat(lines, replicas, []string{""})
	}
	if t.height > 0 {
		// The callers get up to four of the free lines. The changes get a quarter of the other free lines, the keys get a
		// third of them, and the rules get what is left.
		callers = callers[:min(len(callers), 4)]
		freeLines := max(t.height-len(lines)-len(callers)-3, 0)
		changes = changes[:min(len(changes), max(freeLines/4, 2))]
		keys = keys[:min(len(keys), max(freeLines/3, 2))]
		rules = rules[:min(len(rules), max(freeLines-len(keys)-len(changes), 2))]
	}
	lines = slices.Concat(lines, rules, []string{""}, callers, []string{""}, keys, []string{""}, changes)
	if t.height > 0 {
		lines = lines[:min(len(lines), t.height)]
	}
	return lines
}

// narrowWidth is the width below which two lists don't fit side by side.
const narrowWidth = 100

// keyLines describes the hottest and the most denied keys, side by side. A narrow screen has only
// one list: the most denied keys, or the hottest keys if no key is denied.
func (t *topScreen) keyLines(keys *live.TopKeys) []string {
	columns, isNarrow := (t.width-2)/2, t.width < narrowWidth
	if isNarrow {
		columns = t.width
	}
	lines := keyListLines("HOTTEST KEYS", "HITS/s", keys.Mode, keys.Hottest, columns, func(k *live.Key) live.Value { return k.Rate })
	deniedLines := keyListLines("MOST DENIED KEYS", "DENIED/s", keys.Mode, keys.Denied, columns, func(k *live.Key) live.Value { return k.DeniedRate })
	if isNarrow && len(keys.Denied) > 0 {
		lines = deniedLines
	}
	for i := 0; !isNarrow && i < max(len(lines), len(deniedLines)); i++ {
		if i == len(lines) {
			lines = append(lines, "")
		}
		lines[i] = pad(lines[i], columns)
		if i < len(deniedLines) {
			lines[i] += "  " + deniedLines[i]
		}
	}
	lines[0] = addColour(t.hasColours, dim, lines[0])
	return lines
}

func keyListLines(title, rateName string, mode live.KeyMode, keys []live.Key, columns int, keyRate func(*live.Key) live.Value) []string {
	title = keysTitle(title, mode)
	if mode == live.KeysOff {
		return []string{title}
	}
	lines := []string{keyRow(columns, title, rateName, "SHARE", "USED")}
	for i := range keys {
		key, usedText := &keys[i], "–"
		if key.Spent != nil && key.Capacity != nil {
			usedText = fmt.Sprintf("%d/%d", *key.Spent, *key.Capacity)
			if key.IsShare {
				usedText += " here"
			}
		}
		text := key.Key
		if key.Shadow {
			text = "(shadow) " + text
		}
		lines = append(lines, keyRow(columns, text, rateText(keyRate(key)), percentText(key.Share), usedText))
	}
	if len(keys) == 0 {
		lines = append(lines, "none in the last minutes")
	}
	return lines
}

// keysTitle returns the title of a list of keys. It adds a note if the keys are hashed, or if there are no keys.
func keysTitle(title string, mode live.KeyMode) string {
	switch mode {
	case live.KeysOff:
		title += " (off: TOP_KEYS)"
	case live.KeysHashed:
		title += " (hashed)"
	}
	return title
}

// keyRow returns a line of a list of keys. The line has the given number of columns.
func keyRow(columns int, key, perSecond, share, lastColumn string) string {
	return fmt.Sprintf("%s %9s %6s %14s", pad(key, max(columns-32, 8)), perSecond, share, lastColumn)
}

// terminalText measures text in columns of a terminal, in the same way in all locales.
var terminalText = &runewidth.Condition{StrictEmojiNeutral: true}

// pad cuts text or adds spaces, so that the result has exactly the given number of columns.
func pad(text string, columns int) string {
	return terminalText.FillRight(truncate(text, columns), columns)
}

// padEnd does the same as pad, but it cuts the start of text, because the end of a rule's path matters most.
func padEnd(text string, columns int) string {
	return terminalText.FillRight(terminalText.TruncatePrefix(replaceControls(text), columns, "…"), columns)
}

// truncate cuts text that is wider than columns. It also replaces runes that could control the terminal.
func truncate(text string, columns int) string {
	return terminalText.Truncate(replaceControls(text), columns, "…")
}

// cut does the same as truncate. It returns a single line.
func cut(text string, columns int) []string { return []string{truncate(text, columns)} }

// wrap breaks text that is wider than columns, between words if possible. All lines but the first are indented.
func wrap(text string, columns int) []string {
	const indent, minColumns = "  ", 10
	text, columns = replaceControls(text), max(columns, minColumns)
	var lines []string
	start := ""
	for terminalText.StringWidth(start+text) > columns {
		end := len(terminalText.Truncate(text, columns-len(start), ""))
		if space := strings.LastIndexByte(text[:end+1], ' '); space > len(indent) {
			end = space
		}
		lines = append(lines, start+text[:end])
		start, text = indent, strings.TrimLeft(text[end:], " ")
	}
	return append(lines, start+text)
}

// replaceControls replaces each rune that could control a terminal or change the order of other
// runes. It joins lines with semicolons.
func replaceControls(text string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsGraphic(r) || unicode.Is(unicode.Bidi_Control, r) {
			return unicode.ReplacementChar
		}
		return r
	}, strings.ReplaceAll(text, "\n", "; "))
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

// Figures have the same digits as on the live page, but no space before the unit.

func rateText(v live.Value) string     { return page.FormatRate(v) }
func percentText(v live.Value) string  { return removeSpaces(page.FormatShare(v)) }
func durationText(v live.Value) string { return removeSpaces(page.FormatDuration(v)) }

func removeSpaces(text string) string {
	return strings.Join(strings.FieldsFunc(text, unicode.IsSpace), "")
}

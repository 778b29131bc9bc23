package main

import (
	"bytes"
	"fmt"
	"image/color"
	"os"
	"regexp"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"

	"github.com/seed-81f232ab/rls/test/bench/curves"
)

// Colours of a plot in a light page. A dark page gets the second colour of darkColors.
var (
	ink   = color.RGBA{R: 0x1f, G: 0x23, B: 0x28, A: 0xff}
	paper = color.RGBA{R: 0xfe, G: 0xfe, B: 0xfe, A: 0xff}
	grid  = color.RGBA{R: 0xd8, G: 0xde, B: 0xe4, A: 0xff}
)

// darkColors replaces the colours above for readers who prefer dark pages. The colours of the
// servers are readable on both.
var darkColors = []struct {
	light color.RGBA
	dark  string
}{{ink, "#e6edf3"}, {paper, "#0d1117"}, {grid, "#30363d"}}

// serverColors are the colours of the servers that each run has. Peers take peerColors in turn.
var serverColors = map[string]color.RGBA{
	curves.Nothing:   {R: 0x8c, G: 0x95, B: 0x9f, A: 0xff},
	curves.Local:     {R: 0x8f, G: 0x6b, B: 0xd9, A: 0xff},
	curves.Redis:     {R: 0x2f, G: 0x81, B: 0xd6, A: 0xff},
	curves.Lease:     {R: 0x1a, G: 0x9e, B: 0x6c, A: 0xff},
	curves.Incumbent: {R: 0xd9, G: 0x5f, B: 0x0e, A: 0xff},
}

var peerColors = []color.RGBA{{R: 0xc9, G: 0x4f, B: 0x9c, A: 0xff}, {R: 0xb8, G: 0x8a, B: 0x00, A: 0xff}, {R: 0x00, G: 0x9a, B: 0xa8, A: 0xff}}

// colorOf returns the colour of a server in all plots of a run.
func colorOf(run *curves.Run, server string) color.RGBA {
	peers := 0
	for _, name := range run.Servers() {
		c, known := serverColors[name]
		if !known {
			c = peerColors[peers%len(peerColors)]
			peers++
		}
		if name == server {
			return c
		}
	}
	return ink
}

// newPlot returns an empty plot in the colours above.
func newPlot(title, x, y string) *plot.Plot {
	plot.DefaultFont = font.Font{Typeface: "Liberation", Variant: "Sans"}
	p := plot.New()
	p.BackgroundColor = paper
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = title, x, y
	p.Title.TextStyle.Font.Size = vg.Points(12)
	p.Title.Padding = vg.Points(6)
	p.Title.TextStyle.Color = ink
	for _, axis := range []*plot.Axis{&p.X, &p.Y} {
		axis.Color, axis.Tick.Color = ink, ink
		axis.Label.TextStyle.Color, axis.Tick.Label.Color = ink, ink
		axis.Label.TextStyle.Font.Size = vg.Points(9.5)
		axis.Tick.Label.Font.Size = vg.Points(8.5)
		axis.Tick.Marker = plainTicks{}
	}
	lines := plotter.NewGrid()
	lines.Horizontal.Color, lines.Vertical.Color = grid, grid
	p.Add(lines)
	p.Legend.TextStyle.Color = ink
	p.Legend.TextStyle.Font.Size = vg.Points(9)
	p.Legend.Top, p.Legend.Padding = true, vg.Points(3)
	return p
}

// panel is a plot among others in a file.
type panel = *plot.Plot

const (
	panelWidth  = 4.6 * vg.Inch
	panelHeight = 3.2 * vg.Inch
)

// save draws the panels side by side and one row below the other.
func save(panels [][]panel, path string) error {
	rows, columns := len(panels), len(panels[0])
	canvas := vgsvg.New(panelWidth*vg.Length(columns), panelHeight*vg.Length(rows))
	all := draw.New(canvas)
	all.SetColor(paper)
	all.Fill(all.Rectangle.Path())
	gap := vg.Points(12)
	tiles := draw.Tiles{Rows: rows, Cols: columns, PadX: gap, PadY: gap, PadTop: gap, PadBottom: gap, PadLeft: gap, PadRight: gap}
	for i, row := range plot.Align(panels, tiles, all) {
		for j, area := range row {
			panels[i][j].Draw(area)
		}
	}
	var svg bytes.Buffer
	if _, err := canvas.WriteTo(&svg); err != nil {
		return err
	}
	return os.WriteFile(path, []byte(withThemes(svg.String())), 0o644)
}

// fontFamily matches the font of a text. Readers may not have it, so it gets alternatives of the
// same widths.
var fontFamily = regexp.MustCompile(`font-family:[^;"]*`)

// withThemes adds the colours for dark pages to an SVG, and lets it grow with the page.
func withThemes(svg string) string {
	svg = fontFamily.ReplaceAllString(svg, "font-family:Liberation Sans,Arial,Helvetica,sans-serif")
	var rules strings.Builder
	for _, c := range darkColors {
		name := fmt.Sprintf("#%02X%02X%02X", c.light.R, c.light.G, c.light.B)
		svg = strings.ReplaceAll(svg, strings.ToLower(name), name)
		fmt.Fprintf(&rules, "[style*=\"fill:%s\"]{fill:%s!important}[style*=\"stroke:%s\"]{stroke:%s!important}", name, c.dark, name, c.dark)
	}
	return strings.Replace(svg, "<g ", "<style>@media (prefers-color-scheme:dark){"+rules.String()+"}</style>\n<g ", 1)
}

package limitsplan

import (
	"embed"
	"fmt"
	"html/template"
	"io"
	"strings"
	"time"
)

//go:embed plan.html
var pages embed.FS

// pageTemplate shows a page.
var pageTemplate = template.Must(template.New("plan.html").Funcs(template.FuncMap{
	"share":       share,
	"time":        func(t time.Time) string { return t.Format(time.RFC3339) },
	"bucket":      bucketText,
	"points":      points,
	"limits":      func(r RuleReport) string { return r.limitsText() },
	"otherCauses": (*Report).otherCausesText,
}).ParseFS(pages, "plan.html"))

// page is the content of the HTML report.
type page struct {
	*Report
	Limits string // paths of the new limits files
}

// WriteHTML writes r as one page that needs no other file. limits are the paths of the new
// limits files.
func (r *Report) WriteHTML(w io.Writer, limits string) error {
	return pageTemplate.Execute(w, page{Report: r, Limits: limits})
}

// Size of a chart in SVG units.
const (
	chartWidth  = 600.0
	chartHeight = 100.0
)

// points returns the points of an SVG line through all numbers. The line reaches the top at
// the largest number of highest.
func points(numbers []uint64, highest ...[]uint64) string {
	top := uint64(1)
	for _, list := range append(highest, numbers) {
		for _, n := range list {
			top = max(top, n)
		}
	}
	step := chartWidth / float64(max(len(numbers)-1, 1))
	var b strings.Builder
	for i, n := range numbers {
		fmt.Fprintf(&b, "%.1f,%.1f ", float64(i)*step, chartHeight-chartHeight*float64(n)/float64(top))
	}
	return strings.TrimSpace(b.String())
}

package deploy

import (
	"encoding/json"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// dashboard is the part of a Grafana dashboard that the tests check.
type dashboard struct {
	UID        string
	Panels     []panel
	Templating struct {
		List []struct {
			Name, Type, Definition string
		}
	}
	Annotations struct{ List []struct{ Name, Expr string } }
}

type panel struct {
	ID                       int
	Type, Title, Description string
	GridPos                  struct{ H, W, X, Y int }
	Datasource               struct{ UID string }
	Targets                  []struct{ Expr, RefID string }
}

func readDashboard(t *testing.T) dashboard {
	t.Helper()
	var d dashboard
	require.NoError(t, json.Unmarshal([]byte(read(t, "deploy/grafana/rls.json")), &d))
	require.NotEmpty(t, d.Panels)
	return d
}

// withoutVariables replaces the variables of Grafana in a query by values.
var withoutVariables = strings.NewReplacer(
	"$__rate_interval", "1m", "$__range", "1h", "$cluster", ".*", "$job", "rls", "$instance", ".*", "$domain", "shop", "$rule", "shop > tenant",
)

func TestDashboardQueriesUseExportedMetrics(t *testing.T) {
	d, exported := readDashboard(t), exportedMetrics(t)
	for _, p := range d.Panels {
		for _, target := range p.Targets {
			assertExported(t, exported, withoutVariables.Replace(target.Expr))
		}
	}
	for _, a := range d.Annotations.List {
		assertExported(t, exported, withoutVariables.Replace(a.Expr))
	}
	for _, v := range d.Templating.List {
		if v.Type == "query" {
			call := labelValues.FindStringSubmatch(v.Definition)
			require.NotNil(t, call, v.Definition)
			assertExported(t, exported, "count by ("+call[2]+") ("+withoutVariables.Replace(call[1])+")")
		}
	}
}

// labelValues matches a query of Grafana for the values of a label.
var labelValues = regexp.MustCompile(`^label_values\((.+), (\w+)\)$`)

func TestDashboardPanelsAreComplete(t *testing.T) {
	d := readDashboard(t)
	ids, titles, cells, rows := map[int]bool{}, map[string]bool{}, map[[2]int]string{}, 0
	for _, p := range d.Panels {
		assert.False(t, ids[p.ID], "id %d is used twice", p.ID)
		ids[p.ID] = true
		assert.NotEmpty(t, p.Title)
		assert.False(t, titles[p.Title], "title %s is used twice", p.Title)
		titles[p.Title] = true
		for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
			for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
				assert.Empty(t, cells[[2]int{x, y}], "%s lies on another panel", p.Title)
				cells[[2]int{x, y}] = p.Title
			}
		}
		assert.LessOrEqual(t, p.GridPos.X+p.GridPos.W, 24, p.Title)
		if p.Type == "row" {
			rows++
			continue
		}
		assert.Equal(t, "${datasource}", p.Datasource.UID, p.Title)
		assert.NotEmpty(t, p.Targets, p.Title)
	}
	assert.GreaterOrEqual(t, rows, 6)
}

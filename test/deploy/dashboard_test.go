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
	require.NoError(t, json.Unmarshal([]byte(readFile(t, "deploy/grafana/rls.json")), &d))
	require.NotEmpty(t, d.Panels)
	return d
}

// variableValues replaces the variables of Grafana in a query by values.
var variableValues = strings.NewReplacer(
	"$__rate_interval", "1m", "$__range", "1h", "$cluster", ".*", "$job", "rls", "$instance", ".*", "$domain", "shop", "$rule", "shop > tenant",
)

func TestDashboardQueriesUseExportedMetrics(t *testing.T) {
	dashboard, exportedLabels := readDashboard(t), exportedMetrics(t)
	for _, panel := range dashboard.Panels {
		for _, target := range panel.Targets {
			assertExported(t, exportedLabels, variableValues.Replace(target.Expr))
		}
	}
	for _, a := range dashboard.Annotations.List {
		assertExported(t, exportedLabels, variableValues.Replace(a.Expr))
	}
	for _, v := range dashboard.Templating.List {
		if v.Type == "query" {
			call := labelValues.FindStringSubmatch(v.Definition)
			require.NotNil(t, call, v.Definition)
			assertExported(t, exportedLabels, "count by ("+call[2]+") ("+variableValues.Replace(call[1])+")")
		}
	}
}

// labelValues matches a query of Grafana for the values of a label.
var labelValues = regexp.MustCompile(`^label_values\((.+), (\w+)\)$`)

func TestDashboardPanelsAreComplete(t *testing.T) {
	dashboard := readDashboard(t)
	ids, titles, cells, rows := map[int]bool{}, map[string]bool{}, map[[2]int]string{}, 0
	for _, panel := range dashboard.Panels {
		assert.False(t, ids[panel.ID], "id %d is used twice", panel.ID)
		ids[panel.ID] = true
		assert.NotEmpty(t, panel.Title)
		assert.False(t, titles[panel.Title], "title %s is used twice", panel.Title)
		titles[panel.Title] = true
		for x := panel.GridPos.X; x < panel.GridPos.X+panel.GridPos.W; x++ {
			for y := panel.GridPos.Y; y < panel.GridPos.Y+panel.GridPos.H; y++ {
				assert.Empty(t, cells[[2]int{x, y}], "%s lies on another panel", panel.Title)
				cells[[2]int{x, y}] = panel.Title
			}
		}
		assert.LessOrEqual(t, panel.GridPos.X+panel.GridPos.W, 24, panel.Title)
		if panel.Type == "row" {
			rows++
			continue
		}
		assert.Equal(t, "${datasource}", panel.Datasource.UID, panel.Title)
		assert.NotEmpty(t, panel.Targets, panel.Title)
	}
	assert.GreaterOrEqual(t, rows, 6)
}

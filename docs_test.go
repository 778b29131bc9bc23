package rls_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var (
	markdownLink = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading      = regexp.MustCompile(`(?m)^#+ (.+)$`)
	// folderInTable matches a folder such as `internal/base/`.
	folderInTable = regexp.MustCompile("`([a-z][a-z/]*/)`")
	anchorOfRow   = regexp.MustCompile(`<a id="([\w-]+)"></a>`)
	notInAnchor   = regexp.MustCompile(`[^\p{L}\p{N}_ -]`)
)

// TestLinksInDocsResolve checks that each link names a file of the repository, and that
// the file has the heading of the link's anchor.
func TestLinksInDocsResolve(t *testing.T) {
	pages, err := filepath.Glob("docs/*.md")
	require.NoError(t, err)
	require.NotEmpty(t, pages)
	lab, err := filepath.Glob("docs/lab/*.md")
	require.NoError(t, err)
	require.NotEmpty(t, lab)
	for _, page := range append(append(pages, lab...), "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "CODE_OF_CONDUCT.md") {
		for _, link := range markdownLink.FindAllStringSubmatch(readFile(t, page), -1) {
			if strings.Contains(link[1], "://") {
				continue
			}
			name, anchor, _ := strings.Cut(link[1], "#")
			target := page
			if name != "" {
				target = filepath.Join(filepath.Dir(page), name)
			}
			_, err := os.Stat(target)
			if assert.NoError(t, err, "%s links to %s", page, link[1]) && anchor != "" {
				assert.Contains(t, anchors(readFile(t, target)), anchor, "%s links to %s", page, link[1])
			}
		}
	}
}

// TestDesignNamesTheFolderOfEveryPackage checks the table of features in docs/design.md.
func TestDesignNamesTheFolderOfEveryPackage(t *testing.T) {
	design := readFile(t, "docs/design.md")
	isNamed := func(pkg string) bool {
		for ; pkg != "."; pkg = filepath.Dir(pkg) {
			if strings.Contains(design, "`"+pkg+"/`") {
				return true
			}
		}
		return false
	}
	for pkg := range goList(t, "") {
		if !strings.HasPrefix(module, pkg) && pkg != wiringPackage { // all but the root
			assert.True(t, isNamed(pkg), "docs/design.md: no row for %s/", pkg)
		}
	}
	for _, folder := range folderInTable.FindAllStringSubmatch(design, -1) {
		assert.DirExists(t, folder[1])
	}
}

func readFile(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	require.NoError(t, err)
	return string(text)
}

// anchors returns the anchors that GitHub gives to the headings of a page, and those of rows such as <a id="row"></a>.
func anchors(page string) []string {
	var anchorNames []string
	for _, h := range heading.FindAllStringSubmatch(page, -1) {
		title := notInAnchor.ReplaceAllString(strings.ToLower(h[1]), "")
		anchorNames = append(anchorNames, strings.ReplaceAll(title, " ", "-"))
	}
	for _, row := range anchorOfRow.FindAllStringSubmatch(page, -1) {
		anchorNames = append(anchorNames, row[1])
	}
	return anchorNames
}

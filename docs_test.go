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
	notInAnchor  = regexp.MustCompile(`[^\p{L}\p{N}_ -]`)
)

// TestLinksInDocsResolve checks that each link names a file of the repository, and that
// the file has the heading of the link's anchor.
func TestLinksInDocsResolve(t *testing.T) {
	pages, err := filepath.Glob("docs/*.md")
	require.NoError(t, err)
	require.NotEmpty(t, pages)
	for _, page := range append(pages, "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "CODE_OF_CONDUCT.md") {
		for _, link := range markdownLink.FindAllStringSubmatch(readPage(t, page), -1) {
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
				assert.Contains(t, anchors(readPage(t, target)), anchor, "%s links to %s", page, link[1])
			}
		}
	}
}

// TestDesignListsEveryPackage checks the table of folders in docs/design.md.
func TestDesignListsEveryPackage(t *testing.T) {
	design := readPage(t, "docs/design.md")
	for pkg := range goList(t, "") {
		if !strings.HasPrefix(module, pkg) { // all but the root
			assert.True(t, strings.Contains(design, "`"+pkg+"/`"), "docs/design.md: no row for %s/", pkg)
		}
	}
}

func readPage(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	require.NoError(t, err)
	return string(text)
}

// anchors returns the anchors that GitHub gives to the headings of a page.
func anchors(page string) []string {
	var found []string
	for _, h := range heading.FindAllStringSubmatch(page, -1) {
		title := notInAnchor.ReplaceAllString(strings.ToLower(h[1]), "")
		found = append(found, strings.ReplaceAll(title, " ", "-"))
	}
	return found
}

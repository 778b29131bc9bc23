//go:build !race

package limitsfile

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// At full size, a search through all domains for each file would exceed the timeout of go test.
func TestManyDomainsAreParsedInLinearTime(t *testing.T) {
	_, scale := bounds()
	var files []File
	for i := range 2_000 * scale {
		files = append(files, File{fmt.Sprint(i), fmt.Appendf(nil, "domain: d%d", i)})
	}
	set, err := Parse(files, Options{})
	require.NoError(t, err)
	assert.Len(t, set.Domains, len(files))
}

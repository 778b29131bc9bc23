//go:build !race

package boundedyaml

import (
	"strings"
	"testing"
)

// A search that starts again at each part would exceed the timeout of go test.
func TestCauseOfLongLineIsFoundInLinearTime(t *testing.T) {
	for _, part := range []string{"- ", "&a ", "! ", `"a" `, "[", "{a: ", "[&a ", "[a, ", "[\"a\", ", "'\n' ", "a: ", "#", "\t", "- [a]\n", "[\n", "|\n"} {
		for _, before := range []string{"", "a: [", "a: "} {
			findCause([]byte(before + strings.Repeat(part, 1<<16)))
		}
	}
}

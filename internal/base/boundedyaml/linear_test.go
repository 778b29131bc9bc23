//go:build !race

package boundedyaml

import (
	"strings"
	"testing"
)

// A search that starts again at each part would exceed the timeout of go test.
func TestCauseOfLongLineIsFoundInLinearTime(t *testing.T) {
	for _, part := range []string{"- ", "&a ", "! ", `"a" `, "[", "{a: ", "[&a ", "[a, ", "[\"a\", ", "'\n' ", "a: ", "#", "\t", "- [a]\n", "[\n", "|\n"} {
		for _, prefix := range []string{"", "a: [", "a: "} {
			findCause([]byte(prefix + strings.Repeat(part, 1<<16)))
		}
	}
}

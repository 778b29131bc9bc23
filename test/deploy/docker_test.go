package deploy

import (
	"debug/elf"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestImageHasStaticBinary(t *testing.T) {
	file, err := elf.Open(program(t))
	require.NoError(t, err)
	defer file.Close()
	assert.Nil(t, file.Section(".interp"), "a static binary names no dynamic linker")

	out, err := exec.CommandContext(t.Context(), program(t)).CombinedOutput()
	require.Error(t, err, "there are no limits")
	assert.Contains(t, string(out), "/srv/runtime_data/current", "the name ratelimit serves with the incumbent's default path")
}

func TestImageHasPathsUserAndPortsOfIncumbent(t *testing.T) {
	_, image, ok := strings.Cut(readFile(t, "Dockerfile"), "\nFROM gcr.io/distroless/static-debian12:nonroot\n")
	require.True(t, ok)
	for _, line := range []string{
		"COPY --from=build /rls /bin/rls", "COPY --from=build /rls /bin/ratelimit",
		"USER 65532:65532", "EXPOSE 8080 8081 6070",
	} {
		assert.Contains(t, strings.Split(image, "\n"), line)
	}
}

// TestImageHasGoVersionOfModule compares the base image with go.mod.
func TestImageHasGoVersionOfModule(t *testing.T) {
	version := regexp.MustCompile(`(?m)^go (\d+\.\d+)`).FindStringSubmatch(readFile(t, "go.mod"))
	require.NotNil(t, version)
	assert.Contains(t, readFile(t, "Dockerfile"), "golang:"+version[1]+" AS build\n")
}

package release

import (
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const (
	signer     = "--certificate-identity https://github.com/seed-81f232ab/rls/.github/workflows/release.yml@refs/tags/v1.2.3 --certificate-oidc-issuer https://token.actions.githubusercontent.com"
	provenance = "--repo seed-81f232ab/rls --signer-workflow seed-81f232ab/rls/.github/workflows/release.yml --source-ref refs/tags/v1.2.3"
)

// verifyRelease runs deploy/scripts/verify-release in a folder with the files of a release. In place of cosign
// and gh, programs record their arguments, and the program with the name rejects fails. It returns the
// recorded calls, the output and the exit code.
func verifyRelease(t *testing.T, rejects string, args ...string) (calls, out string, code int) {
	t.Helper()
	folder, programs := t.TempDir(), t.TempDir()
	write := func(name, text string, mode os.FileMode) {
		require.NoError(t, os.WriteFile(name, []byte(text), mode))
	}
	write(filepath.Join(folder, "rls.deb"), "deb", 0o600)
	write(filepath.Join(folder, "changed.deb"), "changed", 0o600)
	write(filepath.Join(folder, "unlisted.deb"), "deb", 0o600)
	sum := sha256.Sum256([]byte("deb"))
	write(filepath.Join(folder, "checksums.txt"), fmt.Sprintf("%x  rls.deb\n%x  changed.deb\n", sum, sum), 0o600)
	write(filepath.Join(folder, "checksums.txt.sigstore.json"), "{}", 0o600)
	for _, program := range []string{"cosign", "gh"} {
		write(filepath.Join(programs, program), `#!/bin/sh
echo "`+program+` $*" >>"$CALLS"
[ "$REJECTS" != `+program+` ]
`, 0o700)
	}
	script, err := filepath.Abs(filepath.Join(repository, "deploy/scripts/verify-release"))
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), script, args...)
	cmd.Dir = folder
	callsFile := filepath.Join(programs, "calls")
	cmd.Env = append(os.Environ(), "PATH="+programs+":"+os.Getenv("PATH"), "CALLS="+callsFile, "REJECTS="+rejects)
	output, _ := cmd.CombinedOutput()
	recordedCalls, _ := os.ReadFile(callsFile)
	return string(recordedCalls), string(output), cmd.ProcessState.ExitCode()
}

func TestVerifyReleaseChecksSignatureAndProvenance(t *testing.T) {
	t.Parallel()
	const image = "ghcr.io/seed-81f232ab/rls:v1.2.3"
	calls, out, code := verifyRelease(t, "", "v1.2.3", "rls.deb", "image")
	assert.Zero(t, code, out)
	assert.Equal(t, "cosign verify-blob "+signer+" --bundle ./checksums.txt.sigstore.json ./checksums.txt\n"+
		"gh attestation verify rls.deb "+provenance+"\n"+
		"cosign verify "+signer+" "+image+"\n"+
		"gh attestation verify oci://"+image+" "+provenance+"\n", calls)
	assert.Contains(t, out, "v1.2.3: signature and provenance are valid: rls.deb image")
}

func TestVerifyReleaseFails(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		rejects string
		args    []string
		code    int
		want    string
	}{
		"without a file":               {args: []string{"v1.2.3"}, code: 2, want: "usage"},
		"without a version":            {args: []string{"rls.deb", "rls.deb"}, code: 2, want: "usage"},
		"with a missing file":          {args: []string{"v1.2.3", "rls.rpm"}, code: 1, want: "no file rls.rpm"},
		"with a changed file":          {args: []string{"v1.2.3", "rls.deb", "changed.deb"}, code: 1, want: "changed.deb: got checksum "},
		"with a file of no checksum":   {args: []string{"v1.2.3", "unlisted.deb"}, code: 1, want: "no line for unlisted.deb"},
		"with a bad signature":         {rejects: "cosign", args: []string{"v1.2.3", "rls.deb"}, code: 1},
		"with a bad provenance":        {rejects: "gh", args: []string{"v1.2.3", "rls.deb"}, code: 1},
		"with an image of another key": {rejects: "cosign", args: []string{"v1.2.3", "image"}, code: 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, out, code := verifyRelease(t, test.rejects, test.args...)
			assert.Equal(t, test.code, code, out)
			assert.Contains(t, out, test.want)
			assert.NotContains(t, out, "are valid")
		})
	}
}

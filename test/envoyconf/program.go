package envoyconf

import (
	"cmp"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// Program returns the given program, which is ENVOY_BIN, or else envoy on the PATH, or else the program
// that test/e2e/need-envoy has installed under root, the root of the repository.
func Program(envoyBin, root string) (string, error) {
	onPath, _ := exec.LookPath("envoy")
	if bin := cmp.Or(envoyBin, onPath); bin != "" {
		return bin, nil
	}
	bin, err := filepath.Abs(filepath.Join(root, ".tools/envoy/bin/envoy"))
	if err == nil {
		_, err = os.Stat(bin)
	}
	if err != nil {
		return "", fmt.Errorf("envoy not found: set ENVOY_BIN, put envoy on the PATH, or run test/e2e/need-envoy to install it: %w", err)
	}
	return bin, nil
}

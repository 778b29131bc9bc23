package release

import (
	"archive/zip"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// fuzzTarget is a function that fuzzes, in a folder of the repository.
type fuzzTarget struct{ folder, name string }

// binary returns the name of the program that OSS-Fuzz runs, such as limitsfile_FuzzParse.
func (f fuzzTarget) binary() string { return strings.ReplaceAll(f.folder, "/", "_") + "_" + f.name }

// fuzzTargets parses the tests of the repository, also those of the nested modules.
func fuzzTargets(t *testing.T) (targets []fuzzTarget) {
	t.Helper()
	require.NoError(t, fs.WalkDir(os.DirFS(repository), ".", func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && name != "." && strings.HasPrefix(entry.Name(), "."):
			return fs.SkipDir // installed programs
		case !strings.HasSuffix(name, "_test.go"):
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(repository, name), nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for _, declaration := range file.Decls {
			if function, ok := declaration.(*ast.FuncDecl); ok && function.Recv == nil && strings.HasPrefix(function.Name.Name, "Fuzz") {
				targets = append(targets, fuzzTarget{path.Dir(name), function.Name.Name})
			}
		}
		return nil
	}))
	require.NotEmpty(t, targets)
	return targets
}

// buildFuzzTargets runs the script of OSS-Fuzz in a repository. In place of the compiler, a program records
// its folder and arguments, and writes the program of each target but FuzzUnknown. It returns the calls,
// the folder of the programs, and the output.
func buildFuzzTargets(t *testing.T, root string) (calls []string, out, output string, err error) {
	t.Helper()
	source, out, programs := t.TempDir(), t.TempDir(), t.TempDir()
	root, err = filepath.Abs(root)
	require.NoError(t, err)
	require.NoError(t, os.Symlink(root, filepath.Join(source, "rls")))
	require.NoError(t, os.WriteFile(filepath.Join(programs, "compile_native_go_fuzzer_v2"), []byte(`#!/bin/sh
echo "$(pwd -P) $*" >>"$CALLS"
[ "$2" = FuzzUnknown ] || : >"$OUT/$3"
`), 0o700))
	callsFile := filepath.Join(programs, "calls")
	cmd := exec.CommandContext(t.Context(), filepath.Join(root, "deploy/oss-fuzz/build.sh"))
	cmd.Env = append(os.Environ(), "PATH="+programs+":"+os.Getenv("PATH"), "SRC="+source, "OUT="+out, "CALLS="+callsFile)
	text, err := cmd.CombinedOutput()
	recordedCalls, readErr := os.ReadFile(callsFile)
	require.NoError(t, readErr, string(text))
	return strings.Split(strings.TrimSpace(string(recordedCalls)), "\n"), out, string(text), err
}

func TestOSSFuzzBuildsEachTarget(t *testing.T) {
	t.Parallel()
	calls, out, output, err := buildFuzzTargets(t, repository)
	require.NoError(t, err, output)
	var want []string
	for _, target := range fuzzTargets(t) {
		folder, err := filepath.Abs(filepath.Join(repository, target.folder))
		require.NoError(t, err)
		want = append(want, folder+" . "+target.name+" "+target.binary())
		inputs, err := filepath.Glob(filepath.Join(repository, target.folder, "testdata/fuzz", target.name, "*"))
		require.NoError(t, err)
		corpus := filepath.Join(out, target.binary()+"_seed_corpus.zip")
		if len(inputs) == 0 {
			assert.NoFileExists(t, corpus)
			continue
		}
		archive, err := zip.OpenReader(corpus)
		require.NoError(t, err, target)
		assert.Len(t, archive.File, len(inputs), target)
		require.NoError(t, archive.Close())
	}
	assert.ElementsMatch(t, want, calls)
}

func TestOSSFuzzBuildFailsIfATargetIsMissing(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	for name, text := range map[string]string{
		"deploy/oss-fuzz/build.sh":      readFile(t, "deploy/oss-fuzz/build.sh"),
		"deploy/oss-fuzz/targets":       readFile(t, "deploy/oss-fuzz/targets"),
		"limit/limit_test.go":           "package limit\n\nfunc FuzzUnknown(f *testing.F) {}\n",
		"test/nested/nested_test.go":    "package nested\n\nfunc FuzzNested(f *testing.F) {}\n\nfunc notFuzz(f *testing.F) {}\n",
		".tools/installed/tool_test.go": "package installed\n\nfunc FuzzTool(f *testing.F) {}\n",
	} {
		require.NoError(t, os.MkdirAll(filepath.Join(root, path.Dir(name)), 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(root, name), []byte(text), 0o700))
	}
	calls, _, output, err := buildFuzzTargets(t, root)
	require.Error(t, err)
	assert.Equal(t, "not built: FuzzUnknown in ./limit\n", output)
	assert.Len(t, calls, 2, "the other targets are built, but not those of installed programs")
}

// The compiler of OSS-Fuzz looks for the text "func NAME" in the folder and the folders below it, and
// leaves out a target without an error if two functions have it.
func TestNoFuzzTargetHasANameThatBeginsAsAnother(t *testing.T) {
	t.Parallel()
	targets := fuzzTargets(t)
	for _, target := range targets {
		for _, otherTarget := range targets {
			inFolder := otherTarget.folder == target.folder || strings.HasPrefix(otherTarget.folder, target.folder+"/")
			if otherTarget != target && inFolder {
				assert.False(t, strings.HasPrefix(otherTarget.name, target.name), "%s hides %s", otherTarget, target)
			}
		}
	}
}

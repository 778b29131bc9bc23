package rls_test

import (
	"go/ast"
	"go/format"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/exp/apidiff"
)

// promisedPackages are the packages whose API is promised. testdata/api has the exported declarations of
// each.
var promisedPackages = []string{"client", "client/local", "client/clienttest"}

func TestPromisedAPIHasNotChanged(t *testing.T) {
	for _, pkg := range promisedPackages {
		file := filepath.Join("testdata", "api", strings.ReplaceAll(pkg, "/", "_")+".txt")
		currentAPI := exportedDeclarations(t, pkg)
		if *addPromises {
			require.NoError(t, os.WriteFile(file, []byte(currentAPI), 0o644))
		}
		promisedAPI := readFile(t, file)
		if promisedAPI == currentAPI {
			continue
		}
		importer := newImporter(t)
		changes := apidiff.Changes(checkTypes(t, importer, pkg, promisedAPI), checkTypes(t, importer, pkg, currentAPI))
		assert.Fail(t, "the API of package "+pkg+" has changed",
			"%v\nAn incompatible change breaks the programs of users: undo the change, or follow docs/migrate.md and add a line to\n"+
				"CHANGELOG.md. Then `go test . -run PromisedAPI -promise` writes %s.", changes, file)
	}
}

// exportedDeclarations returns the source of the exported declarations of a package, sorted, without comments
// and without bodies of functions.
func exportedDeclarations(t *testing.T, pkg string) string {
	t.Helper()
	files, err := filepath.Glob(pkg + "/*.go")
	require.NoError(t, err)
	imports := map[string]string{} // by name
	var declarations []string
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		fileSet := token.NewFileSet()
		file, err := parser.ParseFile(fileSet, name, nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		for _, spec := range file.Imports {
			if spec.Name != nil {
				imports[spec.Name.Name] = spec.Name.Name + " " + spec.Path.Value
			} else {
				imports[path.Base(strings.Trim(spec.Path.Value, `"`))] = spec.Path.Value
			}
		}
		ast.FileExports(file)
		for _, d := range file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok {
				if !isFunctionOrExportedMethod(f) {
					continue
				}
				f.Body = nil
			}
			var source strings.Builder
			require.NoError(t, format.Node(&source, fileSet, d))
			declarations = append(declarations, source.String())
		}
	}
	slices.Sort(declarations)
	body := strings.Join(declarations, "\n\n") + "\n"
	header := "package " + filepath.Base(pkg) + "\n\n"
	for _, name := range slices.Sorted(maps.Keys(imports)) {
		if regexp.MustCompile(`\b` + name + `\.`).MatchString(body) {
			header += "import " + imports[name] + "\n"
		}
	}
	return header + "\n" + body
}

// isFunctionOrExportedMethod reports whether f is a function, or a method of an exported type.
func isFunctionOrExportedMethod(f *ast.FuncDecl) bool {
	if f.Recv == nil {
		return true
	}
	receiver := f.Recv.List[0].Type
	if pointer, ok := receiver.(*ast.StarExpr); ok {
		receiver = pointer.X
	}
	return ast.IsExported(receiver.(*ast.Ident).Name)
}

// newImporter returns an importer of the packages that the promised packages import.
func newImporter(t *testing.T) types.Importer {
	t.Helper()
	out, err := exec.Command("go", "list", "-export", "-deps", "-f", "{{.ImportPath}} {{.Export}}", "./client/...").Output()
	require.NoError(t, err)
	files := map[string]string{}
	for line := range strings.Lines(string(out)) {
		path, file, _ := strings.Cut(strings.TrimSpace(line), " ")
		files[path] = file
	}
	return importer.ForCompiler(token.NewFileSet(), "gc", func(path string) (io.ReadCloser, error) { return os.Open(files[path]) })
}

// checkTypes returns the package with these declarations.
func checkTypes(t *testing.T, importer types.Importer, pkg, declarations string) *types.Package {
	t.Helper()
	fileSet := token.NewFileSet()
	file, err := parser.ParseFile(fileSet, pkg, declarations, parser.SkipObjectResolution)
	require.NoError(t, err)
	config := types.Config{Importer: importer}
	checkedPackage, err := config.Check(module+pkg, fileSet, []*ast.File{file}, nil)
	require.NoError(t, err)
	return checkedPackage
}

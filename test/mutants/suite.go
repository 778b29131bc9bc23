package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// suite is the built tests of a package with all its mutants.
type suite struct {
	folder  string // such as ./limit
	mutants []mutant
	program string
	work    string // folder of program
	tests   []*test
}

type test struct {
	name    string
	time    time.Duration // without a mutant
	covered map[int]bool  // ids of mutants
	kills   int
}

// goPackage is what go list prints about a package.
type goPackage struct {
	Dir, ImportPath, Name, Export string
	GoFiles                       []string
}

// build builds the tests of a folder of the module. Only files for which isChanged returns true have mutants.
func build(ctx context.Context, folder string, isChanged func(file string) bool) (*suite, error) {
	listed, err := exec.CommandContext(ctx, "go", "list", "-export", "-deps", "-json=Dir,ImportPath,Name,Export,GoFiles", folder).Output()
	if err != nil {
		return nil, fmt.Errorf("go list %s: %w", folder, err)
	}
	exports := map[string]string{}
	var p goPackage
	for d := json.NewDecoder(bytes.NewReader(listed)); ; {
		var next goPackage
		if err := d.Decode(&next); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, err
		}
		exports[next.ImportPath], p = next.Export, next // the package stands after all its imports
	}
	t := &instrumenter{files: token.NewFileSet(), types: &types.Info{Types: map[ast.Expr]types.TypeAndValue{}, Uses: map[*ast.Ident]types.Object{}, Defs: map[*ast.Ident]types.Object{}}}
	var parsed []*ast.File
	for _, name := range p.GoFiles {
		file, err := parser.ParseFile(t.files, filepath.Join(p.Dir, name), nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		parsed = append(parsed, file)
	}
	open := func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) }
	checker := types.Config{Importer: importer.ForCompiler(t.files, "gc", open)}
	if _, err := checker.Check(p.ImportPath, t.files, parsed, t.types); err != nil {
		return nil, err
	}
	work, err := os.MkdirTemp("", "rls-mutants-")
	if err != nil {
		return nil, err
	}
	s := &suite{folder: folder, work: work, program: filepath.Join(work, "tests")}
	texts := map[string]string{}
	for i, name := range p.GoFiles {
		file := filepath.ToSlash(filepath.Join(folder, name))
		if isChanged(file) {
			source, err := os.ReadFile(filepath.Join(p.Dir, name))
			if err != nil {
				return nil, err
			}
			texts[name] = t.instrument(file, source, parsed[i])
		}
	}
	s.mutants = t.mutants
	texts["mutants.go"] = fmt.Sprintf(runtimeCode, p.Name, len(t.mutants)+1)
	return s, s.compile(ctx, p.Dir, texts)
}

// compile builds the tests with these texts in place of files of the package.
func (s *suite) compile(ctx context.Context, packageFolder string, texts map[string]string) error {
	overlay := map[string]string{}
	for name, text := range texts {
		path := filepath.Join(s.work, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			return err
		}
		overlay[filepath.Join(packageFolder, name)] = path
	}
	text, err := json.Marshal(map[string]any{"Replace": overlay})
	if err != nil {
		return err
	}
	path := filepath.Join(s.work, "overlay.json")
	if err := os.WriteFile(path, text, 0o600); err != nil {
		return err
	}
	out, err := exec.CommandContext(ctx, "go", "test", "-c", "-vet=off", "-overlay", path, "-o", s.program, s.folder).CombinedOutput()
	if err != nil {
		return fmt.Errorf("go test -c %s: %w\n%s", s.folder, err, out)
	}
	return nil
}

func (s *suite) close() { _ = os.RemoveAll(s.work) }

// run runs the tests with these names and a variable. It returns the output.
func (s *suite) run(ctx context.Context, variable string, names []string, args ...string) (string, error) {
	args = append(args, "-test.run", anyOf(names))
	c := exec.CommandContext(ctx, s.program, args...)
	c.Dir, c.Env, c.WaitDelay = s.folder, append(c.Environ(), variable), time.Second
	out, err := c.CombinedOutput()
	return string(out), err
}

// anyOf returns a regular expression of the tests with these names.
func anyOf(names []string) string { return "^(" + strings.Join(names, "|") + ")$" }

// testName is the line in which a program of tests lists a test.
var testName = regexp.MustCompile(`(?m)^(?:Test|Example|Fuzz)\w*$`)

// measure runs each test without a mutant, and records its time and the mutants that it covers. It leaves out
// excludedTests and tests that fail.
func (s *suite) measure(ctx context.Context) error {
	if _, err := os.Stat(s.program); err != nil {
		return nil // no test files
	}
	list, err := s.run(ctx, "MUTANT=0", nil, "-test.list", ".")
	if err != nil {
		return err
	}
	for _, name := range testName.FindAllString(list, -1) {
		if slices.Contains(excludedTests, name) {
			continue
		}
		covered := filepath.Join(s.work, name)
		start := time.Now()
		if out, err := s.run(ctx, "COVERED="+covered, []string{name}); ctx.Err() != nil {
			return ctx.Err()
		} else if err != nil {
			fmt.Printf("%s: %s fails without a mutant, so it is left out: %.300s\n", s.folder, name, out)
			continue
		}
		t := &test{name: name, time: time.Since(start), covered: map[int]bool{}}
		ids, _ := os.ReadFile(covered) // there is no file if the test runs no code of the package
		for _, id := range strings.Fields(string(ids)) {
			n, _ := strconv.Atoi(id)
			t.covered[n] = true
		}
		s.tests = append(s.tests, t)
	}
	return nil
}

// outcome is what the tests say about a mutant.
type outcome string

const (
	killed    outcome = "killed"
	survived  outcome = "survived"
	uncovered outcome = "not covered"
)

// killRate returns the mutants that t kills in a second. A test without kills yet counts as one kill, so quick
// tests come first.
func (t *test) killRate() float64 { return float64(t.kills+1) / t.time.Seconds() }

// try runs the tests that cover m, until one of them fails. Tests with a high killRate come first. Tests run
// together if they take at most a second, because each start of the program takes time, too.
func (s *suite) try(ctx context.Context, m mutant) outcome {
	const runTime, slack, factor = time.Second, 5 * time.Second, 10
	var runs [][]*test
	slices.SortStableFunc(s.tests, func(a, b *test) int { return cmp.Compare(b.killRate(), a.killRate()) })
	timeOf := func(tests []*test) (sum time.Duration) {
		for _, t := range tests {
			sum += t.time
		}
		return sum
	}
	for _, t := range s.tests {
		last := len(runs) - 1
		switch {
		case !t.covered[m.id]:
		case last < 0 || timeOf(runs[last])+t.time > runTime:
			runs = append(runs, []*test{t})
		default:
			runs[last] = append(runs[last], t)
		}
	}
	if len(runs) == 0 {
		return uncovered
	}
	for _, tests := range runs {
		var names []string
		for _, t := range tests {
			names = append(names, t.name)
		}
		limited, cancel := context.WithTimeout(ctx, slack+factor*timeOf(tests))
		out, err := s.run(limited, "MUTANT="+strconv.Itoa(m.id), names, "-test.failfast")
		cancel()
		if err != nil {
			for _, t := range tests {
				if strings.Contains(out, "--- FAIL: "+t.name+" ") {
					t.kills++
				}
			}
			return killed
		}
	}
	return survived
}

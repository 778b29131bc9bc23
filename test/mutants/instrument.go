package main

import (
	_ "embed"
	"fmt"
	"go/ast"
	"go/token"
	"go/types"
	"slices"
	"strings"
)

// mutant is one small change of the code.
type mutant struct {
	id       int
	file     string // with its folder, such as limit/calendar.go
	line     int
	function string
	change   string // such as a < b → a <= b
}

// name names m in the list of survivors. A change of other lines keeps the name.
func (m mutant) name() string { return fmt.Sprintf("%s %s: %s", m.file, m.function, m.change) }

// instrumenter puts all mutants of a package into its code. At run time, at most one of them is active.
type instrumenter struct {
	files   *token.FileSet
	types   *types.Info
	mutants []mutant

	file     string
	source   []byte
	function string
}

// replacement is a text in place of the bytes from start to end of a file.
type replacement struct {
	start, end int
	text       string
}

// instrument returns the code of a file with its mutants.
func (t *instrumenter) instrument(file string, source []byte, parsed *ast.File) string {
	t.file, t.source = file, source
	var all []replacement
	for _, d := range parsed.Decls {
		switch d := d.(type) {
		case *ast.GenDecl:
			if d.Tok == token.VAR {
				t.function = "var"
				all = append(all, t.inside(d)...)
			}
		case *ast.FuncDecl:
			if d.Body != nil {
				t.function = d.Name.Name
				if d.Recv != nil {
					t.function = strings.TrimPrefix(t.text(d.Recv.List[0].Type), "*") + "." + t.function
				}
				all = append(all, t.inside(d.Body)...)
			}
		}
	}
	return t.replace(0, len(source), all)
}

// inside returns the replacements of the outermost expressions and statements below root that have mutants.
func (t *instrumenter) inside(root ast.Node) []replacement {
	var all []replacement
	ast.Inspect(root, func(n ast.Node) bool {
		if n == nil || n == root {
			return n != nil
		}
		if _, isType := n.(*ast.ArrayType); isType { // its length is a constant
			return false
		}
		text, ok := t.mutate(n)
		if ok {
			all = append(all, replacement{t.offset(n.Pos()), t.offset(n.End()), text})
		}
		return !ok
	})
	return all
}

// expression returns the text of e with its mutants.
func (t *instrumenter) expression(e ast.Expr) string {
	if text, ok := t.mutate(e); ok {
		return text
	}
	return t.replace(t.offset(e.Pos()), t.offset(e.End()), t.inside(e))
}

// operators has the other operators that mutants use in place of each operator.
var operators = map[token.Token][]string{
	token.LSS: {"<=", ">="}, token.LEQ: {"<", ">"}, token.GTR: {">=", "<="}, token.GEQ: {">", "<"},
	token.EQL: {"!="}, token.NEQ: {"=="}, token.LAND: {"||"}, token.LOR: {"&&"},
	token.ADD: {"-"}, token.SUB: {"+"}, token.MUL: {"/"}, token.QUO: {"*"}, token.REM: {"*"},
}

// arithmetic has the functions of runtimeCode that calculate in place of operators.
var arithmetic = map[token.Token]string{
	token.ADD: "mutantAdd", token.SUB: "mutantSub", token.MUL: "mutantMul", token.QUO: "mutantQuo", token.REM: "mutantRem",
}

// mutate returns the text of n with its mutants. ok is false if n itself has none.
func (t *instrumenter) mutate(n ast.Node) (text string, ok bool) {
	switch n := n.(type) {
	case *ast.BinaryExpr:
		return t.mutateBinary(n)
	case *ast.UnaryExpr:
		if n.Op == token.SUB && t.isNumber(n) {
			id := t.add(n, t.text(n.X))
			return fmt.Sprintf("mutantNeg(%d, %s)", id, t.expression(n.X)), true
		}
	case *ast.IncDecStmt:
		other, sign := "--", "+"
		if n.Tok == token.DEC {
			other, sign = "++", "-"
		}
		id := t.add(n, t.text(n.X)+other)
		return fmt.Sprintf("%s %s= mutantOne(%d, %s)", t.text(n.X), sign, id, t.text(n.X)), true
	}
	return "", false
}

func (t *instrumenter) mutateBinary(e *ast.BinaryExpr) (text string, ok bool) {
	others, isKnown := operators[e.Op]
	function, isArithmetic := arithmetic[e.Op]
	if !isKnown || !isArithmetic && !t.isBool(e) || isArithmetic && !t.isNumber(e) {
		return "", false
	}
	var ids []int
	for _, other := range others {
		ids = append(ids, t.add(e, t.text(e.X)+" "+other+" "+t.text(e.Y)))
	}
	x, y := t.expression(e.X), t.expression(e.Y)
	if isArithmetic {
		return fmt.Sprintf("%s(%d, %s, %s)", function, ids[0], x, y), true
	}
	text = fmt.Sprintf("(%s %s %s)", x, e.Op, y)
	for i, other := range others { // a mutant evaluates its operands once
		text = fmt.Sprintf("(isMutant(%d) && ((%s) %s (%s)) || !isMutant(%d) && %s)", ids[i], t.text(e.X), other, t.text(e.Y), ids[i], text)
	}
	return text, true
}

// add appends the mutant that has the code changed in place of n, and returns its id.
func (t *instrumenter) add(n ast.Node, changed string) int {
	m := mutant{id: len(t.mutants) + 1, file: t.file, line: t.files.Position(n.Pos()).Line, function: t.function}
	m.change = strings.Join(strings.Fields(t.text(n)+" → "+changed), " ")
	for same, count := m.change, 2; slices.ContainsFunc(t.mutants, func(o mutant) bool { return o.name() == m.name() }); count++ {
		m.change = fmt.Sprintf("%s (%d)", same, count)
	}
	t.mutants = append(t.mutants, m)
	return m.id
}

func (t *instrumenter) isBool(e ast.Expr) bool {
	basic, ok := t.types.TypeOf(e).(*types.Basic)
	return ok && basic.Info()&types.IsBoolean != 0 && t.types.Types[e].Value == nil
}

// isNumber reports whether e is a number, but no constant.
func (t *instrumenter) isNumber(e ast.Expr) bool {
	basic, ok := t.types.TypeOf(e).Underlying().(*types.Basic)
	return ok && basic.Info()&(types.IsInteger|types.IsFloat) != 0 && t.types.Types[e].Value == nil
}

func (t *instrumenter) offset(p token.Pos) int { return t.files.Position(p).Offset }

func (t *instrumenter) text(n ast.Node) string {
	return string(t.source[t.offset(n.Pos()):t.offset(n.End())])
}

// replace returns the source from start to end with all replacements, which are in order.
func (t *instrumenter) replace(start, end int, all []replacement) string {
	var b strings.Builder
	for _, r := range all {
		b.Write(t.source[start:r.start])
		b.WriteString(r.text)
		start = r.end
	}
	b.Write(t.source[start:end])
	return b.String()
}

// runtimeCode is a file of the instrumented package, with its name and the number of mutants left open. The
// variable MUTANT has the id of the active mutant. COVERED names the file that gets the ids of all mutants
// whose code has run.
//
//go:embed runtime.go.txt
var runtimeCode string

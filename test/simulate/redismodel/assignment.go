package redismodel

import (
	"fmt"
	"reflect"

	"github.com/yuin/gopher-lua/ast"
)

// splitAssignments rewrites each assignment of several variables:
//
//	a, b = b, a    becomes    do local t1, t2 = b, a; a = t1; b = t2 end
//
// gopher-lua assigns the first variable before it reads the last value, if both are local
// variables. Lua reads all values first.
func splitAssignments(node any) { splitIn(reflect.ValueOf(node)) }

var statementType = reflect.TypeFor[ast.Stmt]()

func splitIn(v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		if !v.IsNil() {
			splitIn(v.Elem())
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				splitIn(v.Field(i))
			}
		}
	case reflect.Slice:
		for i := range v.Len() {
			splitIn(v.Index(i))
			if v.Type().Elem() == statementType {
				if a, ok := v.Index(i).Interface().(*ast.AssignStmt); ok && len(a.Lhs) > 1 {
					v.Index(i).Set(reflect.ValueOf(split(a)))
				}
			}
		}
	}
}

// split returns a block that does the same as a.
func split(a *ast.AssignStmt) *ast.DoBlockStmt {
	values := &ast.LocalAssignStmt{Exprs: a.Rhs}
	block := &ast.DoBlockStmt{Stmts: []ast.Stmt{values}}
	for i, variable := range a.Lhs {
		name := fmt.Sprintf("(value %d)", i+1) // no variable of a script has such a name
		values.Names = append(values.Names, name)
		block.Stmts = append(block.Stmts, &ast.AssignStmt{Lhs: []ast.Expr{variable}, Rhs: []ast.Expr{&ast.IdentExpr{Value: name}}})
	}
	for _, s := range block.Stmts {
		s.SetLine(a.Line())
		s.SetLastLine(a.LastLine())
	}
	block.SetLine(a.Line())
	block.SetLastLine(a.LastLine())
	return block
}

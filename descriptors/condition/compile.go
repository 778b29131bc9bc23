package condition

import (
	"errors"
	"fmt"
	"regexp/syntax"
	"slices"
	"strings"
	"sync"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/cost"
	"cel.dev/cel-go/common/operators"
	"cel.dev/cel-go/common/overloads"
	"cel.dev/cel-go/common/types"
)

// maxNesting bounds the depth of brackets and operators in an expression.
const maxNesting = 32

// environment returns what expressions can use. It is made at the first expression, so that
// limits without expressions don't need its memory.
var environment = sync.OnceValues(func() (*cel.Env, error) {
	return cel.NewEnv(
		cel.Variable(valueName, cel.StringType),
		cel.Variable(entriesName, cel.MapType(cel.StringType, cel.StringType)),
		cel.HomogeneousAggregateLiterals(),
		cel.ParserRecursionLimit(maxNesting),
		cel.ParserExpressionSizeLimit(MaxEntryBytes),
		cel.ASTValidators(cel.ValidateDurationLiterals(), cel.ValidateTimestampLiterals()),
	)
})

// compileMutex allows one compilation at a time. The checker of cel-go is not safe for concurrent
// use: an error in one expression writes a catalog that the check of another expression reads.
var compileMutex sync.Mutex

// newExpression compiles and checks an expression. It is safe for concurrent use.
func newExpression(text string) (*expression, error) {
	compileMutex.Lock()
	defer compileMutex.Unlock()
	env, err := environment()
	if err != nil {
		return nil, fmt.Errorf("expressions can't be used: %w", err)
	}
	compiled, issues := env.Compile(text)
	if issues.Err() != nil {
		return nil, firstIssue(issues)
	}
	if !compiled.OutputType().IsExactType(cel.BoolType) {
		return nil, fmt.Errorf(`the result has the type %s, want bool; compare it, as in value == "gold"`, compiled.OutputType())
	}
	e := &expression{}
	if err := e.inspect(compiled.NativeRep()); err != nil {
		return nil, err
	}
	estimate, err := env.EstimateCost(compiled, assumedSizes{})
	if err != nil {
		return nil, err
	}
	if estimate.Max > maxCost {
		return nil, fmt.Errorf("the cost can reach %d, want at most %d; use fewer steps, or no loop in a loop", estimate.Max, maxCost)
	}
	if e.program, err = env.Program(compiled, cel.EvalOptions(cel.OptOptimize), cel.CostLimit(maxCost)); err != nil {
		return nil, err
	}
	return e, nil
}

// firstIssue returns the first mistake that the compiler has found.
func firstIssue(issues *cel.Issues) error {
	first := issues.Errors()[0]
	message, _, _ := strings.Cut(first.Message, "\n")
	message, _, _ = strings.Cut(message, " expecting ") // a list of all symbols
	if strings.HasPrefix(message, "found no matching overload") {
		message += "; want values of other types, or a conversion such as int(value)"
	}
	if name, isUnknown := strings.CutPrefix(message, "undeclared reference to '"); isUnknown {
		name, _, _ = strings.Cut(name, "'")
		message = fmt.Sprintf("unknown name %s; want value or entries, or a function of CEL", name)
	}
	place := fmt.Sprintf("at character %d", first.Location.Column()+1)
	if line := first.Location.Line(); line > 1 {
		place = fmt.Sprintf("in line %d of the expression, %s", line, place)
	}
	return fmt.Errorf("%s: %s", place, message)
}

// inspect finds which names the expression reads. It rejects expressions that compile, but are
// unsafe or always wrong.
func (x *expression) inspect(checked *ast.AST) error {
	readsValue := false
	var problem error
	root := ast.NavigateAST(checked)
	for _, n := range ast.MatchDescendants(root, func(ast.NavigableExpr) bool { return true }) {
		switch n.Kind() {
		case ast.IdentKind:
			switch n.AsIdent() {
			case valueName:
				readsValue = true
			case entriesName:
				x.readsEntries = true
				if key, ok := entryKey(n); ok && !slices.Contains(x.entryKeys, key) {
					x.entryKeys = append(x.entryKeys, key)
				}
			}
		case ast.LiteralKind:
			if text, ok := n.AsLiteral().(types.String); ok {
				x.texts = append(x.texts, string(text))
			}
		case ast.CallKind:
			if call := n.AsCall(); call.FunctionName() == overloads.Matches {
				problem = errors.Join(problem, checkPattern(call))
			}
		}
	}
	if problem == nil && !readsValue && !x.readsEntries {
		return errors.New("the result is always the same, because the expression reads neither value nor entries; remove the condition, or read one of them")
	}
	return problem
}

// entryKey returns the key that an expression reads from the name entries: entries.tenant,
// entries["tenant"] or "tenant" in entries. ok is false if the key is not a constant.
func entryKey(entries ast.NavigableExpr) (key string, ok bool) {
	parent, ok := entries.Parent()
	if !ok {
		return "", false
	}
	switch parent.Kind() {
	case ast.SelectKind:
		return parent.AsSelect().FieldName(), true
	case ast.CallKind:
		call, keyIndex := parent.AsCall(), 0
		switch call.FunctionName() {
		case operators.Index:
			keyIndex = 1
		case operators.In:
		default:
			return "", false
		}
		if len(call.Args()) == 2 && call.Args()[keyIndex].Kind() == ast.LiteralKind {
			text, isText := call.Args()[keyIndex].AsLiteral().(types.String)
			return string(text), isText
		}
	}
	return "", false
}

// checkPattern checks the regular expression in a call of matches. The pattern must be a constant,
// because a pattern from the request would be compiled for each request.
func checkPattern(call ast.CallExpr) error {
	args := call.Args()
	pattern := args[len(args)-1]
	text, ok := types.String(""), pattern.Kind() == ast.LiteralKind
	if ok {
		text, ok = pattern.AsLiteral().(types.String)
	}
	if !ok {
		return errors.New(`matches: got a pattern that is not a text in quotes, want one such as matches("^v[0-9]+$")`)
	}
	if _, err := parsePattern(string(text)); err != nil {
		return fmt.Errorf("matches: %w", err)
	}
	return nil
}

// parsePattern parses a regular expression in the syntax of RE2, and bounds its size.
func parsePattern(text string) (*syntax.Regexp, error) {
	parsed, err := syntax.Parse(text, syntax.Perl)
	if err != nil {
		if syntaxErr := (*syntax.Error)(nil); errors.As(err, &syntaxErr) {
			return nil, fmt.Errorf("%s: %s; want an expression in the syntax of RE2", syntaxErr.Code, shorten(syntaxErr.Expr))
		}
		return nil, err
	}
	program, err := syntax.Compile(parsed.Simplify())
	if err != nil {
		return nil, err
	}
	if len(program.Inst) > maxInstructions {
		return nil, fmt.Errorf("the expression needs %d instructions, want at most %d; make its repetitions shorter", len(program.Inst), maxInstructions)
	}
	return parsed, nil
}

// assumedSizes are the sizes of a request for the estimate of a cost. A larger request can't cost more
// than maxCost, because the evaluation then stops with an error.
type assumedSizes struct{}

const (
	assumedEntries = 10  // entries of a descriptor
	assumedBytes   = 256 // of a key or a value
)

// EstimateSize implements cost.Estimator.
func (assumedSizes) EstimateSize(element cost.AstNode) *cost.SizeEstimate {
	switch path := element.Path(); {
	case len(path) == 0:
		return nil
	case len(path) == 1 && path[0] == entriesName:
		return &cost.SizeEstimate{Max: assumedEntries}
	}
	return &cost.SizeEstimate{Max: assumedBytes}
}

// EstimateCallCost implements cost.Estimator. All functions have their cost from CEL.
func (assumedSizes) EstimateCallCost(string, string, *cost.AstNode, []cost.AstNode) *cost.CallEstimate {
	return nil
}

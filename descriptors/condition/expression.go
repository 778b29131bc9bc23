package condition

import (
	"errors"
	"fmt"
	"regexp"
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
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/interpreter"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
)

// maxCost bounds the estimated cost of an expression when the limits load, and the cost of each evaluation. One unit of
// cost is about one operation, or ten bytes of a text. A unit takes up to 100 ns.
const maxCost = 5000

const (
	valueName   = "value"   // the value of the entry that the descriptor matches
	entriesName = "entries" // a map with the keys and values of the same entry and of all earlier entries
)

// expression is a compiled expression in CEL. It is immutable and safe for concurrent use.
type expression struct {
	program      cel.Program
	cost         int          // the estimated cost
	patterns     patternSizes // the regular expressions in calls of matches
	readsEntries bool         // the expression uses the name entries
	entryKeys    []string     // the constant keys of entries, such as tenant in entries.tenant
	texts        []string     // the constant texts, such as "gold"
}

// CEL returns a condition that a value meets if the expression in CEL is true. CEL adds the regular expressions of the
// expression to p before it compiles them. An error names the place in the expression.
func CEL(text string, p *Patterns) (*Condition, error) {
	text = strings.TrimSpace(text)
	switch {
	case text == "":
		return nil, errors.New(`got an empty expression; want an expression such as value.startsWith("/api/")`)
	case len(text) > MaxEntryBytes:
		return nil, fmt.Errorf("got %d bytes, want at most %d", len(text), MaxEntryBytes)
	}
	e, err := newExpression(text, p)
	if err != nil {
		return nil, err
	}
	return &Condition{kind: celKind, expression: e, size: e.patterns.size(), text: "cel(" + shorten(text) + ")"}, nil
}

// ReadsEntries reports whether c depends on more than the value.
func (c *Condition) ReadsEntries() bool { return c.kind == celKind && c.expression.readsEntries }

// EntryKeys returns the constant keys in the expression of c, such as tenant in entries.tenant.
func (c *Condition) EntryKeys() []string {
	if c.kind != celKind {
		return nil
	}
	return c.expression.entryKeys
}

// isTrue reports whether the expression is true for v. It takes the steps from b after the evaluation. So the last
// expression of a call can exceed b by at most maxCost × stepsPerCost steps.
func (x *expression) isTrue(v *Value, b *Budget) (bool, error) {
	if b.spentSteps >= MaxCallSteps {
		return false, ErrNotTested
	}
	evalInput := inputs.Get().(*input)
	evalInput.value, evalInput.entries = v.text, v.entries
	result, details, err := x.program.Eval(evalInput)
	evalInput.release()
	if units := details.ActualCost(); units != nil {
		b.spentSteps += int(min(*units, maxCost)) * stepsPerCost
	}
	if err != nil {
		cancelError, ok := errors.AsType[interpreter.EvalCancelledError](err)
		if ok && cancelError.Cause == interpreter.CostLimitExceeded || errors.Is(err, ErrNotTested) {
			return false, ErrNotTested
		}
		return false, err
	}
	return result == types.True, nil
}

// input is the input of an evaluation. It implements cel.Activation.
type input struct {
	value       string
	entries     []*ratelimitv3.RateLimitDescriptor_Entry
	valuesByKey map[string]string // the values of entries; empty until the expression reads entries
}

var inputs = sync.Pool{New: func() any { return &input{valuesByKey: map[string]string{}} }}

// ResolveName implements cel.Activation.
func (in *input) ResolveName(name string) (any, bool) {
	switch name {
	case valueName:
		return in.value, true
	case entriesName:
		if len(in.valuesByKey) == 0 {
			for _, e := range in.entries {
				in.valuesByKey[e.GetKey()] = e.GetValue()
			}
		}
		return in.valuesByKey, true
	}
	return nil, false
}

// Parent implements cel.Activation.
func (in *input) Parent() cel.Activation { return nil }

func (in *input) release() {
	clear(in.valuesByKey)
	in.value, in.entries = "", nil
	inputs.Put(in)
}

// maxNesting bounds the depth of brackets and operators in an expression.
const maxNesting = 32

// environment returns the names and functions that expressions can use. Only the first expression makes the environment,
// because the environment needs much memory.
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

// compileMutex allows one compilation at a time, because the checker of cel-go is not safe for concurrent use.
var compileMutex sync.Mutex

// newExpression compiles and checks an expression. It is safe for concurrent use.
func newExpression(text string, p *Patterns) (*expression, error) {
	compileMutex.Lock()
	defer compileMutex.Unlock()
	env, err := environment()
	if err != nil {
		return nil, fmt.Errorf("expressions can't be used: %w", err)
	}
	compiledAST, issues := env.Compile(text)
	if issues.Err() != nil {
		return nil, firstIssue(issues)
	}
	if !compiledAST.OutputType().IsExactType(cel.BoolType) {
		return nil, fmt.Errorf(`the result has the type %s, want bool; compare it, as in value == "gold"`, compiledAST.OutputType())
	}
	e := &expression{}
	if err := e.inspect(compiledAST.NativeRep()); err != nil {
		return nil, err
	}
	if err := p.add(e.patterns.size()); err != nil {
		return nil, err
	}
	estimate, err := env.EstimateCost(compiledAST, costEstimator{e.patterns})
	if err != nil {
		return nil, err
	}
	if estimate.Max > maxCost {
		return nil, fmt.Errorf("the cost can reach %d, want at most %d; use fewer steps, or no loop in a loop", estimate.Max, maxCost)
	}
	e.cost = int(estimate.Max)
	e.program, err = env.Program(compiledAST, cel.EvalOptions(cel.OptOptimize), cel.CostLimit(maxCost),
		cel.OptimizeRegex(boundedMatches(e.patterns)...),
		cel.CostTrackerOptions(cost.OverloadTracker(overloads.Matches, e.patterns.matchCost), cost.OverloadTracker(overloads.MatchesString, e.patterns.matchCost)))
	if err != nil {
		return nil, err
	}
	return e, nil
}

// firstIssue returns the first problem that the compiler of cel-go has found, with its place and a remedy.
func firstIssue(issues *cel.Issues) error {
	issue := issues.Errors()[0]
	message, _, _ := strings.Cut(issue.Message, "\n")
	message, _, _ = strings.Cut(message, " expecting ") // a list of all symbols
	if strings.HasPrefix(message, "found no matching overload") {
		message += "; want values of other types, or a conversion such as int(value)"
	}
	if name, isUnknown := strings.CutPrefix(message, "undeclared reference to '"); isUnknown {
		name, _, _ = strings.Cut(name, "'")
		message = fmt.Sprintf("unknown name %s; want value or entries, or a function of CEL", name)
	}
	place := fmt.Sprintf("at character %d", issue.Location.Column()+1)
	if line := issue.Location.Line(); line > 1 {
		place = fmt.Sprintf("in line %d of the expression, %s", line, place)
	}
	return fmt.Errorf("%s: %s", place, message)
}

// inspect finds the names that the expression reads. It rejects expressions that are unsafe or constant.
func (x *expression) inspect(checkedAST *ast.AST) error {
	readsValue := false
	var patternErrors error
	root := ast.NavigateAST(checkedAST)
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
				patternErrors = errors.Join(patternErrors, x.addPattern(call))
			}
		}
	}
	if patternErrors == nil && !readsValue && !x.readsEntries {
		return errors.New("the result is always the same, because the expression reads neither value nor entries; remove the condition, or read value or entries")
	}
	return patternErrors
}

// entryKey returns the constant key in entries.tenant, entries["tenant"] or "tenant" in entries.
func entryKey(entries ast.NavigableExpr) (key string, ok bool) {
	parent, ok := entries.Parent()
	if !ok {
		return "", false
	}
	switch parent.Kind() {
	case ast.SelectKind:
		return parent.AsSelect().FieldName(), true
	case ast.CallKind:
		switch call := parent.AsCall(); call.FunctionName() {
		case operators.Index:
			return constantText(call.Args()[1])
		case operators.In:
			return constantText(call.Args()[0])
		}
	}
	return "", false
}

// addPattern checks and adds the regular expression of a call of matches. The regular expression must be a constant, because
// otherwise each evaluation would have to compile the regular expression.
func (x *expression) addPattern(call ast.CallExpr) error {
	args := call.Args()
	text, ok := constantText(args[len(args)-1])
	if !ok {
		return errors.New(`matches: got a pattern that is not a text in quotes, want a pattern such as matches("^v[0-9]+$")`)
	}
	_, size, err := parsePattern(text)
	if err == nil {
		if x.patterns == nil {
			x.patterns = patternSizes{}
		}
		x.patterns[text] = size
		err = x.patterns.size().check()
	}
	if err != nil {
		return fmt.Errorf("matches: %w", err)
	}
	return nil
}

func constantText(e ast.Expr) (text string, ok bool) {
	if e.Kind() != ast.LiteralKind {
		return "", false
	}
	literal, ok := e.AsLiteral().(types.String)
	return string(literal), ok
}

func parsePattern(text string) (*syntax.Regexp, patternSize, error) {
	syntaxTree, err := syntax.Parse(text, syntax.Perl)
	if err != nil {
		if syntaxErr := (*syntax.Error)(nil); errors.As(err, &syntaxErr) {
			err = fmt.Errorf("%s: %s; want an expression in the syntax of RE2", syntaxErr.Code, shorten(syntaxErr.Expr))
		}
		return nil, patternSize{}, err
	}
	const anchors = 4 // instructions for the anchors and the ends of the program
	size := sizeOf(syntaxTree).plus(patternSize{instructions: anchors})
	return syntaxTree, size, size.check()
}

// patternSizes has the sizes of the regular expressions in an expression. The key is the text of the regular expression.
type patternSizes map[string]patternSize

func (s patternSizes) size() (sum patternSize) {
	for _, size := range s {
		sum = sum.plus(size)
	}
	return sum
}

// costOf returns the cost of matching a text of this number of bytes with pattern.
func (s patternSizes) costOf(pattern string, bytes int) int {
	return 1 + patternSteps(s[pattern].instructions, bytes)/stepsPerCost
}

// matchCost returns the cost of a call of matches, as a cost.FunctionTracker. The tracker of CEL counts the bytes of the
// pattern, but the time of a match depends on the instructions of the pattern.
func (s patternSizes) matchCost(args []ref.Val, result ref.Val) *uint64 {
	units := uint64(1)
	text, isText := args[0].(types.String)
	pattern, isPattern := args[1].(types.String)
	if isText && isPattern && !types.IsError(result) { // an error means that no match was tried
		units = uint64(s.costOf(string(pattern), len(text)))
	}
	return &units
}

// boundedMatches returns implementations of the CEL function matches. They return ErrNotTested if a call would cost more
// than maxCost.
func boundedMatches(sizes patternSizes) []*interpreter.RegexOptimization {
	factory := func(call interpreter.InterpretableCall, pattern string) (interpreter.InterpretableCall, error) {
		regex, err := regexp.Compile(pattern)
		if err != nil {
			return nil, err
		}
		return interpreter.NewCall(call.ID(), call.Function(), call.OverloadID(), call.Args(), func(args ...ref.Val) ref.Val {
			text, ok := args[0].(types.String)
			switch {
			case !ok:
				return types.MaybeNoSuchOverloadErr(args[0])
			case sizes.costOf(pattern, len(text)) > maxCost:
				return types.WrapErr(ErrNotTested)
			}
			return types.Bool(regex.MatchString(string(text)))
		}), nil
	}
	return []*interpreter.RegexOptimization{
		{Function: overloads.Matches, OverloadID: overloads.Matches, RegexIndex: 1, Factory: factory},
		{Function: overloads.Matches, OverloadID: overloads.MatchesString, RegexIndex: 1, Factory: factory},
	}
}

// costEstimator estimates the cost of an expression for a request with the assumed sizes.
type costEstimator struct{ patterns patternSizes }

// EstimateSize implements cost.Estimator.
func (costEstimator) EstimateSize(element cost.AstNode) *cost.SizeEstimate {
	switch path := element.Path(); {
	case len(path) == 0:
		return nil
	case len(path) == 1 && path[0] == entriesName:
		return &cost.SizeEstimate{Max: assumedEntries}
	}
	return &cost.SizeEstimate{Max: assumedBytes}
}

// EstimateCallCost implements cost.Estimator. It returns the cost of matches. CEL knows the cost of all other functions.
func (e costEstimator) EstimateCallCost(_, overloadID string, target *cost.AstNode, args []cost.AstNode) *cost.CallEstimate {
	if overloadID != overloads.Matches && overloadID != overloads.MatchesString {
		return nil
	}
	if target == nil { // matches(text, pattern)
		target, args = &args[0], args[1:]
	}
	pattern, _ := constantText(args[0].Expr())
	size := (*target).ComputedSize()
	if size == nil {
		size = e.EstimateSize(*target)
	}
	if size == nil {
		return nil
	}
	bytes := int(min(size.Max, maxAssumedText))
	return cost.NewCallEstimate(cost.Estimate{Min: 1, Max: uint64(e.patterns.costOf(pattern, bytes))}, nil)
}

// maxAssumedText is longer than any text that matches can test within maxCost.
const maxAssumedText = 1 << 20

package condition

import (
	"errors"
	"fmt"
	"strings"
	"sync"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/interpreter"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
)

// maxCost bounds the cost of an expression: of the estimate when the limits load, and of each
// evaluation. A unit is about one operation, or ten bytes of a text that an operation reads. A unit
// takes up to 100 ns.
const maxCost = 5000

// The names that an expression can use.
const (
	valueName   = "value"   // the value of the entry that the descriptor matches
	entriesName = "entries" // the values of this entry and the entries before it, by key
)

// expression is a compiled expression in CEL. Its result is true or false. It is immutable and
// safe for concurrent use.
type expression struct {
	program      cel.Program
	cost         int // the estimate when the limits load
	patterns     patternSizes
	readsEntries bool     // it uses the name entries
	entryKeys    []string // the keys that it names, as in entries.tenant
	texts        []string // the texts in it
}

// CEL returns a condition that is met if the expression is true. It has the syntax of CEL, the
// Common Expression Language. The error names the place in the expression. CEL adds the regular
// expressions in it to p before it compiles them.
func CEL(text string, p *Patterns) (*Condition, error) {
	text = strings.TrimSpace(text)
	switch {
	case text == "":
		return nil, errors.New(`got an empty expression; want one such as value.startsWith("/api/")`)
	case len(text) > MaxEntryBytes:
		return nil, fmt.Errorf("got %d bytes, want at most %d", len(text), MaxEntryBytes)
	}
	e, err := newExpression(text, p)
	if err != nil {
		return nil, err
	}
	return &Condition{kind: celKind, expression: e, size: e.patterns.size(), text: "cel(" + shorten(text) + ")"}, nil
}

// ReadsEntries reports whether c depends on the entries of the descriptor and not on the value
// alone.
func (c *Condition) ReadsEntries() bool { return c.kind == celKind && c.expression.readsEntries }

// EntryKeys returns the keys of the entries that c names. A request must have them.
func (c *Condition) EntryKeys() []string {
	if c.kind != celKind {
		return nil
	}
	return c.expression.entryKeys
}

// isTrue reports whether the expression is true for v. It takes the cost from b. The last expression of a
// call can exceed b by maxCost.
func (x *expression) isTrue(v *Value, b *Budget) (bool, error) {
	if b.spent >= MaxCallSteps {
		return false, ErrNotTested
	}
	in := inputs.Get().(*input)
	in.value, in.entries = v.text, v.entries
	result, details, err := x.program.Eval(in)
	in.release()
	if units := details.ActualCost(); units != nil {
		b.spent += int(min(*units, maxCost)) * stepsPerCost
	}
	if err != nil {
		canceled, ok := errors.AsType[interpreter.EvalCancelledError](err)
		if ok && canceled.Cause == interpreter.CostLimitExceeded || errors.Is(err, ErrNotTested) {
			return false, ErrNotTested
		}
		return false, err
	}
	return result == types.True, nil
}

// input is the input of an evaluation. It implements cel.Activation.
type input struct {
	value   string
	entries []*ratelimitv3.RateLimitDescriptor_Entry
	byKey   map[string]string // entries; empty until they are read
}

// inputs are free for reuse.
var inputs = sync.Pool{New: func() any { return &input{byKey: map[string]string{}} }}

// ResolveName implements cel.Activation.
func (in *input) ResolveName(name string) (any, bool) {
	switch name {
	case valueName:
		return in.value, true
	case entriesName:
		if len(in.byKey) == 0 {
			for _, e := range in.entries {
				in.byKey[e.GetKey()] = e.GetValue()
			}
		}
		return in.byKey, true
	}
	return nil, false
}

// Parent implements cel.Activation.
func (in *input) Parent() cel.Activation { return nil }

// release makes in free for reuse.
func (in *input) release() {
	clear(in.byKey)
	in.value, in.entries = "", nil
	inputs.Put(in)
}

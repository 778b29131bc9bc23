package condition

import (
	"errors"
	"fmt"
	"regexp/syntax"
	"strings"
	"unicode/utf8"
)

const (
	// MaxCallSteps bounds the steps of all conditions of a call. A step is the work of one instruction of a regular
	// expression at one byte of a value. For a small regular expression, package regexp is four times as fast, so four
	// instructions count as one step. MaxCallSteps steps take about 2 ms of CPU time.
	MaxCallSteps = 256_000

	// stepsPerCost is the number of steps that take as long as a unit of the cost of an expression.
	stepsPerCost = 10

	// When the limits load, the estimates of steps and costs assume a request with these sizes.
	assumedEntries = 10  // the number of entries of a descriptor
	assumedBytes   = 128 // the size of a key or a value

	// maxInstructions bounds a regular expression, so that a value of assumedBytes takes at most MaxCallSteps.
	maxInstructions = MaxCallSteps / assumedBytes

	// maxPatternSize bounds the memory of one regular expression. maxTotalPatternSize bounds the memory of all regular
	// expressions of a Set or of a domain. The unit is an instruction, which takes up to 150 bytes.
	maxPatternSize      = 20_000
	maxTotalPatternSize = 500_000
)

// ErrNotTested is the error of Match if the test would take too many steps.
var ErrNotTested = errors.New("not tested, because the test takes too many steps for the length of the values")

// Budget bounds the steps of one call. In its zero value, no step is spent. It is not safe for concurrent use.
type Budget struct{ spentSteps int }

// spend takes steps from b. If b has too few steps left, spend takes none and returns false.
func (b *Budget) spend(steps int) bool {
	if steps > MaxCallSteps-b.spentSteps {
		return false
	}
	b.spentSteps += steps
	return true
}

// MaxSteps estimates the largest number of steps that all conditions take for one value of 128 bytes.
func MaxSteps(conditions []*Condition) int {
	sum := 0
	for _, c := range conditions {
		sum += c.estimatedSteps()
	}
	if sum <= MaxCallSteps {
		return sum
	}
	maxSteps := 0
	for _, c := range conditions { // Match tests a regular expression only if the value starts with its prefix
		sum := 0
		for _, other := range conditions {
			if strings.HasPrefix(c.regexPrefix(), other.regexPrefix()) {
				sum += other.estimatedSteps()
			}
		}
		maxSteps = max(maxSteps, sum)
	}
	return maxSteps
}

// regexPrefix returns the prefix of a regex. Match tests the regular expression only for values with this prefix.
func (c *Condition) regexPrefix() string {
	if c.kind == regexKind {
		return c.prefix
	}
	return ""
}

// estimatedSteps returns the largest number of steps that c takes for a value of assumedBytes.
func (c *Condition) estimatedSteps() int {
	switch c.kind {
	case regexKind:
		return patternSteps(c.size.instructions, assumedBytes)
	case celKind:
		return c.expression.cost * stepsPerCost
	}
	return 0
}

// patternSteps returns the largest number of steps to match a value of this number of bytes. Package regexp is four times
// as fast if its bit table has a bit for each instruction at each byte: at most 500 instructions and 256 Ki bits.
func patternSteps(instructions, bytes int) int {
	const maxFastInstructions, maxFastBits = 500, 256 << 10
	steps := instructions * bytes
	if instructions <= maxFastInstructions && steps <= maxFastBits {
		return steps / 4
	}
	return steps
}

type patternSize struct {
	instructions int
	runes        int // the number of first and last characters of all ranges in the instructions
}

func (s patternSize) plus(other patternSize) patternSize {
	return patternSize{s.instructions + other.instructions, s.runes + other.runes}
}

func (s patternSize) times(n int) patternSize { return patternSize{s.instructions * n, s.runes * n} }

// memory returns the memory of the compiled expression, in the unit of maxPatternSize.
func (s patternSize) memory() int { return s.instructions + s.runes/10 }

func (s patternSize) check() error {
	switch {
	case s.instructions > maxInstructions:
		return fmt.Errorf("the expression needs %d instructions, want at most %d; make its repetitions shorter", s.instructions, maxInstructions)
	case s.memory() > maxPatternSize:
		return fmt.Errorf("the expression repeats large classes of characters too often; make its repetitions shorter, or use smaller classes than %s", `\pL`)
	}
	return nil
}

// sizeOf estimates the size of e after compilation. The estimate is exact or a little too large.
func sizeOf(e *syntax.Regexp) patternSize {
	size := patternSize{instructions: 1}
	switch e.Op {
	case syntax.OpLiteral:
		size.instructions = len(e.Rune)
	case syntax.OpCharClass:
		size.runes = len(e.Rune)
	case syntax.OpCapture:
		size.instructions = 2
	case syntax.OpAlternate:
		size.instructions = len(e.Sub)
	case syntax.OpRepeat:
		sub := sizeOf(e.Sub[0])
		if e.Max < 0 {
			return size.plus(sub.times(max(e.Min, 1)))
		}
		return size.plus(sub.times(e.Max)).plus(patternSize{instructions: e.Max - e.Min})
	}
	for _, sub := range e.Sub {
		size = size.plus(sizeOf(sub))
	}
	return size
}

// prefixOf returns a prefix of all texts that e matches from start to end. The prefix can be empty.
func prefixOf(e *syntax.Regexp) string {
	switch e.Op {
	case syntax.OpCapture:
		return prefixOf(e.Sub[0])
	case syntax.OpConcat:
		for _, sub := range e.Sub {
			if sub.Op != syntax.OpBeginText {
				return prefixOf(sub)
			}
		}
	case syntax.OpLiteral:
		if e.Flags&syntax.FoldCase == 0 {
			// The replacement character also matches bytes that are not UTF-8.
			prefix, _, _ := strings.Cut(string(e.Rune), string(utf8.RuneError))
			return prefix
		}
	}
	return ""
}

// Patterns bounds the memory of all regular expressions of a Set or of a domain. In its zero value, no memory is used.
type Patterns struct{ memory int } // in the unit of maxPatternSize

// Add adds the regular expressions of c. If they exceed the bound, Add returns an error.
func (p *Patterns) Add(c *Condition) error { return p.add(c.size) }

func (p *Patterns) add(size patternSize) error {
	if p.memory+size.memory() > maxTotalPatternSize {
		return ErrTooManyPatterns
	}
	p.memory += size.memory()
	return nil
}

// ErrTooManyPatterns is the error of a condition that exceeds the bound of Patterns.
var ErrTooManyPatterns = fmt.Errorf("all regular expressions together need more than %d instructions; use fewer, or make their repetitions shorter", maxTotalPatternSize)

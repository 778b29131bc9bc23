package limitsfile

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"slices"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"

	"github.com/seed-81f232ab/rls/descriptors/condition"
	"github.com/seed-81f232ab/rls/internal/base/boundedyaml"
	"github.com/seed-81f232ab/rls/internal/base/fields"
	"github.com/seed-81f232ab/rls/limit"
)

const (
	// DefaultMaxFileBytes is about the size of a file with 150,000 rules.
	DefaultMaxFileBytes = 16 << 20

	// DefaultMaxNodes is about the number of nodes in a file of DefaultMaxFileBytes.
	DefaultMaxNodes = 2_000_000

	// maxRules bounds the descriptors and limits of one file. maxMetadata bounds the values in the metadata of a file.
	// Both count the content behind an alias at each use. A descriptor or limit takes about ruleBytes of memory.
	maxRules    = 320_000
	ruleBytes   = 400
	maxMetadata = 400_000

	// MaxDepth is the maximum depth of nested descriptors. Envoy Gateway nests a descriptor for each header of a rule.
	MaxDepth = 512

	// maxNesting is the maximum depth of nested metadata, and of merge keys.
	maxNesting = 100

	// pieceNodes is the number of nodes in a piece of a file: about 50 rules. It is small, because calls wait while a piece
	// is parsed, which takes about a millisecond.
	pieceNodes = 500

	// maxLimits bounds the limits of one descriptor.
	maxLimits = 100

	// maxProblems bounds the reported problems of one file.
	maxProblems = 1000
)

type parseState struct {
	options     Options
	lists       map[[3]string]*fileList // the key has the field, the name in the limits file, and the path of the list
	expressions expressionCache
	patterns    *condition.Patterns
}

func newParseState(o Options) *parseState {
	o.MaxFileBytes = cmp.Or(o.MaxFileBytes, DefaultMaxFileBytes)
	o.MaxNodes = cmp.Or(o.MaxNodes, DefaultMaxNodes)
	return &parseState{o, map[[3]string]*fileList{}, expressionCache{}, &condition.Patterns{}}
}

// document is a limits file while it is read.
type document struct {
	*parseState
	file               string
	nodeCount          int // the number of counted nodes
	ruleCount          int // the number of counted descriptors and limits
	metadataValueCount int // the number of counted values in metadata

	// forEachPiece calls f with pieces of the list descriptors until f returns false. It is nil if root has the list.
	forEachPiece func(f func(items []*yaml.Node) bool) error

	root      *object
	domain    *Domain
	rootPlace *place // the place of the domain

	limits map[limit.Spec]*limit.Limit // the limits that were read; limits with the same spec share a Limit

	errors, warnings []placedProblem // errors reject the file; warnings do not
	errorCount       int             // the number of all errors, even of the errors beyond maxProblems
}

func newDocument(file string, s *parseState) *document {
	return &document{parseState: s, file: file, limits: map[limit.Spec]*limit.Limit{}}
}

// placedProblem is a problem without its path. sortedProblems gets the path from the place after the file was read.
type placedProblem struct {
	fields.Problem
	pos *place
}

// errorf reports an error at the place of n. pos is the place of the descriptor, or nil for a problem of the whole file.
func (d *document) errorf(n *yaml.Node, pos *place, format string, args ...any) {
	d.errorCount++
	d.errors = d.addProblem(d.errors, n, pos, fmt.Sprintf(format, args...))
}

func (d *document) warnf(n *yaml.Node, pos *place, format string, args ...any) {
	d.warnings = d.addProblem(d.warnings, n, pos, fmt.Sprintf(format, args...))
}

func (d *document) addProblem(list []placedProblem, n *yaml.Node, pos *place, reason string) []placedProblem {
	if len(list) > maxProblems || d.nodeCount > d.options.MaxNodes { // beyond MaxNodes, fields that were not read would seem to be missing
		return list
	}
	p := placedProblem{fields.Problem{File: d.file, Reason: reason}, pos}
	if n != nil {
		p.Line, p.Column = n.Line, n.Column
	}
	return append(list, p)
}

// sortedProblems returns list in the order of lines, without duplicates.
func sortedProblems(list []placedProblem) fields.Problems {
	var problems fields.Problems
	for _, p := range list[:min(len(list), maxProblems)] {
		p.Path = p.pos.path()
		problems = append(problems, p.Problem)
	}
	slices.SortStableFunc(problems, func(a, b fields.Problem) int {
		return cmp.Or(a.Line-b.Line, a.Column-b.Column)
	})
	// A problem behind an alias is found once for each use of the alias.
	problems = slices.CompactFunc(problems, func(a, b fields.Problem) bool {
		return a.Line > 0 && a.Line == b.Line && a.Column == b.Column && a.Reason == b.Reason
	})
	if len(list) > maxProblems {
		problems = append(problems, fields.Problem{File: list[0].File, Reason: fmt.Sprintf("more problems follow; the first %d are shown", maxProblems)})
	}
	return problems
}

// mayReadNode counts n. It returns false if the caller must stop reading.
func (d *document) mayReadNode(n *yaml.Node) bool {
	if d.nodeCount == d.options.MaxNodes {
		d.errorf(n, nil, "file has more than %d keys and values (aliases count at each use)", d.options.MaxNodes)
	}
	d.nodeCount++
	return !d.mustStop()
}

// mustStop reports whether the file exceeds a bound, so that reading must stop.
func (d *document) mustStop() bool {
	return d.nodeCount > d.options.MaxNodes || len(d.errors) > maxProblems
}

// countLimit counts the limit n. A limit keeps its path in memory, so a limit with a long path counts as several limits.
// countLimit returns false if the caller must stop reading.
func (d *document) countLimit(n *yaml.Node, pos *place) bool {
	return d.countRules(n, 1+pos.pathBytes()/ruleBytes)
}

func (d *document) countRules(n *yaml.Node, count int) bool {
	d.ruleCount += count
	return d.checkCount(n, d.ruleCount, maxRules, "descriptors and limits")
}

// checkCount reports a problem if count exceeds maximum. itemsName says what was counted, such as "descriptors and limits".
// checkCount returns false if the caller must stop reading.
func (d *document) checkCount(n *yaml.Node, count, maximum int, itemsName string) bool {
	if count > maximum && !d.mustStop() {
		d.errorf(n, nil, "file has more than %d %s (aliases count at each use); split the file", maximum, itemsName)
		d.stop()
	}
	return !d.mustStop()
}

// stop stops reading after a problem that would cause many more problems.
func (d *document) stop() { d.nodeCount = d.options.MaxNodes + 1 }

// parse returns the root of the first YAML document of f. If parse reports a problem, it returns nil.
func (d *document) parse(f File) *yaml.Node {
	if len(f.Data) > d.options.MaxFileBytes {
		d.errorf(nil, nil, "file is %d bytes; maximum is %d", len(f.Data), d.options.MaxFileBytes)
		return nil
	}
	if !d.checkBytes(f.Data) {
		return nil
	}
	content, err := boundedyaml.Open(f.Data, "descriptors", boundedyaml.Bounds{MaxRepeatedNodes: d.options.MaxNodes / 2, PieceNodes: pieceNodes})
	if err != nil {
		d.yamlError(err)
		return nil
	}
	if content.SecondRoot != nil {
		d.warnf(content.SecondRoot, nil, "rls reads only the first YAML document of a file; the other documents have no effect")
	}
	if content.IsInPieces() {
		d.forEachPiece = content.Items
	}
	return content.Root
}

func (d *document) yamlError(err error) {
	if p, ok := errors.AsType[*boundedyaml.Problem](err); ok {
		d.errorf(&yaml.Node{Line: p.Line, Column: p.Column}, nil, "%s", p.Reason)
		return
	}
	d.errorf(nil, nil, "%v: domain is missing", err)
}

// checkBytes returns false, and reports a problem, if data has a byte that YAML doesn't allow. It accepts all data in UTF-16,
// because the YAML library checks UTF-16.
func (d *document) checkBytes(data []byte) bool {
	if bytes.HasPrefix(data, []byte("\xff\xfe")) || bytes.HasPrefix(data, []byte("\xfe\xff")) {
		return true
	}
	for i, size := 0, 0; i < len(data); i += size {
		var r rune
		r, size = utf8.DecodeRune(data[i:])
		reason := ""
		switch {
		case r == utf8.RuneError && size == 1:
			reason = "byte 0x%02X is not UTF-8"
		case r < ' ' && r != '\t' && r != '\n' && r != '\r', r == 0x7f:
			reason = "control character 0x%02X is not allowed"
		default:
			continue
		}
		line := data[bytes.LastIndexByte(data[:i], '\n')+1 : i]
		n := &yaml.Node{Line: 1 + bytes.Count(data[:i], []byte("\n")), Column: 1 + utf8.RuneCount(line)}
		d.errorf(n, nil, reason, data[i])
		return false
	}
	return true
}

package condition

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/gaissmai/bart"

	"github.com/seed-81f232ab/rls/internal/base/fields"
)

const (
	// MaxEntries is the maximum number of entries of a list.
	MaxEntries = 250_000

	// maxExamples bounds the entries of a list that become examples.
	maxExamples = 1000

	// maxTextBytes bounds the entries in the text of a condition.
	maxTextBytes = 80
)

// Entry is a value or a network of a list.
type Entry struct {
	Text   string
	Line   int // the line in the file
	Column int // 0 if the column is unknown
}

func (e Entry) problem(format string, args ...any) fields.Problem {
	return fields.Problem{Line: e.Line, Column: e.Column, Reason: fmt.Sprintf(format, args...)}
}

// List has the entries of a condition. It is immutable.
type List struct {
	file     string              // empty if the entries are in the limits file
	entries  []string            // the entries, sorted and without duplicates
	networks *bart.Lite          // the entries of a cidr condition
	values   map[string]struct{} // the entries of an in condition
}

// ParseFile returns the entries of a file. Each line has an entry, is empty, or is a comment that starts with a #.
func ParseFile(data []byte) (entries []Entry, problems fields.Problems) {
	data = bytes.TrimPrefix(data, []byte("\xef\xbb\xbf"))
	line := 0
	for text := range bytes.Lines(data) {
		line++
		text = bytes.TrimSpace(text)
		if len(text) == 0 || text[0] == '#' {
			continue
		}
		entry := Entry{Text: string(text), Line: line}
		if !utf8.Valid(text) {
			problems = append(problems, entry.problem("the line is not UTF-8"))
			continue
		}
		entries = append(entries, entry)
	}
	return entries, problems
}

// CIDR returns a condition that an address meets if one of the networks in entries has the address. An entry is a network
// such as 10.0.0.0/8. file is the name of the file with the entries, or empty. If CIDR returns problems, c is nil.
func CIDR(file string, entries []Entry) (c *Condition, problems, warnings fields.Problems) {
	networks := new(bart.Lite)
	l, problems := newList(file, entries, func(e Entry) (string, error) {
		network, err := parseNetwork(e.Text)
		if err != nil {
			return "", err
		}
		if maskedNetwork := network.Masked(); maskedNetwork != network {
			warnings = append(warnings, e.problem("%s has host bits after its prefix length; rls uses %s", network, maskedNetwork))
			network = maskedNetwork
		}
		networks.Insert(network)
		if network.IsSingleIP() {
			return network.Addr().String(), nil
		}
		return network.String(), nil
	})
	if len(problems) > 0 {
		return nil, problems, nil
	}
	l.networks = networks
	return &Condition{kind: cidrKind, text: "cidr" + l.text(), list: l}, nil, warnings
}

// In returns a condition that a value meets if entries has the value. file and c are as in CIDR. In returns no warnings.
func In(file string, entries []Entry) (c *Condition, problems, warnings fields.Problems) {
	values := make(map[string]struct{}, len(entries))
	l, problems := newList(file, entries, func(e Entry) (string, error) {
		values[e.Text] = struct{}{}
		return e.Text, nil
	})
	if len(problems) > 0 {
		return nil, problems, nil
	}
	l.values = values
	return &Condition{kind: inKind, text: "in" + l.text(), list: l}, nil, nil
}

// newList returns the list of entries. readEntry returns the text of a valid entry, or an error.
func newList(file string, entries []Entry, readEntry func(Entry) (string, error)) (l *List, problems fields.Problems) {
	if len(entries) > MaxEntries {
		return nil, fields.Problems{entries[MaxEntries].problem("the list has %d entries; maximum is %d", len(entries), MaxEntries)}
	}
	l = &List{file: file}
	for _, e := range entries {
		if len(e.Text) > MaxEntryBytes {
			problems = append(problems, e.problem("got an entry of %d bytes, want at most %d", len(e.Text), MaxEntryBytes))
		} else if text, err := readEntry(e); err != nil {
			problems = append(problems, e.problem("%v", err))
		} else {
			l.entries = append(l.entries, text)
		}
	}
	slices.Sort(l.entries)
	l.entries = slices.Clip(slices.Compact(l.entries))
	return l, problems
}

func parseNetwork(text string) (netip.Prefix, error) {
	invalidErr := fmt.Errorf("got %s, want a network such as 10.0.0.0/8 or 2001:db8::/32, or an address", strconv.Quote(text))
	if !strings.Contains(text, "/") {
		addr, err := netip.ParseAddr(text)
		if err != nil || addr.Zone() != "" {
			return netip.Prefix{}, invalidErr
		}
		addr = addr.Unmap()
		return netip.PrefixFrom(addr, addr.BitLen()), nil
	}
	network, err := netip.ParsePrefix(text)
	switch {
	case err != nil:
		return netip.Prefix{}, invalidErr
	case network.Addr().Is4In6():
		return netip.Prefix{}, errors.New("got an IPv4 network in IPv6 form, want the IPv4 form such as 10.0.0.0/8")
	}
	return network, nil
}

// Summary describes the list of a file: "deny.txt has 3 entries, digest 1a2b3c4d". If l is not from a file, Summary
// returns "".
func (l *List) Summary() string {
	if l == nil || l.file == "" {
		return ""
	}
	return fmt.Sprintf("%s has %d entries, digest %s", l.file, len(l.entries), l.digest())
}

func (l *List) digest() string {
	h := sha256.New()
	for _, e := range l.entries {
		fmt.Fprintf(h, "%q\n", e)
	}
	return hex.EncodeToString(h.Sum(nil)[:4])
}

func (l *List) examples() []string { return slices.Clone(l.entries[:min(maxExamples, len(l.entries))]) }

// differences returns the first entries that only one of l and other has.
func (l *List) differences(other *List) []string {
	var differences []string
	for _, lists := range [][2]*List{{l, other}, {other, l}} {
		for _, e := range lists[0].entries {
			if _, isInBoth := slices.BinarySearch(lists[1].entries, e); !isInBoth && len(differences) < maxExamples {
				differences = append(differences, e)
			}
		}
	}
	return differences
}

// text returns the entries in brackets: `(a b)`. For a long list, it returns the first entries, the number of the other
// entries and a digest: `(a b +98 1a2b3c4d)`.
func (l *List) text() string {
	if l.file != "" {
		return "(file " + l.file + ")"
	}
	var b strings.Builder
	for i, e := range l.entries {
		entryText := e
		if e == "" || strings.HasPrefix(e, "+") || strings.ContainsAny(e, ` ()"`) {
			entryText = strconv.Quote(e)
		}
		if i > 0 {
			b.WriteByte(' ')
		}
		if b.Len()+len(entryText) > maxTextBytes {
			fmt.Fprintf(&b, "+%d %s", len(l.entries)-i, l.digest())
			break
		}
		b.WriteString(entryText)
	}
	return "(" + b.String() + ")"
}

// shorten returns text. If text is long, it returns the start of text and a digest.
func shorten(text string) string {
	if len(text) <= maxTextBytes {
		return text
	}
	sum := sha256.Sum256([]byte(text))
	return strings.ToValidUTF8(text[:maxTextBytes], "") + "… " + hex.EncodeToString(sum[:4])
}
